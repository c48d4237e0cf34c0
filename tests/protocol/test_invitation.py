"""An invitation's line: whole, cut, changed, wrapped by a mail program."""

import hashlib
from base64 import urlsafe_b64decode

import pytest

from fedappeal.protocol.invitation import Invitation
from fedappeal.settings.config import ConfigError

INVITED = Invitation("fed.example.org:9094", bytes(range(32)), bytes(range(100, 116)))
LINE = str(INVITED)


def test_the_line_holds_what_the_docs_say() -> None:
    scheme, _, rest = LINE.partition("://")
    address, _, code = rest.partition("/")
    assert (scheme, address) == ("fedappeal", "fed.example.org:9094")
    content = urlsafe_b64decode(code)
    assert (content[:32], content[32:48]) == (INVITED.fingerprint, INVITED.secret)
    assert content[48:] == hashlib.sha256(address.encode() + content[:48]).digest()[:3]
    assert INVITED.digest == hashlib.sha256(INVITED.secret).digest()
    assert Invitation.parse(LINE) == INVITED
    assert Invitation.parse(f"  {LINE[:40]}\r\n {LINE[40:]}\n") == INVITED, "wrapped by a mail program"
    assert Invitation.new("a:1", bytes(32)).secret != Invitation.new("a:1", bytes(32)).secret


def test_wherever_it_is_cut_or_changed_that_is_said_without_the_secret() -> None:
    begin = len("fedappeal://fed.example.org:9094/")
    for end in range(begin, len(LINE)):
        with pytest.raises(ConfigError, match=rf"was cut or changed .*\({end - begin} of 68 characters") as refused:
            Invitation.parse(LINE[:end])
        assert LINE[begin : begin + 8] not in str(refused.value)
    for place in (begin, begin + 30, begin + 60, len(LINE) - 1, begin - 3):
        other = "1" if LINE[place] != "1" else "2"
        with pytest.raises(ConfigError, match="cut or changed"):
            Invitation.parse(f"{LINE[:place]}{other}{LINE[place + 1 :]}")


@pytest.mark.parametrize("text", [
    "", "laptop.invite", "https://a:1/x", "fedappeal://a/x",
    "fedappeal://a:0/x", "fedappeal://a:99999/x", "fedappeal://a b;c:1/\x00", "x" * 10**6,
])  # fmt: skip
def test_what_is_no_invitation_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="one begins with fedappeal://HOST:PORT/") as refused:
        Invitation.parse(text)
    assert len(str(refused.value)) < 200
