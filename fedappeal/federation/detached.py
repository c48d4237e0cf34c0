"""Commands that submit a run to a long-running SuperLink and do not wait for it, each in a process of its own."""

import shlex
import subprocess
import sys

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.protocol.foreign_text import printable

_WITHIN = 300.0


class NotDone(ValueError):
    """An action was not carried out; the message is one line."""


def submit_detached(superlink: RemoteSuperLink, command: str, *options: str) -> str:
    """Return the id of the run that a command, `submit` or `resume`, submits to a SuperLink.

    Raises:
        NotDone: it submits none; with what it says.
    """
    words = [command, *options, "--detach", "--superlink", superlink.address]
    words += ["--root-certificates", superlink.ca_file] if superlink.ca_file else []
    start = [sys.executable, "-P", "-m", "fedappeal.cli.main", *words]
    try:
        done = subprocess.run(start, capture_output=True, text=True, timeout=_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        raise NotDone(f"nothing was heard of it for {_WITHIN:g} s: {shlex.join(words)}") from None
    output = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
    last = printable(output[-1]) if output else f"exit code {done.returncode}"
    if done.returncode != 0:
        raise NotDone(last)
    return last
