"""The cache of pulled objects: what it keeps, what it lets go, and its bound."""

from client.fleet.connection import ObjectCache


def message(name: str, *sizes: int) -> dict[str, bytes]:
    return {f"{name}{i}": bytes(size) for i, size in enumerate(sizes)}


def test_it_holds_two_messages_of_the_largest_size() -> None:
    cache = ObjectCache()
    for name in "abc":
        cache.add_message(message(name, 10, 90))
    assert cache.get("a0") is None
    assert cache.get("a1") is None
    assert cache.get("b1") == bytes(90)
    assert cache.get("c1") == bytes(90)
    assert cache.size == 200


def test_what_was_used_last_stays() -> None:
    cache = ObjectCache()
    cache.add_message(message("a", 100))
    cache.add_message(message("b", 100))
    assert cache.get("a0") is not None
    cache.add_message(message("c", 100))
    assert cache.get("a0") is not None
    assert cache.get("b0") is None


def test_the_limit_holds_for_any_message() -> None:
    cache = ObjectCache(limit=150)
    cache.add_message(message("a", 100, 400, 40))
    assert cache.get("a1") is None  # larger than the whole cache
    assert cache.size == 140
    cache.add_message(message("b", 100, 40))
    assert cache.get("b0") is not None
    assert cache.size == 140


def test_the_same_object_counts_once() -> None:
    cache = ObjectCache()
    cache.add_message(message("a", 100))
    cache.add_message(message("a", 100))
    assert cache.size == 100
