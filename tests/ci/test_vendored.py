"""The bill of materials of vendored files names the very files."""

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_vendored_file_is_the_one_that_is_listed() -> None:
    (component,) = json.loads((ROOT / ".ci" / "vendored.cdx.json").read_text())["components"]
    (place,) = component["evidence"]["occurrences"]
    file = (ROOT / place["location"]).read_bytes()
    assert component["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(file).hexdigest()}]
    assert f"v{component['version']}\n".encode() in file[:200]
