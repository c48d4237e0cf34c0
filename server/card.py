"""The card of a run's model: what the run's last round measured of it."""

from collections.abc import Iterable

from fedappeal.protocol.metric import column
from fedappeal.record.columns import CARD, shown_in
from fedappeal.record.folder import RunFolder
from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig
from fedappeal.tasks.share import ALL, share_of
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard
from strategies.rounds.sums.last_good import ROLLED_BACK_TO


def run_card(task: Task, config: RunConfig, folder: RunFolder, server_round: int, held: Iterable[str]) -> ModelCard:
    """Return the card of the model after a run's last round; of that to which the run went back in it, if it did.

    Args:
        task: the run's task.
        config: the run's settings.
        folder: the run's folder, whose history has the figures.
        server_round: the last round.
        held: names of the arrays that the file holds.
    """
    first, primary, *others = (column.key for column in shown_in(CARD, task.metric))
    wanted = [first, primary, *map(column, task.other_metrics), *others]
    lines = {line["round"]: line for line in Record(folder.path).history}
    last = lines.get(server_round, {})
    if ROLLED_BACK_TO in last:
        server_round = int(last[ROLLED_BACK_TO])
        last = lines.get(server_round, {})
    return ModelCard.of(
        task,
        config,
        round=server_round,
        run_key=folder.run_key,
        shared=ALL if share_of(task) == ALL else tuple(held),
        figures={name: float(last[name]) for name in wanted if last.get(name) is not None},
        measured_on="test data of the seen clients, a mean over clients",
    )
