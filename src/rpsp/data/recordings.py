"""Load and save recorded episodes: `.npz` files, and Minari data sets if Minari is installed.

An `.npz` recording has three arrays: `observations` (all episodes concatenated, each starting with its reset
observation), `actions` (all episodes concatenated) and `lengths` (the number of actions of each episode). It contains
no pickled objects.
"""

# Minari has no stubs.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import io
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rpsp.data.episodes import Episode, as_episodes
from rpsp.data.files import read_bytes, write_bytes
from rpsp.data.logs import is_log
from rpsp.errors import FileFormatError, StorageError, UsageError

MINARI = "minari:"
"""Prefix of the names of Minari data sets."""
MAX_UNPACKED, MAX_RATIO = 64 << 20, 100
"""A recording is refused if its unpacked size exceeds both this many bytes and this many times its packed size.
Such files are made to exhaust memory."""
UNREADABLE = (
    ValueError, EOFError, OSError, MemoryError, NotImplementedError, RuntimeError, RecursionError, SyntaxError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""Exceptions that zipfile and NumPy raise on damaged or foreign files."""


def load_episodes(source: str | Path, *, gaps: bool = False) -> list[Episode]:
    """Load recorded episodes from an `.npz` file or a Minari data set.

    For CSV and Parquet files see `read_log`.

    Args:
        source: path of an `.npz` file written by `save_episodes`, or `minari:ID` for a local Minari data set.
        gaps: whether observations may be NaN, which means that a reading is missing.

    Returns:
        The episodes: observations and actions, without rewards.

    Raises:
        FileFormatError: if the file or data set is missing, damaged or in another format.
        UsageError: if Minari is not installed, or the data are not numeric vectors.
    """
    if str(source).startswith(MINARI):
        return _load_minari(str(source).removeprefix(MINARI))
    path = Path(source)
    data = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > max(MAX_UNPACKED, MAX_RATIO * len(data)):
            raise FileFormatError(f"{path}: has {len(data)} bytes and says it holds {size}; not unpacked.")
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            missing = [name for name in ("observations", "actions", "lengths") if name not in file.files]
            if missing:
                raise FileFormatError(
                    f"{path}: has no array {missing[0]!r} (it has {', '.join(file.files) or 'none'}); a recording "
                    "holds observations, actions and lengths, as rpsp.save_episodes writes them."
                )
            observations, actions, lengths = (file[name] for name in ("observations", "actions", "lengths"))
    except UNREADABLE as error:
        if path.suffix != ".npz":
            raise FileFormatError(other_format(path)) from error
        raise FileFormatError(f"{path}: is not an .npz recording, or is damaged; record it again.") from error
    if observations.ndim == 0 or actions.ndim == 0:
        raise FileFormatError(f"{path}: 'observations' and 'actions' must have one row per step.")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any() or (lengths > len(actions)).any():
        raise FileFormatError(
            f"{path}: 'lengths' must be a list of whole numbers, the number of actions of each episode."
        )
    lengths = lengths.astype(np.int64)
    if len(actions) != lengths.sum() or len(observations) != lengths.sum() + len(lengths):
        raise FileFormatError(
            f"{path}: {len(lengths)} episodes of {lengths.sum()} actions need {lengths.sum()} actions and "
            f"{lengths.sum() + len(lengths)} observations; it has {len(actions)} and {len(observations)}."
        )
    ends = np.cumsum(lengths)
    observed = np.split(observations, (ends + np.arange(1, len(lengths) + 1))[:-1])
    return as_episodes(list(zip(observed, np.split(actions, ends[:-1]), strict=True)), gaps=gaps)


def other_format(path: str | Path) -> str:
    """Return the error message for a recording in an unsupported format."""
    if is_log(path):
        return (
            f"{path}: is a log, whose columns must be named; use `rpsp fit {path} --observations SENSOR,… --actions "
            "COMMAND,…`, or rpsp.read_log."
        )
    return (
        f"{path}: is not an .npz recording; .npz, .csv and .parquet files and minari:ID are read, so read it with numpy, "
        "split it into (observations, actions) and write those with rpsp.save_episodes."
    )


def save_episodes(target: str | Path, episodes: Sequence[Any], *, overwrite: bool = False, gaps: bool = False) -> None:
    """Save episodes to an `.npz` file or a Minari data set.

    An `.npz` file holds observations and actions. A Minari data set also holds rewards and how each episode ended.

    Args:
        target: path of an `.npz` file, or `minari:ID` for a new Minari data set.
        episodes: as for `as_episodes`.
        overwrite: replace an existing `.npz` file. Default: False.
        gaps: whether observations may be NaN, which means that a reading is missing.

    Raises:
        UsageError: if the path does not end in `.npz`, the episodes are invalid, or Minari is not installed.
        StorageError: if the target exists or cannot be written.
    """
    episodes = as_episodes(episodes, gaps=gaps)
    if str(target).startswith(MINARI):
        return _save_minari(str(target).removeprefix(MINARI), episodes)
    path = Path(target)
    if path.suffix != ".npz":
        raise UsageError(f"path: {str(path)!r} does not end in .npz; recordings are .npz files or minari:ID.")
    if path.exists() and not overwrite:
        raise StorageError(f"{path}: exists already; choose another path or pass overwrite=True.")
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        observations=np.concatenate([e.observations for e in episodes]),
        actions=np.concatenate([e.actions for e in episodes]),
        lengths=np.array([len(e) for e in episodes]),
    )
    write_bytes(path, buffer.getvalue())


def _minari() -> Any:
    try:
        import minari  # optional extra # pyright: ignore[reportMissingImports]
        import minari.data_collector  # optional extra # pyright: ignore[reportMissingImports, reportUnusedImport]
    except ImportError as error:
        raise UsageError("minari: is not installed; pip install 'rpsp[minari]'.") from error
    return minari


def _load_minari(name: str) -> list[Episode]:
    minari = _minari()
    try:
        dataset = minari.load_dataset(name, download=False)
    except (FileNotFoundError, ValueError, OSError) as error:
        raise FileFormatError(
            f"minari:{name}: no such data set on this machine; see `minari list local` and `minari download`."
        ) from error
    episodes = [(e.observations, e.actions) for e in dataset.iterate_episodes()]
    if any(isinstance(part, dict | tuple) for pair in episodes for part in pair):
        raise UsageError(f"minari:{name}: has Dict or Tuple spaces; flatten them to vectors first.")
    return as_episodes(episodes)


def _save_minari(name: str, episodes: list[Episode]) -> None:
    import gymnasium  # start-up time: not needed for .npz files

    minari = _minari()
    if name in minari.list_local_datasets():
        raise StorageError(f"minari:{name}: exists already; choose another name, as in {name[:-1]}1.")
    low = np.full(episodes[0].observations.shape[1], -np.inf)
    span = np.full(episodes[0].actions.shape[1], np.inf)
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=i,
            observations=e.observations,
            actions=e.actions,
            rewards=e.rewards if e.rewards is not None else np.zeros(len(e)),
            terminations=np.append(np.zeros(len(e) - 1, bool), e.terminated),
            truncations=np.append(np.zeros(len(e) - 1, bool), not e.terminated),
        )
        for i, e in enumerate(episodes)
    ]
    with warnings.catch_warnings():
        # Minari warns that description, author and environment are missing.
        warnings.simplefilter("ignore", UserWarning)
        minari.create_dataset_from_buffers(
            name,
            buffers,
            observation_space=gymnasium.spaces.Box(low, -low, dtype=np.float64),
            action_space=gymnasium.spaces.Box(-span, span, dtype=np.float64),
        )
