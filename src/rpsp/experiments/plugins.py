"""Modules of the user: import them, and name them in the commands that a run directory suggests."""

from __future__ import annotations

import importlib
from typing import Any

from rpsp.errors import UsageError
from rpsp.experiments.config import TrainConfig


def import_plugin(name: str | None) -> None:
    """Import a user's module, or several, such as "mine.tasks,mine.methods"."""
    for module in [] if name is None else name.split(","):
        try:
            importlib.import_module(module)
        except Exception as error:  # a user's module may raise anything
            raise UsageError(f"plugin: {module!r} cannot be imported ({error}); give the name of a module.") from error


def named_modules(plugin: Any, method: Any, env: Any) -> list[str]:
    """Return the modules that these settings name: plugins, and the modules of methods (or beliefs) and environments."""
    plugins = plugin.split(",") if isinstance(plugin, str) else []
    homes = [name.partition(":")[0] for name in (method, env) if isinstance(name, str) and ":" in name]
    return list(dict.fromkeys([*plugins, *homes]))


def plugin_flag(config: TrainConfig) -> list[str]:
    """Return the --plugin flag that a later command on this run needs.

    A file in a run directory cannot make rpsp import a module, so the user must name the modules again.
    """
    modules = named_modules(config.plugin, config.method, config.env)
    return ["--plugin", ",".join(modules)] if modules else []
