"""Settings of the files that a run starts from and writes."""

from pydantic import Field

from fedappeal.settings.model import CountOrZero, Settings, setting


class FileSettings(Settings):
    """The files that a run starts from and writes."""

    initial_model: str = Field("", description="safetensors file to start from; empty: the task's initial model")
    out: str = Field("", description="folder of the run; empty: runs/DATE-TIME-STRATEGY-TASK")
    resume: bool = setting(False, "continue the run in `out` from its last finished round", internal=True)
    schedule_rounds: CountOrZero = setting(
        0,
        "number of rounds that a continued run began with, for all that follows from it; 0: rounds",
        internal=True,
    )
