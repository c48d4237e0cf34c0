"""Names with numbers, in the order in which a reader expects them."""

from fedappeal.system.wording import natural_order


def test_numbers_count_by_their_size() -> None:
    names = ["client-10", "b-1", "client-2", "anna", "seed-2-maxfl", "seed-10-fedavg", "client-2x", "", "10", "9"]
    expected = ["", "9", "10", "anna", "b-1", "client-2", "client-2x", "client-10", "seed-2-maxfl", "seed-10-fedavg"]
    assert sorted(names, key=natural_order) == expected


def test_a_number_of_any_length_sorts() -> None:
    long = "9" * 100_000
    assert sorted([long, "1"], key=natural_order) == ["1", long]
