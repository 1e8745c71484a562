"""Arguments to settings (by tyro), and mistakes to one-sentence errors."""

from __future__ import annotations

import dataclasses
import difflib
import io
import itertools
import re
from contextlib import redirect_stderr
from typing import Annotated, Any, Union

import tyro

from rpsp.errors import UsageError
from rpsp.experiments import config as configs
from rpsp.experiments import config_sharing, config_tuning
from rpsp.experiments.plugins import import_plugin

COMMANDS = {
    "train": configs.TrainConfig,
    "resume": configs.ResumeConfig,
    "sweep": configs.SweepConfig,
    "tune": config_tuning.TuneConfig,
    "eval": configs.EvalConfig,
    "watch": configs.WatchConfig,
    "export": configs.ExportConfig,
    "pack": config_sharing.PackConfig,
    "push": config_sharing.PushConfig,
    "pull": config_sharing.PullConfig,
    "serve": config_sharing.ServeConfig,
    "fit": configs.FitConfig,
    "inspect": configs.InspectConfig,
    "forecast": configs.ForecastConfig,
    "compare": configs.CompareConfig,
    "paper": configs.PaperConfig,
    "report": configs.ReportConfig,
    "diagnose": configs.DiagnoseConfig,
    "methods": configs.MethodsConfig,
    "doctor": configs.DoctorConfig,
}
"""The settings of each command, in the order of `rpsp --help`."""

ONCE = {
    "--plugin": "give several modules as --plugin first,second",
    "--env-args": "give several arguments as --env-args first=1 second=2",
}
"""Flags of which all but the last would be ignored, and how to give several values."""
DESCRIPTION = "Reinforcement learning when the agent cannot see the whole state: recurrent predictive state policies."
ENVIRONMENT = re.compile(r"^[\w.]+:[\w/-]+-v\d+$")
"""A Gymnasium id in a module, as in module:Env-v0."""
MAX_CHARACTERS = 500
"""Length at which a message of tyro is cut."""
NUMBERS = {"INT": "whole number", "FLOAT": "number"}
"""Tyro's names of number types, and the words for them in an error message."""


def parse(arguments: list[str]) -> Any:
    """Parse the words after `rpsp`.

    Args:
        arguments: at least one word, the name of the command or a flag.

    Returns:
        The settings of the command: an instance of one of the classes in `COMMANDS`.

    Raises:
        UsageError: in one sentence, where tyro prints a box of several lines.
        SystemExit: if help was printed.
    """
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UsageError(
            f"there is no command {arguments[0]!r}{hint}; the commands are {', '.join(COMMANDS)}; see `rpsp --help`."
        )
    for flag, remedy in ONCE.items():
        if sum(argument.partition("=")[0] == flag for argument in arguments) > 1:
            raise UsageError(f"{flag[2:].replace('-', '_')}: is given more than once; {remedy}.")
    printed = io.StringIO()
    commands = _commands(arguments)
    if arguments[0] == "train":  # `_commands` has put the default method in its place
        arguments = re.sub(r"\0--method[\0=]auto(?=\0|$)", "", "\0".join(arguments)).split("\0")
    try:
        with redirect_stderr(printed):
            return _plain(tyro.cli(commands, prog="rpsp", description=DESCRIPTION, args=arguments))
    except SystemExit as exit:
        if not exit.code:  # help was printed
            raise
        raise UsageError(_sentence(printed.getvalue(), arguments)) from None


# ---------------------------------------------------------------------------------------------------------------------
# Defaults
# ---------------------------------------------------------------------------------------------------------------------


def _commands(arguments: list[str]) -> Any:
    """Return the union of all commands. The flags of `train` depend on the method, those of `fit` on the belief."""
    classes, subcommands = dict(COMMANDS), {name: tyro.conf.subcommand(name) for name in COMMANDS}
    if arguments[:1] == ["train"]:
        default = _with_flags(_train_defaults(arguments))
        classes["train"], subcommands["train"] = type(default), tyro.conf.subcommand("train", default=default)
    elif arguments[:1] == ["fit"]:
        classes["fit"] = _with_settings_of(configs.FitConfig, _fit_defaults(arguments))
    kinds = tuple(Annotated[classes[name], subcommands[name]] for name in COMMANDS)
    return Union[kinds]  # noqa: UP007 - built from a list


def _train_defaults(arguments: list[str]) -> configs.TrainConfig:
    """Return the settings that apply without flags: those of the configuration file, then those of the method."""
    from rpsp.experiments.configure import configured, find_method, read_toml  # loads jax: start-up time of --help

    file = _value("--config", arguments)
    given = {} if file is None else read_toml(file)
    plugin = _value("--plugin", arguments) or given.get("plugin")
    if isinstance(plugin, str):  # a file may hold another type, which `configured` refuses
        import_plugin(plugin)
    if (method := _value("--method", arguments)) is not None:
        given["method"] = method
    given |= _what_decides(arguments, given)
    config = configured(given, "" if file is None else f"{file}: ")
    _check_flags(arguments, find_method(config.method))
    if config.chosen and "--help" in arguments:  # the environment is not known
        config = dataclasses.replace(config, method=configs.TrainConfig.method)
    return config


def _what_decides(arguments: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the flags on which the default method depends, if it is used: tyro reads all others later.

    The environment is the first word after `train`, or else the first word that is a Gymnasium id.
    """
    if given.get("method", configs.TrainConfig.method) != configs.TrainConfig.method or "--help" in arguments:
        return {}
    import gymnasium  # start-up time of --help

    first = next((word for word in arguments[1:2] if not word.startswith("-")), None)
    ids = (word for word in arguments[1:] if word in gymnasium.registry or ENVIRONMENT.search(word))
    env = first or next(ids, None)
    found: dict[str, Any] = {} if env is None else {"env": env}
    if (steps := _value("--steps", arguments) or "").isdigit():
        found["steps"] = int(steps)
    if "--env-args" in arguments:
        after = arguments[arguments.index("--env-args") + 1 :]
        found["env_args"] = tuple(itertools.takewhile(lambda word: not word.startswith("-") and "=" in word, after))
    return found


def _check_flags(arguments: list[str], method: Any) -> None:
    """Raise `UsageError` for a flag of another method."""
    from rpsp.experiments.configure import setting_names  # loads jax: start-up time of --help

    own = {f.name for cls in (configs.TrainConfig, configs.Sensors) for f in dataclasses.fields(cls)}
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").replace("-", "_")
        if argument.startswith("--") and name not in own and name not in method.known and name in setting_names():
            raise UsageError(method.refusal(name))


def _fit_defaults(arguments: list[str]) -> Any:
    """Return the default settings of the belief."""
    from rpsp.experiments.configure import fit_settings  # loads jax: start-up time of --help

    import_plugin(_value("--plugin", arguments))
    return fit_settings(_value("--kind", arguments) or configs.FitConfig.kind)


def _with_flags(config: Any) -> Any:
    """Return the configuration as an instance of a class whose `settings` are flags."""
    cls = _with_settings_of(type(config), config.settings)
    return cls(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})


def _with_settings_of(cls: type, settings: Any) -> type:
    """Return the class of a command, with the fields of `settings` as flags."""
    flags = "settings", tyro.conf.OmitArgPrefixes[type(settings)], settings
    made = dataclasses.make_dataclass(cls.__name__, [flags], bases=(cls,), frozen=True)
    made.__doc__, made.__module__ = cls.__doc__, cls.__module__
    return made


def _plain(config: Any) -> Any:
    """Return a configuration as an instance of its class in `COMMANDS`."""
    cls = next(cls for cls in COMMANDS.values() if isinstance(config, cls))
    return (
        config if type(config) is cls else cls(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
    )


def _value(flag: str, arguments: list[str]) -> str | None:
    """Return the value given for a flag, as `--flag value` or `--flag=value`; None without one."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "=")
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Error messages
# ---------------------------------------------------------------------------------------------------------------------


def _sentence(box: str, arguments: list[str]) -> str:
    """Shorten tyro's error to one sentence: what is wrong, and which flag was probably meant.

    Args:
        box: what tyro printed: sections between horizontal rules, in a frame of Unicode or ASCII characters.
        arguments: the words after `rpsp`.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│ ") for line in box.splitlines() if line[:1] not in "╭╰"]
    sections = [part.strip() for part in re.split(r"\n *[─-]{9,}\n", "\n".join(lines))]
    if "╭" not in box and len(sections) > 1:  # in an ASCII frame the title is a section of its own
        sections = sections[1:]
    command = " ".join(["rpsp", *(name for name in arguments[:1] if name in COMMANDS)])
    if ours := _not_a_number(sections, arguments) or _flag_of_other_commands(sections, command):
        return f"{ours}; see `{command} --help`."
    parts = [sections[0].partition("\n\n")[0]]
    parts += [" ".join(s.splitlines()[:2]) for s in sections[1:] if s.startswith("Perhaps you meant")][:1]
    parts += [s for s in sections[1:] if s.startswith("Available subcommands")]
    text = "; ".join(" ".join(part.split()).rstrip(".") for part in parts)
    return f"{text[:MAX_CHARACTERS]}; see `{command} --help`."


def _not_a_number(sections: list[str], arguments: list[str]) -> str | None:
    """Return the message for a flag that takes numbers and was given something else; None for other mistakes."""
    wrong = re.match(r"Error parsing (--[\w-]+):", sections[0])
    form = re.search(r"--[\w-]+ (.+)", "\n".join(sections[1:2]))
    kind = next((word for mark, word in NUMBERS.items() if form and mark in form[1]), None)
    if wrong is None or form is None or kind is None:
        return None
    flag = wrong[1]
    several = f"list of {kind}s, as in {flag} 1 2" if "[" in form[1] else kind
    return f"{flag[2:].replace('-', '_')}: {_value(flag, arguments)!r} is not a {several}"


def _flag_of_other_commands(sections: list[str], command: str) -> str | None:
    """Return the message for a flag that only other commands have; None for other mistakes."""
    typed = re.match(r"Unrecognized[^:]*:\s*(--[\w-]+)", sections[0])
    meant = next((s for s in sections[1:] if s.startswith("Perhaps you meant")), "")
    offered = re.findall(r"^(--[\w-]+)", meant, re.MULTILINE)
    if typed is None or typed[1] not in offered[:1]:
        return None
    homes = dict.fromkeys(re.findall(r"in (rpsp \w+) --help", meant))
    return f"{typed[1]} is no option of `{command}`; it is one of {', '.join(f'`{home}`' for home in homes)}"
