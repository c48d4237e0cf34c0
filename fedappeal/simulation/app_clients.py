"""The virtual clients of a Flower app."""

from flwr.app import Context, RecordDict

from client.app_learner import Interface
from client.volunteer import AppClients, VolunteerApp
from fedappeal.record.folder import RunFolder
from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.settings.model import kebab
from fedappeal.simulation.in_process_grid import FIRST_NODE, RUN, InProcessGrid
from fedappeal.tasks.flower_app import FlowerApp

_OF_CLIENTS = {"participation", "goodwill", "requirement", "judge-on", "use", "adaptation-steps", "seed"}
_OF_CLIENTS |= {"clipping-norm"}
"""Settings by which clients decide."""


_SAID = "said-to-app"
"""Which of them the user gave, in the run's record: settings that are recorded whole do not tell."""


def app_clients(task: FlowerApp, config: RunConfig, folder: RunFolder) -> InProcessGrid:
    """Return the clients of an app as volunteers.

    The run's settings override those of the app's author.
    """
    app = task.app if isinstance(task.app, VolunteerApp) else VolunteerApp(AppClients(task.app, Interface()))
    if _SAID not in Record(folder.path).config:
        folder.record(**{_SAID: sorted({kebab(field) for field in config.model_fields_set} & _OF_CLIENTS)})
    said = Record(folder.path).config[_SAID]
    told = {key: value for key, value in config.as_config().items() if key in said}
    told |= {key: value for key, value in config.plugins if not key.startswith(f"{task.name}.")}
    told |= {"clients": config.clients, "unseen-clients": config.unseen_clients}
    volunteers, total = app.with_settings(told), config.clients + config.unseen_clients

    def context(client: int) -> Context:
        node: dict[str, Scalar] = {"partition-id": client, "num-partitions": total}
        return Context(RUN, FIRST_NODE + client, node, RecordDict(), dict(task.config))

    return InProcessGrid(volunteers, total, context)
