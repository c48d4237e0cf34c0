"""Send a process a signal in a stage of a run: what a test starts installs this by its ``sitecustomize``.

The process in which the stage is reached sends the signal, and stays in the stage until it is ended.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_VARIABLE = "STRUCK_"
FOLDER = f"{_VARIABLE}FOLDER"
"""A variable that all processes of the command have, and no others."""
STAGES = ("query", "train", "evaluate", "checkpoint")
SITE = "import os\nfrom tests.hostile.struck import install_from\ninstall_from(os.environ)\n"
_HELD = 60.0
"""Seconds for which a process stays in a stage at most."""


@dataclass(frozen=True)
class Strike:
    """What is sent, to whom and when.

    Attributes:
        stage: one of `STAGES`; of the second round where it is not the roll call.
        number: the signal.
        target: what is in the command line of the process that gets it.
        folder: an empty one, for its process id and for the mark that the signal was sent.
    """

    stage: str
    number: int
    target: str
    folder: str

    def environment(self) -> dict[str, str]:
        """The variables from which `install_from` makes the same."""
        return {f"{_VARIABLE}{name.upper()}": str(value) for name, value in asdict(self).items()}

    @property
    def sent(self) -> bool:
        """Whether the signal was sent."""
        return (Path(self.folder) / "sent").exists()

    def strike(self) -> None:
        """Send the signal, unless it was sent before; from another process, stay until ended."""
        folder = Path(self.folder)
        with suppress(FileExistsError):
            os.close(os.open(folder / "sent", os.O_CREAT | os.O_EXCL))
            target = int((folder / "pid").read_text())
            os.kill(target, self.number)
            until = time.monotonic() + _HELD
            while target != os.getpid() and time.monotonic() < until:
                time.sleep(0.02)

    def install(self) -> None:
        """Note this process where it is the target, and strike where the stage is reached."""
        command = " ".join(sys.orig_argv)
        if self.target in command and not (Path(self.folder) / "pid").exists():
            (Path(self.folder) / "pid").write_text(str(os.getpid()))
        if self.stage == "checkpoint":
            sys.addaudithook(self._heard)
        elif "client.process.fork_server" in command or " simulate " in command:
            self._wrap()

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "os.rename" or Path(str(arguments[1])).name != "checkpoint.safetensors":
            return
        _, name, _, folder = arguments
        path = Path(str(name)) if folder < 0 else Path(os.readlink(f"/proc/self/fd/{folder}"), str(name))
        if _is_second(path):
            self.strike()

    def _wrap(self) -> None:
        from client.app import Clients

        answer = Clients.__call__

        def struck(clients: Clients, message: Any, context: Any) -> Any:
            kind = message.metadata.message_type.partition(".")[0]
            if kind == self.stage and (kind == "query" or message.metadata.group_id == "2"):
                self.strike()
            return answer(clients, message, context)

        Clients.__call__ = struck  # type: ignore[method-assign]


def _is_second(path: Path) -> bool:
    """Whether a checkpoint that is about to get its name is that of round 2."""
    return (path.parent / "checkpoint-1.safetensors").exists()


def install_from(environment: Mapping[str, str]) -> None:
    """Install the strike of `Strike.environment`."""
    stage, number, target, folder = (
        environment[f"{_VARIABLE}{name}"] for name in ("STAGE", "NUMBER", "TARGET", "FOLDER")
    )
    Strike(stage, int(number), target, folder).install()
