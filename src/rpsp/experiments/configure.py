"""From names and values to a configuration: TOML files, types of values, methods and plugins by name."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import tomllib
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from rpsp.envs.tasks import TASKS
from rpsp.errors import UsageError
from rpsp.experiments import env_args
from rpsp.experiments.config import Sensors, TrainConfig
from rpsp.experiments.methods import METHODS, Method
from rpsp.experiments.settings import checked, merged, settings_class
from rpsp.filters.belief import Belief


def configured(given: Mapping[str, Any], where: str = "") -> TrainConfig:
    """Return the configuration with these settings. Settings that are not given have the method's defaults.

    Args:
        given: values by flat name, with underscores or hyphens.
        where: prefix of error messages that says where the settings come from, such as "hopper.toml: ".

    Raises:
        UsageError: if a name is unknown, the method does not have the setting, or a value has the wrong type.
    """
    given = with_default_method({name.replace("-", "_"): value for name, value in given.items()})
    own, sensors = (_hints(cls) for cls in (TrainConfig, Sensors))
    method = find_method(checked(f"{where}method", given["method"], str))
    known = {**own, **sensors, **{name: setting.type for name, setting in method.known.items()}}
    del known["sensors"], known["settings"]
    for name in given:
        if name not in known:
            check_names([name], setting_names(), where)
            raise UsageError(f"{where}{method.refusal(name)}")
    if not isinstance(observe := given.get("observe"), str | None):
        from rpsp.envs.make import observed_indices  # start-up time of --help: imports gymnasium and MuJoCo

        given["observe"] = ",".join(map(str, observed_indices(observe)))
    for name in {"obs_latency", "outage", "sensor_rate"} & given.keys():
        from rpsp.envs.silence import as_text  # as above

        given[name] = as_text(name, given[name])
    if "env_args" in given:
        given["env_args"] = env_args.canonical(given["env_args"])
    given = {name: checked(f"{where}{name}", value, known[name]) for name, value in given.items()}

    def part(names: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name in names}

    return TrainConfig(**part(own), sensors=Sensors(**part(sensors)), settings=method.settings(**part(method.known)))


def with_default_method(given: Mapping[str, Any], factory: Any = None) -> dict[str, Any]:
    """Return flat settings with the default method, its settings and the reason, if they name no method.

    Args:
        given: values by name, with underscores.
        factory: a function that makes the environment, instead of `env`.
    """
    if given.get("method", TrainConfig.method) != TrainConfig.method:
        return dict(given)
    from rpsp.experiments.defaults import choice_for  # start-up time of --help: imports gymnasium and MuJoCo

    chosen = choice_for(given.get("env") if factory is None else factory, given)
    return {**chosen.settings, "chosen": chosen.when, **given, "method": chosen.method}


def setting_names(methods: Iterable[str] = ()) -> set[str]:
    """Return the flat names of all settings of `rpsp train`.

    Args:
        methods: names of methods that are not in the table, whose settings are included as well.
    """
    rows = [*METHODS.values(), *map(find_method, methods)]
    own = (field_names(TrainConfig) - {"sensors", "settings"}) | field_names(Sensors)
    return own.union(*(row.known for row in rows))


def check_names(given: Collection[str], known: Collection[str], where: str = "") -> None:
    """Raise `UsageError` if a name is not among the known ones. The message suggests the most similar name."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; `rpsp train --help` lists all settings."
            raise UsageError(f"{where}{name}: there is no such setting{hint}")


MAX_TOML = 1 << 20  # maximum size of a configuration file in bytes


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read the settings in a TOML file. Raises `UsageError` if it cannot be read."""
    try:
        if (size := Path(path).stat().st_size) > MAX_TOML:
            raise UsageError(
                f"config: {str(path)!r} has {size} bytes, more than {MAX_TOML}; it is not a configuration file."
            )
        with Path(path).open("rb") as file:
            return tomllib.loads(file.read(MAX_TOML).decode())
    except OSError as error:
        raise UsageError(f"config: {str(path)!r} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"config: {str(path)!r} is not TOML ({error}).") from error


def usual_samples(env: str | None, method: Method | None = None, limit: int = 1000) -> int:
    """Return the default number of environment steps per iteration.

    This is the paper's value on its tasks, otherwise ten episodes, but 2000 to 10000 steps. A method may have a smaller
    maximum. The result is at least one episode.

    Args:
        env: the Gymnasium id.
        method: the method. Default: ignore the maximum of the method.
        limit: maximum length of an episode in steps.
    """
    task = TASKS.get(env or "")
    usual = task.batch_samples if task else max(limit, min(10_000, max(2_000, 10 * limit)))
    return usual if method is None or method.samples is None else max(limit, min(usual, method.samples))


def find_method(name: str) -> Method:
    """Return a method by its name in `METHODS`, or a user's own method by `package.module:attribute`.

    Raises:
        UsageError: if there is no such method, or it cannot be imported.
    """
    if ":" in name:
        found = _imported("method", name)
        if not isinstance(found, Method):
            raise UsageError(f"method: {name!r} is a {type(found).__name__}, not an rpsp.Method.")
        return dataclasses.replace(found, name=name)
    return METHODS[_one_of("method", name, METHODS)]


def find_belief(kind: str | Belief) -> Belief:
    """Return a belief with its default settings.

    Args:
        kind: the `kind` of an imported subclass of `Belief`, `package.module:attribute` of a belief or its class, or a
            belief, which is returned as it is.

    Raises:
        UsageError: if there is no such belief, or it cannot be imported.
    """
    if isinstance(kind, Belief):
        return kind
    kinds = known_beliefs()
    if isinstance(kind, str) and ":" in kind and kind not in kinds:
        found = _imported("kind", kind)
        if isinstance(found, type) and issubclass(found, Belief):
            return _with_defaults(found, kind)
        if not isinstance(found, Belief):
            raise UsageError(f"kind: {kind!r} is a {type(found).__name__}, not an rpsp.Belief.")
        return found
    return _with_defaults(kinds[_one_of("kind", kind, kinds)], kind)


def _with_defaults(cls: type[Belief], kind: str) -> Belief:
    try:
        return cls()
    except TypeError as error:  # a field without a default
        raise UsageError(
            f"kind: {kind!r} cannot be made without settings ({error}); give an instance of it."
        ) from error


def known_beliefs() -> dict[str, type[Belief]]:
    """Return the imported subclasses of `Belief` by kind.

    Of several classes of one kind, that of the library counts, and among a user's own the one defined last, as in a
    notebook.
    """
    found, left = [], [Belief]
    while left:
        subclasses = left.pop(0).__subclasses__()
        found, left = found + subclasses, left + subclasses
    ours = [cls for cls in found if cls.__module__.startswith("rpsp.filters.")]
    known = {cls.kind: cls for cls in (*found, *ours)}
    return {kind: cls for kind, cls in known.items() if not inspect.isabstract(cls)}


def with_settings(belief: Belief, given: Mapping[str, Any]) -> Belief:
    """Return a belief with some settings replaced.

    Args:
        belief: the belief.
        given: values by name. Numbers may be those of numpy.

    Raises:
        UsageError: if the belief does not have a setting, or a value has the wrong type or is out of range.
    """
    known = merged([belief], belief.kind)
    values = {name: setting.value for name, setting in known.items()}
    for name, value in given.items():
        values[name] = checked(name, value, known[_one_of("setting", name, known)].type)
    return dataclasses.replace(belief, **values)


def fit_settings(kind: str) -> Any:
    """Return the default settings of a belief, as a frozen dataclass with help texts."""
    known = merged([find_belief(kind)], kind)
    return settings_class(known)(**{name: setting.value for name, setting in known.items()})


def _one_of(field: str, name: Any, known: Collection[str]) -> str:
    """Return the name. Raises `UsageError` with the most similar name if it is not among the known ones."""
    if not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(str(name).lower(), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        own = "" if field == "setting" else "; give your own as package.module:attribute"
        raise UsageError(f"{field}: {name!r} is not one of {', '.join(known)}{hint}{own}.")
    return name


def _imported(field: str, name: str) -> Any:
    """Return an attribute by `package.module:attribute`."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except UsageError as error:  # a method of the module that cannot be composed
        raise UsageError(f"{field}: {name!r} cannot be used: {error}") from error
    except Exception as error:  # a user's module may raise anything
        raise UsageError(f"{field}: {name!r} cannot be imported ({error}); give package.module:attribute.") from error


def check_values(config: TrainConfig) -> None:
    """Check the types of all values: a flag can be NaN, and Python code can pass anything.

    Raises:
        UsageError: if a value does not have the type of its setting.
    """
    env_args.check(config.sensors.env_args)
    for part in (config, config.sensors, config.settings):
        for name, hint in _hints(type(part)).items():
            if name not in ("sensors", "settings"):
                checked(name, getattr(part, name), hint)


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(cls).items() if name in field_names(cls)}


def field_names(cls: type) -> set[str]:
    """Return the names of the fields of a dataclass."""
    return {f.name for f in dataclasses.fields(cls)}
