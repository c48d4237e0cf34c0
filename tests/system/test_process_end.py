"""The end of a child process."""

import signal
import subprocess
import sys

import pytest

from fedappeal.system.process_end import end_child

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); signal.pause()"


class Late(subprocess.Popen[bytes]):
    """A child whose end is not seen in time: it has ended when it would be killed."""

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait()
        if timeout is not None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code


@pytest.mark.parametrize("leads", [False, True])
def test_a_child_that_has_ended_meanwhile_is_no_error(leads: bool) -> None:
    child = Late([sys.executable, "-c", ""], start_new_session=leads)
    end_child(child, 0.1)
    assert child.returncode is not None


@pytest.mark.parametrize("leads", [False, True])
def test_a_child_that_stays_is_killed(leads: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=leads) as child:
        assert child.stdout
        child.stdout.readline()
        end_child(child, 0.1)
        assert child.returncode == -signal.SIGKILL
