"""What is wrong with a command line, in one line."""

from click import NoSuchOption, UsageError

from fedappeal.cli.config_tables import plugins_with_settings


def explain(error: UsageError) -> str:
    """Return one line: what is wrong, and which help says more.

    Args:
        error: what click found; an option that is a plug-in's setting is named with its plug-ins.
    """
    said = " ".join(error.format_message().split()).rstrip(".").replace(". Did you", "; did you")
    said = f"{said.partition('? Did you')[0]}?" if "? Did you" in said else said  # typer says again what click said
    if isinstance(error, NoSuchOption) and (settings := _settings_called(error.option_name.lstrip("-"))):
        said = f"no such option '{error.option_name}'; it is a setting of a plug-in: --set {settings[0]}=VALUE"
        said += f" (or {', '.join(settings[1:])})" if settings[1:] else ""
    help_of = f" ({_command(error)} --help)" if error.ctx else ""
    return f"{said[:1].lower()}{said[1:]}{help_of}"


def _command(error: UsageError) -> str:
    assert error.ctx is not None
    names = []
    context = error.ctx
    while context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return " ".join(["fedappeal", *reversed(names)])


def _settings_called(key: str) -> list[str]:
    """Return the settings of fedappeal's plug-ins that have a key, as ``NAME.KEY``."""
    return [f"{name}.{key}" for name, plugin in plugins_with_settings().items() if key in plugin.Settings.by_key()]
