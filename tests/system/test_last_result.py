"""A function that remembers its latest result."""

from fedappeal.system.last_result import LastResult


def test_the_latest_result_is_returned_for_the_same_objects_alone() -> None:
    calls: list[tuple[object, ...]] = []

    def joined(*lists: list[int]) -> list[int]:
        calls.append(lists)
        return [number for part in lists for number in part]

    latest, first, second = LastResult(joined), [1], [2]
    result = latest(first, second)
    assert latest(first, second) is result
    assert latest([1], second) == result, "equal is not the same"
    assert len(calls) == 2
    assert latest(first, second) == [1, 2]
    assert len(calls) == 3, "one result is kept"
    assert latest(first) == [1], "fewer are others"
    assert latest(first, second, first) == [1, 2, 1]
