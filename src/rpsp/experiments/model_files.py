"""Files of `PredictiveStateModel`: safetensors with the settings and the errors beside the arrays."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.checkpoints import check_fit, encoded_size, read_tree, write_tree
from rpsp.experiments.configure import find_belief, known_beliefs, with_settings
from rpsp.experiments.settings import settings_of
from rpsp.experiments.upgrade import upgraded_model
from rpsp.filters.base import AbstractFilter
from rpsp.filters.belief import Belief
from rpsp.filters.uncertainty import AbstractUncertainty


class Contents(NamedTuple):
    """What was fitted."""

    filter: AbstractFilter
    observations: Scaling | OneHot
    """Encoding of observations."""
    actions: Scaling | OneHot
    """Encoding of actions."""
    uncertainty: AbstractUncertainty | None
    """None in files of 0.4.0."""


class Stored(NamedTuple):
    """A model as a file holds it."""

    belief: Belief
    arguments: dict[str, Any]
    """Arguments of `PredictiveStateModel` other than the belief and its settings."""
    contents: Contents
    errors: dict[str, list[float]]
    """Held-out errors of the model and the baselines."""


def write_model(path: Path, stored: Stored, *, overwrite: bool) -> None:
    """Write a model to a file.

    Args:
        path: the path of the file.
        stored: the model.
        overwrite: whether an existing file may be replaced.

    Raises:
        StorageError: if the file exists and `overwrite` is False, or it cannot be written.
        UsageError: if a file cannot represent the model.
    """
    belief = stored.belief
    settings = {name: setting.value for name, setting in settings_of(belief).items()}
    if type(belief) is not known_beliefs().get(belief.kind):
        raise UsageError(
            f"kind: {belief.kind!r} is also the kind of another class than {type(belief).__qualname__}, so the model could "
            "not be loaded; give the class a `kind` of its own."
        )
    others = {f.name: f.default for f in dataclasses.fields(belief) if f.init and f.name not in settings}
    if changed := [name for name, default in others.items() if getattr(belief, name) is not default]:
        raise UsageError(
            f"{changed[0]}: is not its default, and files contain only settings that are numbers, strings, True, False or "
            "tuples of them; make it such a setting, or the default of a subclass."
        )
    extra = {"kind": belief.kind, **stored.arguments, "settings": settings, "errors": stored.errors}
    write_tree(path, tuple(stored.contents), extra, overwrite=overwrite)


def read_model(path: Path) -> Stored:
    """Read a model that `write_model` wrote. Use it in a `file_of_this_version` block."""
    tree, extra = read_tree(path)
    if extra["kind"] not in known_beliefs():  # a file cannot make rpsp import a module
        raise UsageError(f"kind: {extra['kind']!r} is not known; import the module that defines it first")
    belief = find_belief(extra["kind"])
    belief = with_settings(belief, upgraded_model(extra, settings_of(belief)))
    arguments = {
        "seed": extra["seed"],
        "held_out": extra["held_out"],
        "missing": extra.get("missing"),
        "gate": extra.get("gate"),
    }
    filter, observations, actions, *rest = tree
    contents = Contents(filter, observations, actions, rest[0] if rest else None)
    if not isinstance(filter, AbstractFilter):
        raise TypeError("it contains no filter")
    if not isinstance(contents.uncertainty, AbstractUncertainty | None):
        raise TypeError(f"it contains a {type(contents.uncertainty).__name__} as uncertainty")
    errors = {str(name): [float(e) for e in errors] for name, errors in extra["errors"].items()}
    check_fit(filter, observations, encoded_size(actions))
    return Stored(belief, arguments, contents, errors)


@contextlib.contextmanager
def file_of_this_version(path: str | Path) -> Iterator[None]:
    """Report what the block finds wrong with a file's contents as a `FileFormatError`."""
    try:
        yield
    except (UsageError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path}: is not a model that this version of rpsp can use ({error}).") from error
