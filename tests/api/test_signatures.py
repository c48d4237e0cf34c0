"""`simulate`, `sweep` and `load` have a signature each, for a reader's editor: an argument is the same in all."""

import inspect

from typer.main import get_command

import fedappeal
from fedappeal.cli.commands import cli
from fedappeal.settings.config import RunConfig

SIMULATE, SWEEP, LOAD = (
    inspect.signature(call).parameters for call in (fedappeal.simulate, fedappeal.sweep, fedappeal.load)
)


def test_an_argument_is_the_same_in_each_call() -> None:
    apart = {"set", "settings"}  # a sweep's may be lists
    for others in (SWEEP, LOAD):
        shared = (others.keys() & SIMULATE.keys()) - apart
        assert len(shared) > 14
        for name in shared:
            facts = [(call[name].default, call[name].annotation) for call in (others, SIMULATE)]
            assert facts[0] == facts[1], name


def test_an_option_of_the_command_has_the_argument_s_default() -> None:
    """But for the device, which a command chooses by the machine."""
    options = {option.name: option for option in get_command(cli).commands["simulate"].params}  # type: ignore[attr-defined]
    shared = (options.keys() & SIMULATE.keys()) - {*RunConfig.model_fields}
    assert shared >= {"mode", "device", "threads", "evaluation_precision", "data_dir", "track", "set"}
    differing = {name for name in shared if (options[name].default or None) != (SIMULATE[name].default or None)}
    assert differing == {"device"}
