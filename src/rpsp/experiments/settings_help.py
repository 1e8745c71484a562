"""All settings of `rpsp.train` with their defaults, as text for `help(rpsp.train)`."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from rpsp.experiments.config import Sensors, TrainConfig
from rpsp.experiments.methods import METHODS
from rpsp.experiments.settings import documentation

ARGUMENTS = {"env", "method", "out", "sensors", "settings", "chosen", "json", "quiet", "config"}
"""Fields that are arguments of `rpsp.train`, hold other settings, or belong to the command line."""
WIDTH = 112


def settings_text() -> str:
    """Return a list of all settings: those of every method, then those of each method's parts with its defaults."""
    lines = ["Settings of every method:"]
    for cls in (TrainConfig, Sensors):
        texts = documentation(cls)
        for field in dataclasses.fields(cls):
            if field.name not in ARGUMENTS:
                lines += _entry(field.name, repr(field.default), texts.get(field.name, ""))
    lines += ["", "Settings that depend on the method (default; other defaults by method):"]
    for name, (usual, others, text, few) in _by_setting():
        default = usual + "".join(f"; {value}: {', '.join(methods)}" for value, methods in others.items())
        lines += _entry(name, default + (f"; only {', '.join(few)}" if few else ""), text)
    return "\n".join(lines)


def _by_setting() -> Iterator[tuple[str, tuple[str, dict[str, list[str]], str, list[str]]]]:
    """Yield every setting with its usual default, other defaults by method, help, and the methods if few have it."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    texts: dict[str, str] = {}
    for row in METHODS.values():
        for name, setting in row.known.items():
            found[name][repr(setting.value)].append(row.name)
            texts.setdefault(name, setting.help)
    for name, defaults in found.items():
        usual, *others = sorted(defaults, key=lambda value: -len(defaults[value]))
        have = [method for methods in defaults.values() for method in methods]
        few = have if len(have) <= 4 and not others else []
        yield name, (usual, {value: defaults[value] for value in others}, texts[name], few)


def _entry(name: str, default: str, text: str) -> list[str]:
    first = f"    {name} = {default}"
    return [
        *textwrap.wrap(first, WIDTH, subsequent_indent=" " * 12),
        *textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8),
    ]


def with_settings(text: str | None) -> Any:
    """Return a docstring with the list of settings after its first sections."""
    return f"{text or ''}\n{textwrap.indent(settings_text(), '    ')}\n"
