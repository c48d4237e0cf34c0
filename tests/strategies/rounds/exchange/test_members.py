"""The clients of a run that a strategy counts."""

from strategies.rounds.exchange.members import Member, Members


def test_the_population_is_all_that_were_ever_enrolled_and_have_not_left() -> None:
    members = Members(left=["gone"])
    for node, client, role in ((1, "a", "seen"), (2, "b", "seen"), (3, "c", "unseen"), (4, "gone", "seen")):
        members.enrol(Member(client, node, role))
    members.set_online([1])
    assert members.population() == {"a", "b"}
    assert members.population(["a", "not-back-yet", "gone"]) == {"a", "b", "not-back-yet"}


def test_of_bare_nodes_those_that_are_there_count() -> None:
    members = Members()
    members.enrol_bare([1, 2])
    members.enrol_bare([2, 3])
    assert members.population(["1", "9"]) == {"2", "3"}
