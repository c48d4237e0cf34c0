"""What an operator's files and lines look like: byte-order marks, the certificate's path, nobody online."""

from codecs import BOM_UTF8
from pathlib import Path

import pytest

from fedappeal.cli.start import submit_run
from fedappeal.federation.certificates import make_key
from fedappeal.federation.nodes import PublicKey
from fedappeal.federation.remote import RemoteSuperLink, read_root_certificates
from fedappeal.runs.launch.superlink import Submission
from tests.client import certificates


def test_a_byte_order_mark_before_a_key_or_a_certificate_is_left_out(tmp_path: Path) -> None:
    make_key(tmp_path / "a.key")
    public, ca = tmp_path / "a.pub", certificates.make(tmp_path / "tls").ca
    plain, content = PublicKey.read(public), read_root_certificates(str(ca))
    for path in (public, ca):
        path.write_bytes(BOM_UTF8 + path.read_bytes())
    assert PublicKey.read(public) == plain
    assert read_root_certificates(str(ca)) == content


def test_a_submission_says_at_once_that_nobody_is_online_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = str(certificates.make(tmp_path / "tls").ca)
    monkeypatch.setattr(RemoteSuperLink, "submit", lambda *given: 7)
    monkeypatch.setattr(RemoteSuperLink, "nodes", lambda self: [])
    monkeypatch.setattr(RemoteSuperLink, "follow", lambda *given, **named: "it failed")
    monkeypatch.setenv("COLUMNS", "500")
    launcher = Submission(RemoteSuperLink.checked("127.0.0.1:1", ca))
    with pytest.raises((SystemExit, Exception)) as ended:
        submit_run({"out": str(tmp_path / "run")}, launcher)
    said = "".join(capsys.readouterr()) + str(ended.value)
    assert "nobody is online at 127.0.0.1:1: the run waits for clients" in said
    assert f"--superlink 127.0.0.1:1 --root-certificates {ca}" in said
