"""Keyword arguments of environments as settings: from `name=value`, or a dict in Python, to what `rpsp.make` passes on.

A configuration holds them as strings, sorted by name, such as "forward_reward_weight=10". The value is JSON: a number, true,
false, or a list of numbers. Anything else is a string. Numbers without a fraction are passed on as integers.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rpsp.errors import UsageError

EXAMPLE = "give name=value, as in forward_reward_weight=10"
RESERVED = {"render_mode": "it is set by the commands themselves"}
"""Arguments of environments that are not settings of a run, and why."""


def canonical(given: Any) -> tuple[str, ...]:
    """Return arguments as they are kept in a configuration.

    Args:
        given: strings `name=value`, or a mapping from names to values.

    Raises:
        UsageError: if it is neither, or a value is not a number, true or false, a string, or a list of numbers.
    """
    return tuple(f"{name}={_text(name, value)}" for name, value in parsed(given).items())


def parsed(given: Any) -> dict[str, Any]:
    """Return arguments as a dict of plain values, sorted by name. Takes and raises what `canonical` does."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(one, str) for one in given):
        pairs = [_pair(one) for one in given]
    else:
        raise UsageError(f"env_args: {given!r} is neither a dict nor a list of strings; {EXAMPLE}.")
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"env_args: {name!r} is not the name of an argument; {EXAMPLE}.")
        if name in found:
            raise UsageError(f"env_args: {name} is given twice; give it once.")
        found[name] = _plain(name, value)
    return dict(sorted(found.items()))


def check(given: Any) -> None:
    """Raise `UsageError` unless these are arguments that can be passed to an environment."""
    from rpsp.envs.make import make  # start-up time of --help: imports gymnasium and MuJoCo

    own = inspect.signature(make).parameters
    for name in parsed(given):
        if name in RESERVED or name in own:
            why = RESERVED.get(name, "it is a setting of its own, or none of the environment")
            raise UsageError(f"env_args: {name} cannot be given here, because {why}; leave it out.")


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"env_args: {text!r} has no value; {EXAMPLE}.")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value


def _plain(name: str, value: Any) -> Any:
    """Return a value as plain Python, or raise `UsageError`."""
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value  # numbers of numpy
    if isinstance(value, bool | str):
        return value
    if _finite(value):
        return _whole(value)
    if isinstance(value, list | tuple) and all(_finite(one) for one in value):
        return [_whole(one) for one in value]
    raise UsageError(
        f"env_args: {name} is {value!r}; give a finite number, true or false, a string, or a list of numbers."
    )


def _whole(value: float) -> float:
    """Return the same number, as an integer if it is one: 10.0 and 10 are one setting."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text(name: str, value: Any) -> str:
    """Return the text that `_pair` reads as this value."""
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    # A string that looks like a number, such as "10", needs its quotes.
    return value if _pair(f"{name}={value}")[1] == value else json.dumps(value)
