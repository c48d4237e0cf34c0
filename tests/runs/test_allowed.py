"""The command that continues a run."""

from fedappeal.runs.checks import resume_command
from fedappeal.settings.config import RunConfig


def test_the_command_that_continues_a_run_allows_the_code_that_the_run_names() -> None:
    assert resume_command(RunConfig(), "runs/my first") == "fedappeal resume 'runs/my first'"
    config = RunConfig(strategy="nowhere.deep:Mine", participation="elsewhere:Other=0.5,always=0.5")
    command = "fedappeal resume runs/1 --superlink a:1 --allow elsewhere --allow nowhere"
    assert resume_command(config, "runs/1", "--superlink", "a:1") == command
