"""Save and load trees of arrays as safetensors files with a checksum. Reading a file cannot run code.

A file contains the arrays of a tree and a JSON description of its structure: class names and static values. Reading
checks the SHA-256 of all arrays, creates only classes from a fixed list, and never unpickles. Writing is atomic.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rpsp.algorithms.networks import Network, ResidualNetwork
from rpsp.algorithms.policies import Agent, CategoricalPolicy, GaussianPolicy, ProductPolicy, SquashedPolicy
from rpsp.data.batches import Batch
from rpsp.data.files import read_bytes, write_bytes
from rpsp.data.scaling import ImageBasis, Joined, OneHot, Scaling, encoded_size
from rpsp.errors import FileFormatError, StorageError, UsageError
from rpsp.experiments import methods  # noqa: F401 - the filters of the library become known by being imported
from rpsp.filters.base import AbstractFilter

FORMAT = 3
"""Format number of the files that are written."""
READABLE_FORMATS = 2, 3
"""Format numbers of the files that can be read: 2 is that of rpsp 0.4.0."""
RENAMED_IN_3 = {
    "Batch": {
        "seen": "previous_observations",
        "executed": "previous_actions",
        "actions": "drawn_actions",
        "performed": "actions",
    }
}
"""Fields of format 2 that have other names in format 3, by class."""
ADDED: dict[str, dict[str, Any]] = {
    "KernelBayesFilter": {"frozen": {"tuple": []}},
    "CategoricalPolicy": {"allowed_above": {"value": None}},
    "Network": {"view": {"value": None}},
}
"""Fields that came later and are not in every file, by class, with the description of their value in older files."""
MAX_HEADER = 16 << 20  # maximum bytes of a safetensors header; ours have a few thousand
MAX_SIZE = 100_000  # maximum dimension of a state or an observation; ours have a few hundred at most
PARTS: tuple[type, ...] = (
    eqx.nn.GRUCell,
    eqx.nn.Linear,
    Agent,
    Batch,
    CategoricalPolicy,
    GaussianPolicy,
    ImageBasis,
    Joined,
    Network,
    OneHot,
    ProductPolicy,
    ResidualNetwork,
    Scaling,
    SquashedPolicy,
)
"""The classes that a file may name in addition to filters and their parts."""


def readable() -> dict[str, type]:
    """Return the classes that a file may name, by name. Files that name other classes are rejected.

    These are `PARTS`, all imported subclasses of `AbstractFilter`, and the Equinox modules of the Python modules that
    define them, such as their features. Of several classes of one name the first in this order counts, and among a user's
    own the one defined last, as in a notebook.
    """
    filters = [cls for cls in _subclasses(AbstractFilter) if not inspect.isabstract(cls)]
    homes = {cls.__module__ for cls in filters}
    modules = list(_subclasses(eqx.Module))
    ours = [cls for cls in modules if cls.__module__.startswith("rpsp.filters.")]
    own = [cls for cls in modules if cls.__module__ in homes]
    return {cls.__name__: cls for cls in (*own, *ours, *PARTS)}


def _subclasses(base: type) -> Iterator[type]:
    """Yield all imported subclasses of a class, in the order of their definition, except those that Equinox derives."""
    for cls in base.__subclasses__():
        if (cls.__module__, cls.__qualname__) != (base.__module__, base.__qualname__):  # of `__init__`, by Equinox
            yield cls
            yield from _subclasses(cls)


def describe(
    tree: Any, arrays: dict[str, np.ndarray], name: str = "tree", known: Mapping[str, type] | None = None
) -> Any:
    """Return the JSON description of a tree.

    Args:
        tree: a tree of modules, tuples, arrays and plain values.
        arrays: receives the arrays of the tree, by their paths.
        name: the path of the tree.
        known: the classes that a file may name. Default: `readable()`.

    Raises:
        UsageError: if the tree contains a class that is not `readable`, or a value that cannot be saved.
    """
    known = readable() if known is None else known
    if isinstance(tree, eqx.Module):
        if known.get(type(tree).__name__) is not type(tree):
            raise UsageError(
                f"{type(tree).__name__}: cannot be saved, because files may name only filters and Equinox modules defined "
                "beside them, each under a name of its own; rename the class, or define it in the module of the filter."
            )
        fields = {
            f.name: describe(getattr(tree, f.name), arrays, f"{name}.{f.name}", known) for f in dataclasses.fields(tree)
        }
        return {"class": type(tree).__name__, "fields": fields}
    if isinstance(tree, np.ndarray | jax.Array):
        arrays[name] = np.asarray(tree, order="C")  # ascontiguousarray would turn a scalar into a vector
        return {"array": name, "jax": isinstance(tree, jax.Array)}
    if isinstance(tree, tuple):
        return {"tuple": [describe(x, arrays, f"{name}.{i}", known) for i, x in enumerate(tree)]}
    if isinstance(tree, bool | int | float | str | None):
        return {"value": tree}
    raise UsageError(f"{name}: cannot save a {type(tree).__name__}; use arrays, tuples and plain values.")


def rebuild(description: Any, arrays: dict[str, np.ndarray], known: Mapping[str, type] | None = None) -> Any:
    """Build the tree from the description that `describe` returned.

    Only classes that are `readable` are created, and their `__init__` is not called. Every array is removed from `arrays`
    when it is used, so that a small file cannot use one array a million times.
    """
    known = readable() if known is None else known
    if "array" in description:
        array = arrays.pop(description["array"])
        return jnp.asarray(array) if description["jax"] else array
    if "tuple" in description:
        return tuple(rebuild(x, arrays, known) for x in description["tuple"])
    if "value" in description:
        value = description["value"]
        if not isinstance(value, bool | int | float | str | None):
            raise TypeError(f"{value!r} is not a plain value")
        return value
    cls = known[description["class"]]
    expected = {f.name for f in dataclasses.fields(cls)}
    if set(description["fields"]) != expected:
        raise KeyError(f"the fields of {cls.__name__} do not match")
    module = object.__new__(cls)
    for name, value in description["fields"].items():
        object.__setattr__(module, name, rebuild(value, arrays, known))
    return module


def upgrade(description: Any, format: int) -> Any:
    """Convert the description of a tree in an older format to the present one.

    Args:
        description: what `describe` returned in the version that wrote the file.
        format: the format number of the file, one of `READABLE_FORMATS`.

    Returns:
        The description with today's fields. It names the same arrays.
    """
    if not isinstance(description, dict):
        return description
    if "tuple" in description:
        return {"tuple": [upgrade(x, format) for x in description["tuple"]]}
    if "class" in description:
        name = description["class"]
        renamed = RENAMED_IN_3.get(name, {}) if format < 3 else {}
        fields = {renamed.get(own, own): upgrade(x, format) for own, x in description["fields"].items()}
        return description | {"fields": ADDED.get(name, {}) | fields}
    return description


def write_tree(path: Path, tree: Any, extra: dict[str, Any], *, overwrite: bool = False) -> None:
    """Write a tree and additional JSON to one file, atomically.

    Raises:
        StorageError: if the file exists and `overwrite` is False, or it cannot be written.
    """
    if path.exists() and not overwrite:
        raise StorageError(f"{path}: already exists; choose another path or pass overwrite=True.")
    write_bytes(path, tree_bytes(tree, extra))


def tree_bytes(tree: Any, extra: dict[str, Any]) -> bytes:
    """Return a tree and additional JSON as the bytes of a safetensors file."""
    arrays: dict[str, np.ndarray] = {}
    header = {"format": FORMAT, "tree": describe(tree, arrays), "extra": extra, "sha256": digest(arrays)}
    return save(arrays, {"rpsp": json.dumps(header)})


def read_tree(path: Path) -> tuple[Any, dict[str, Any]]:
    """Read the tree and the additional JSON that `write_tree` wrote.

    Raises:
        FileFormatError: if the file is missing, damaged, or of another version.
    """
    return parse_tree(read_bytes(path), path)


def parse_tree(data: bytes, path: Path) -> tuple[Any, dict[str, Any]]:
    """Return the tree and the additional JSON in the bytes of a file. `path` is used in error messages."""
    try:
        length = int.from_bytes(data[:8], "little")
        if length > MAX_HEADER:
            raise ValueError("the header is too large")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["rpsp"])
        if not isinstance(header, dict):
            raise TypeError("there is no description")
        arrays = load(data)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise FileFormatError(f"{path}: is not an rpsp model file, or is truncated; save the model again.") from error
    if header.get("format") not in READABLE_FORMATS:
        raise FileFormatError(
            f"{path}: has format {header.get('format')!r}, this version of rpsp reads formats "
            f"{' and '.join(map(str, READABLE_FORMATS))}; save it again."
        )
    if header.get("sha256") != digest(arrays):
        raise FileFormatError(f"{path}: its contents do not match its checksum; the file is damaged, use another copy.")
    try:
        return rebuild(upgrade(header["tree"], header["format"]), arrays), dict(header["extra"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{path}: contains something that this version of rpsp does not know ({error}); save it again."
        ) from error


def format_of(data: bytes) -> int:
    """Return the format number of the bytes of a file that `parse_tree` has accepted."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["rpsp"])["format"]


def check_fit(filter: Any, observations: Any, action: int | None, policy: Any = None) -> None:
    """Check that the parts of a file fit together, by tracing one update, one prediction and one action.

    Args:
        filter: the filter.
        observations: the Scaling or OneHot of the observations.
        action: the dimension of an action. None: the dimension of the policy's actions.
        policy: the policy, if there is one.

    Raises:
        ValueError: if the parts do not fit together.
    """
    try:
        q = jax.eval_shape(filter.init)
        size = encoded_size(observations)
        if len(q.shape) != 1 or max(q.shape[0], size) > MAX_SIZE:
            raise ValueError(f"the state has shape {q.shape}, and observations have {size} dimensions")
        o, a = (jax.ShapeDtypeStruct((n or 0,), np.float32) for n in (size, action))
        if policy is not None:
            chosen = jax.eval_shape(lambda q: policy(q).sample(policy(q).mode()), q)
            a = chosen if action is None else a
            _same_shape("an action", chosen, a)
        _same_shape("an updated state", jax.eval_shape(filter.update, q, a, o), q)
        _same_shape("a prediction", jax.eval_shape(filter.predict, q, a), o)
    except Exception as error:  # values from an untrusted file can raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"its parts do not fit together: {why}") from error


def _same_shape(what: str, found: Any, expected: Any) -> None:
    if found.shape != expected.shape:
        raise ValueError(f"{what} has shape {found.shape}, not {expected.shape}")


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of all arrays, sorted by name."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        total.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        total.update(array.tobytes())
    return total.hexdigest()
