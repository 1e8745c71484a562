"""The files of a checkpoint, state.safetensors and manifest.json: written from a training state, checked and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rpsp.algorithms.base import AbstractAlgorithm
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.data.files import read_bytes
from rpsp.data.scaling import Encoding
from rpsp.errors import FileFormatError
from rpsp.experiments.checkpoints import FORMAT, check_fit, format_of, parse_tree, tree_bytes
from rpsp.training.state import Training

NEW_COUNTERS = "error_ratio", "refit_from_iteration", "refits_rejected"
"""Counters that checkpoints of 0.4.0 do not contain."""
COUNTERS = "iteration", "samples", "rows", "astray", "halvings", *NEW_COUNTERS
"""The counters of a training state that checkpoints contain."""
OLD_KEY = ((2,), np.dtype(np.uint32))
"""Shape and type of the random key that PPO and SAC kept in their memory up to version 0.4.0; it is not used any more."""


def checkpoint_files(training: Training) -> dict[str, bytes]:
    """Return the content of the files of a checkpoint by name."""
    memory = tuple(map(_plain, jax.tree.leaves(training.memory)))
    tree = (training.agent, training.scaling, training.recent, memory, training.sound)
    counters = {name: getattr(training, name) for name in COUNTERS}
    data = tree_bytes(tree, counters)
    return {"state.safetensors": data, "manifest.json": _manifest(data, counters)}


def read_training(checkpoint: Path, algorithm: AbstractAlgorithm) -> Training:
    """Read and check a checkpoint. The algorithm's memory gets the structure that `algorithm.init` returns.

    Args:
        checkpoint: the directory of the checkpoint.
        algorithm: the algorithm of the run.

    Raises:
        FileFormatError: if the checkpoint is damaged or belongs to another method.
    """
    path, (agent, scaling, recent, leaves, sound), extra = parse_checkpoint(checkpoint)
    template = algorithm.init(agent, key=jax.random.key(0))  # only its structure is used
    shapes = _shapes(map(_plain, jax.tree.leaves(template)))
    if _shapes(leaves) != shapes:
        leaves = [x for x in leaves if (x.shape, x.dtype) != OLD_KEY]
    if _shapes(leaves) != shapes:
        raise FileFormatError(
            f"{path}: its optimiser state does not fit this method; use the version of rpsp that wrote it."
        )
    leaves = [_like(x, there) for x, there in zip(leaves, jax.tree.leaves(template), strict=True)]
    memory = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return Training(
        agent=agent,
        memory=memory,
        scaling=scaling,
        recent=recent,
        sound=sound,
        **{name: extra[name] for name in COUNTERS if name in extra},
    )


def parse_checkpoint(checkpoint: Path) -> tuple[Path, Any, dict[str, Any]]:
    """Read and check the files of a checkpoint.

    Args:
        checkpoint: the directory of the checkpoint. Its name is the number of iterations.

    Returns:
        The path of its state.safetensors, the tree in it, and the counters.

    Raises:
        FileFormatError: if the checkpoint is damaged.
    """
    number, path = int(checkpoint.name), checkpoint / "state.safetensors"
    data, described = read_bytes(path), read_bytes(path.with_name("manifest.json"), 1 << 16)
    if hashlib.sha256(data).hexdigest().encode() not in described:
        raise FileFormatError(f"{path}: its contents do not match its checksum; one of its files is damaged.")
    tree, extra = parse_tree(data, path)
    counts = [extra.get(name, 0 if name in NEW_COUNTERS else None) for name in COUNTERS]
    if not all(isinstance(n, int | float) and 0 <= n < 2**60 for n in counts) or counts[0] != number:
        raise FileFormatError(f"{path}: is damaged: its counters {counts} do not fit checkpoint {number}.")
    if described != _manifest(data, extra, format_of(data)):
        raise FileFormatError(f"{path.with_name('manifest.json')}: is damaged.")
    try:
        _check_tree(tree)
    except (TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path}: is not a checkpoint of a training run that this version of rpsp can use ({error})."
        ) from error
    return path, tree, extra


def _shapes(leaves: Iterable[np.ndarray]) -> list[Any]:
    return [(x.shape, x.dtype) for x in leaves]


def _manifest(data: bytes, counters: Mapping[str, Any], format: int = FORMAT) -> bytes:
    """Return the content of manifest.json for a checkpoint. Reading compares it byte for byte."""
    known = {name: counters[name] for name in COUNTERS if name in counters}
    content = {"format": format, **known, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return (json.dumps(content, indent=2) + "\n").encode()


def _check_tree(tree: Any) -> None:
    """Raise `TypeError` or `ValueError` if a checkpoint does not have the types and shapes that `save` writes."""
    agent, scaling, recent, memory, sound = tree
    kinds = (
        (agent, Agent),
        (sound, Agent),
        (scaling, Encoding),
        *((b, Batch) for b in recent),
        *((m, np.ndarray) for m in memory),
    )
    for part, kind in kinds:
        if not isinstance(part, kind):
            raise TypeError(f"it contains a {type(part).__name__} in the wrong position")
    for batch in recent:
        shapes = [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(batch)]
        if {shape[:2] for shape in shapes} != {batch.mask.shape} or max(map(len, shapes)) > 3:
            raise ValueError("its episodes differ in shape")
    for one in (agent, sound):
        check_fit(one.filter, scaling, None, one.policy)


def _plain(leaf: Any) -> np.ndarray:
    """Convert a leaf of an algorithm's memory to a numpy array. Keys become their data."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _like(leaf: np.ndarray, template: Any) -> Any:
    """Convert a saved array to the type of the leaf in the template: a key, a jax array or a numpy array."""
    if _is_key(template):
        return jax.random.wrap_key_data(jnp.asarray(leaf))
    return jnp.asarray(leaf) if isinstance(template, jax.Array) else leaf


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
