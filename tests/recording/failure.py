"""How a case fails."""

LONGEST = 240.0
"""Seconds until a process of a case is given up."""


class CaseFailed(Exception):
    """A case that did not end as it should; says how."""


class RayTooSlow(CaseFailed):
    """Ray did not start within the 30 s that it allows itself: the machine is busy."""


def failed(reason: str, said: str, shown: int = 1000) -> CaseFailed:
    """Return how a command failed.

    Args:
        reason: what it did, in a few words.
        said: its output.
        shown: characters of the output's end that are shown.
    """
    kind = RayTooSlow if "node timed out during startup" in " ".join(said.split()) else CaseFailed
    return kind(f"{reason}: {said[-shown:]}")
