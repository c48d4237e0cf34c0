"""Whose a client-id is: the first key's, for a run or for good, until the operator says otherwise."""

import pytest

from strategies.rounds.exchange.ownership import Owners, ProvenKey
from strategies.rounds.reply import Refused

ALICE, BOB = "a" * 64, "b" * 64
ALICES_ID, BOBS_ID = "key-" + "a" * 16, "key-" + "b" * 16


def key(fingerprint: str, lasting: bool = True) -> ProvenKey:
    return ProvenKey(fingerprint, lasting)


def test_the_first_key_to_use_an_id_keeps_it() -> None:
    owners = Owners()
    owners.claim("alice", key(ALICE))
    assert owners.changed
    owners.claim("alice", key(ALICE))
    with pytest.raises(Refused) as refused:
        owners.claim("alice", key(BOB))
    assert str(refused.value) == (
        f"client-id 'alice' belongs to another key ({ALICES_ID}) than this node's ({BOBS_ID}); the operator can "
        f"change that: fedappeal federation release alice --to {BOBS_ID}"
    )
    assert owners.lasting == {"alice": ALICE}


def test_a_key_is_one_client() -> None:
    owners = Owners({"alice": ALICE})
    with pytest.raises(
        Refused, match=rf"key \({ALICES_ID}\) is client 'alice', not 'second'; .* release second --to"
    ):
        owners.claim("second", key(ALICE))
    owners = Owners(passing={"alice": ALICE})
    with pytest.raises(Refused, match="is client 'alice', not 'second'"):
        owners.claim("second", key(ALICE, lasting=False))


def test_an_id_that_is_a_fingerprint_is_that_keys() -> None:
    owners = Owners()
    owners.claim(ALICES_ID, key(ALICE))
    with pytest.raises(Refused, match=f"client-id '{BOBS_ID}' is another key's than this node's"):
        owners.claim(BOBS_ID, key("c" * 64))
    with pytest.raises(Refused, match="'key-alice' is another key's"):
        owners.claim("key-alice", key("c" * 64))


def test_a_connections_key_holds_an_id_for_one_run_and_takes_no_lasting_one() -> None:
    owners = Owners({"alice": ALICE})
    with pytest.raises(Refused):
        owners.claim("alice", key(BOB, lasting=False))
    owners.claim("bob", key(BOB, lasting=False))
    assert (owners.lasting, owners.passing) == ({"alice": ALICE}, {"bob": BOB})
    with pytest.raises(Refused, match="client-id 'bob' belongs to another key"):
        owners.claim("bob", key("c" * 64))


def test_the_operator_lets_an_id_pass_to_the_next_key_or_to_a_named_one() -> None:
    owners = Owners({"alice": ALICE, ALICES_ID: ALICE})
    owners.release("alice")
    owners.claim("alice", key(BOB))
    with pytest.raises(Refused):
        owners.claim("alice", key(ALICE))
    owners.release("alice", "c" * 16)
    with pytest.raises(Refused):
        owners.claim("alice", key(BOB))
    owners.claim("alice", key("c" * 64))
    assert owners.lasting["alice"] == "c" * 64
    owners.release(ALICES_ID, "d" * 16)
    owners.claim(ALICES_ID, key("d" * 64))
    with pytest.raises(Refused, match=f"client-id '{ALICES_ID}' belongs to another key"):
        owners.claim(ALICES_ID, key(ALICE))


def test_a_named_key_may_have_another_id_already() -> None:
    owners = Owners({BOBS_ID: BOB, "alice": ALICE})
    owners.release("alice", "b" * 16)
    owners.claim("alice", key(BOB))
    assert owners.lasting == {BOBS_ID: BOB, "alice": BOB}


def test_to_check_claims_nothing() -> None:
    owners = Owners()
    owners.check("alice", key(ALICE))
    assert not owners.changed
    owners.claim("alice", key(BOB))
    with pytest.raises(Refused):
        owners.check("alice", key(ALICE))
