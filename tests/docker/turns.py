"""Which container tests a check of a change runs where it has no time for all: by turns.

The tests of each file that the change touches run, and a third of the others; three changes in a row run them all. A
change of what every container is made of touches all tests.
"""

from collections.abc import Iterable, Sequence

TURNS = 3
EVERY_CONTAINER = (
    *("docker/", "docker-compose", ".dockerignore", "fedappeal/containers/"),
    *("tests/docker/conftest.py", "tests/docker/federation.py", "tests/docker/slow/"),
)


def of_turn(tests: Sequence[str], changed: Iterable[str], number: int) -> list[str]:
    """Return the tests of one turn.

    Args:
        tests: names as pytest writes them, ``FILE::TEST``.
        changed: files that the change touches.
        number: of the turn; each change has the next one.
    """
    files = set(changed)
    if any(file.startswith(EVERY_CONTAINER) for file in files):
        return [*tests]
    others = [test for test in tests if test.partition("::")[0] not in files]
    left_out = {test for place, test in enumerate(others) if (place - number) % TURNS}
    return [test for test in tests if test not in left_out]
