"""What `serverapp` relies on: Flower's own command of that name is this function."""

from importlib.metadata import entry_points

from fedappeal.flower.superlink import serverapp


def test_flowers_command_is_this_function() -> None:
    [command] = entry_points(group="console_scripts", name="flwr-serverapp")
    assert command.load() is serverapp.flwr_serverapp
