"""Settings as data: the fields of a method's parts, under flat names, with types, values and help texts.

The parts are a belief, the algorithm (or those that it is composed of) and the loop's settings. A field of a plain type
(numbers, booleans, strings, literals, and tuples of them) is a setting. If several parts have a field of the same name, it
is one setting, which changes all of them; they must then have the same value in the row.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import numbers
import operator
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from rpsp.errors import UsageError
from rpsp.experiments.config import FitConfig, Sensors, TrainConfig

PLAIN = (bool, int, float, str, types.NoneType)
ARGUMENTS = {"held_out", "verbose", "callbacks"}
TAKEN = {f.name for cls in (TrainConfig, Sensors, FitConfig) for f in dataclasses.fields(cls)} | ARGUMENTS
"""Names that a part cannot use: the settings of `rpsp train`, `rpsp fit` and `PredictiveStateModel` that all methods and
beliefs have."""


class Setting(NamedTuple):
    """One setting of a method."""

    name: str
    type: Any
    value: Any
    """The value in the method."""
    help: str


def settings_of(part: Any) -> dict[str, Setting]:
    """Return the settings of one part by name, in the order of its fields. Numbers of numpy become those of Python.

    Args:
        part: an instance of a dataclass or of an Equinox module.

    Raises:
        UsageError: if a value does not have the type of its field.
    """
    kinds, texts = _types(type(part)), documentation(type(part))
    values = {name: checked(f"{type(part).__name__}.{name}", getattr(part, name), kind) for name, kind in kinds.items()}
    return {name: Setting(name, kind, values[name], texts.get(name, "")) for name, kind in kinds.items()}


def merged(parts: Sequence[Any], owner: str) -> dict[str, Setting]:
    """Return the settings of several parts by name.

    Args:
        parts: instances of dataclasses or of Equinox modules. The help text of the first one that has a setting is used.
        owner: the name of the method, for error messages.

    Raises:
        UsageError: if two parts have a setting of the same name but another type or value, a part has a setting with the
            name of one that does not belong to a method, or a value has a wrong type.
    """
    found: dict[str, Setting] = {}
    homes: dict[str, str] = {}
    for part in parts:
        for name, setting in settings_of(part).items():
            if name in TAKEN:
                raise UsageError(
                    f"method: {owner!r} cannot be used: {name} is a field of {type(part).__name__}, and a setting of "
                    "every method; rename the field."
                )
            known = found.setdefault(name, setting)
            home = homes.setdefault(name, type(part).__name__)
            if known.type != setting.type or known.value != setting.value:
                raise UsageError(
                    f"method: {owner!r} is ambiguous: {name} is {known.value!r} in {home} and {setting.value!r} in "
                    f"{type(part).__name__}; give both the same value, or rename one of the fields."
                )
    return found


def settings_class(settings: Mapping[str, Setting]) -> type:
    """Return the frozen dataclass with these settings as fields, and their help texts as tyro reads them.

    Methods with the same settings have the same class, whatever the values are.
    """
    return _class(tuple((s.name, s.type, s.help) for s in settings.values()))


@functools.cache
def _class(fields: tuple[tuple[str, Any, str], ...]) -> type:
    annotated = [(name, Annotated[kind, tyro.conf.arg(help=text)]) for name, kind, text in fields]
    doc = {"__doc__": "Settings of the method. They depend on --method."}
    return dataclasses.make_dataclass("Settings", annotated, frozen=True, namespace=doc)


# ---------------------------------------------------------------------------------------------------------------------
# Types of values
# ---------------------------------------------------------------------------------------------------------------------

MAX_FLOAT = sys.float_info.max  # larger values are infinite, or whole numbers that no float can represent
ONE = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a string"}
SEVERAL = {int: "whole numbers", float: "finite numbers", bool: "true or false values", str: "strings"}


def checked(name: str, value: Any, kind: Any) -> Any:
    """Return a value converted to the type of a setting. Numbers and arrays of numpy and jax become those of Python.

    Args:
        name: the name of the setting, for error messages.
        value: the value; a string "none" is None where the type allows it, because TOML has no null value.
        kind: the type.

    Raises:
        UsageError: if the value does not have the type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return checked(name, value, arguments[0])
    if origin in (types.UnionType, typing.Union):
        if types.NoneType in arguments and (value is None or (isinstance(value, str) and value == "none")):
            return None
        *others, last = (a for a in arguments if a is not types.NoneType)
        for other in others:
            with suppress(UsageError):
                return checked(name, value, other)
        return checked(name, value, last)
    plain: Any = value.tolist() if hasattr(value, "tolist") else value
    if origin is Literal:
        if plain not in arguments:
            raise UsageError(f"{name}: {value!r} is not one of {', '.join(map(str, arguments))}.")
        return plain
    if origin is tuple:
        if isinstance(plain, list | tuple):
            with suppress(UsageError):
                return tuple(checked(name, item, arguments[0]) for item in plain)
        raise UsageError(f"{name}: {value!r} is not a list of {SEVERAL.get(arguments[0], arguments[0])}.")
    if kind is float:
        real: Any = plain if isinstance(plain, numbers.Real) and not isinstance(plain, bool) else None
        if real is not None and -MAX_FLOAT <= real <= MAX_FLOAT:
            return float(real)
    elif kind is int:
        if isinstance(plain, numbers.Integral) and not isinstance(plain, bool):
            return operator.index(plain)
    elif isinstance(plain, kind):
        return plain
    raise UsageError(f"{name}: {value!r} is not {ONE.get(kind, kind)}.")


# ---------------------------------------------------------------------------------------------------------------------
# Reading a class
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types of the fields that are settings, by name."""
    found = {}
    for field in dataclasses.fields(cls):
        kind = _evaluated(field, cls)
        if field.init and is_plain(kind):
            found[field.name] = kind
    return found


def _evaluated(field: dataclasses.Field[Any], cls: type) -> Any:
    """Return the type of a field. Annotations may be strings; one that cannot be evaluated is no plain type."""
    home = next((base for base in cls.__mro__ if field.name in vars(base).get("__annotations__", {})), cls)
    names = vars(typing) | vars(sys.modules.get(home.__module__, typing))
    # One field at a time: another field may name a type that is imported for type checkers only.
    alone = types.SimpleNamespace(__annotations__={field.name: field.type})
    try:
        return typing.get_type_hints(alone, names, dict(vars(home)))[field.name]
    except Exception:  # an annotation may be any expression
        return None


def is_plain(kind: Any) -> bool:
    """Return whether values of this type can be given by a flag and stored as JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return True
    if origin in (types.UnionType, typing.Union):
        return all(is_plain(argument) for argument in arguments)
    if origin is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and arguments[0] in PLAIN
    return kind in PLAIN


@functools.cache
def documentation(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class: the strings that follow them in its source, each as one line."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # built-in, or defined in an interactive session
            continue
        body = getattr(tree, "body", [])
        for statement, following in itertools.pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                value = following.value if isinstance(following, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    texts[statement.target.id] = " ".join(value.value.split())
    return texts
