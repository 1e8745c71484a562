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
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from rpsp.errors import UsageError
from rpsp.experiments.config import FitConfig, Sensors, TrainConfig

PLAIN = (bool, int, float, str, types.NoneType)
TAKEN = {f.name for cls in (TrainConfig, Sensors, FitConfig) for f in dataclasses.fields(cls)} | {"held_out", "verbose"}
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
    """Return the settings of one part by name, in the order of its fields.

    Args:
        part: an instance of a dataclass or of an Equinox module.
    """
    kinds, texts = _types(type(part)), documentation(type(part))
    return {name: Setting(name, kind, getattr(part, name), texts.get(name, "")) for name, kind in kinds.items()}


def merged(parts: Sequence[Any], owner: str) -> dict[str, Setting]:
    """Return the settings of several parts by name.

    Args:
        parts: instances of dataclasses or of Equinox modules. The help text of the first one that has a setting is used.
        owner: the name of the method, for error messages.

    Raises:
        UsageError: if two parts have a setting of the same name but another type or value, or a part has a setting with
            the name of one that does not belong to a method.
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
    if not isinstance(field.type, str):
        return field.type
    for base in cls.__mro__:
        if field.name in vars(base).get("__annotations__", {}):
            names = {**vars(typing), **vars(sys.modules[base.__module__])}
            try:
                return eval(field.type, names, dict(vars(base)))  # noqa: S307 - the source of an imported class
            except Exception:  # an annotation may be any expression
                return None
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
    """Return the docstrings of the fields of a class: the strings that follow them in its source."""
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
                    texts[statement.target.id] = inspect.cleandoc(value.value)
    return texts
