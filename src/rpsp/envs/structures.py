"""Structured spaces as flat rows: `Dict`, `Tuple`, `MultiDiscrete`, `MultiBinary` and any shape of `Box`.

`Flattened` is the only place where an environment's structure becomes flat. Everything behind it sees a 1-D `Box` (or
one `Discrete` symbol) of observations, and actions in a 1-D `Box`, a `Discrete`, a `MultiDiscrete` or a `MixedActions`
space.

Layout of observations: the leaves of the structure, depth first, the keys of a `Dict` sorted, each as in
`gymnasium.spaces.flatten`:

| leaf | entries | names |
|---|---|---|
| `Box` | its numbers in C order | `imu/gyro[2]`, `grid[1,0]` |
| `Discrete(n)` | one-hot, n entries | `gear=0`, `gear=1` |
| `MultiDiscrete` | the one-hot vectors of its entries | `dice[0]=4` |
| `MultiBinary` | its 0s and 1s in C order | `flags[3]` |
| image (`rpsp.envs.images`) | the pixels of a small image, grey or in colour | `camera[12,31]` |

Layout of actions: first the numbers of all boxes, then one whole number from 0 for each symbol, leaves in the same order.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from jaxtyping import Float
from numpy.typing import NDArray

from rpsp.envs.images import SMALL_GREY, ImageSettings, Pixels, pixels_of
from rpsp.errors import UsageError

MOST_DIMENSIONS = 3
"""Largest number of dimensions of a `Box` of observations: an image. Stacks of images are refused."""


MOST_ENTRIES = 1_000_000
"""Largest number of entries of a row, and of a space in a file."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A part of a structure that has no parts: a Box, a Discrete, a MultiDiscrete or a MultiBinary space."""

    path: tuple[str | int, ...]
    space: Space[Any]
    whole: str = "value"
    """Name of the whole structure."""
    pixels: Pixels | None = None
    """How an image becomes pixels; None if it is not an image."""

    @property
    def name(self) -> str:
        """The path as text, such as imu/gyro."""
        return "/".join(map(str, self.path)) or self.whole

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each symbol; empty for a Box."""
        if isinstance(self.space, Discrete):
            return (int(self.space.n),)
        if isinstance(self.space, MultiDiscrete):
            return tuple(int(n) for n in self.space.nvec.reshape(-1))
        return (2,) * self.count if isinstance(self.space, MultiBinary) else ()

    @cached_property
    def count(self) -> int:
        """Number of numbers or symbols."""
        return int(np.prod(self.space.shape or ()))

    @cached_property
    def start(self) -> NDArray[np.int64]:
        """The first value of each symbol."""
        if isinstance(self.space, MultiBinary):
            return np.zeros(self.count, np.int64)
        return np.asarray(getattr(self.space, "start", 0), np.int64).reshape(-1)

    def of(self, value: Any) -> Any:
        """Return this part of a value of the structure. Raises `UsageError` if it is missing."""
        for step, key in enumerate(self.path):
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                place = "/".join(map(str, self.path[: step + 1]))
                has = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
                raise UsageError(f"{place}: is missing; there is {has}; give every part of the space.") from error
        return value

    def items(self) -> list[str]:
        """Return a name for each number or symbol."""
        shape = self.space.shape or ()
        if not shape:
            return [self.name]
        return [f"{self.name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]


def leaves_of(space: Space[Any], what: str, path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """Yield the leaves of a structured space, in the order of the layout.

    Args:
        space: the space.
        what: "observations" or "actions", for messages.
        path: the path of the space in the whole structure.

    Raises:
        UsageError: if a part of the space is not supported.
    """
    if isinstance(space, Dict):
        for key, part in sorted(space.spaces.items()):
            yield from leaves_of(part, what, (*path, key))
    elif isinstance(space, Tuple):
        for i, part in enumerate(space.spaces):
            yield from leaves_of(part, what, (*path, i))
    else:
        _check_leaf(space, what, "/".join(map(str, path)))
        yield Leaf(path, space, what[:-1])


def _check_leaf(space: Space[Any], what: str, name: str) -> None:
    """Raise `UsageError` if a leaf is not supported."""
    where = f"{what} ({name})" if name else what
    if not isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
        raise UsageError(
            f"{where}: are in a {type(space).__name__} space, which has no fixed number of entries; give a Box, Discrete, "
            "MultiDiscrete, MultiBinary, Dict or Tuple space, by a wrapper where the environment is made"
        )
    if 0 in (space.shape or ()):
        raise UsageError(f"{where}: are in {_short(space)}, which is empty; give one or more numbers")
    if what == "observations" and len(space.shape or ()) > MOST_DIMENSIONS:
        raise UsageError(
            f"{where}: are in a {len(space.shape or ())}-D Box of shape {space.shape}, and at most {MOST_DIMENSIONS} "
            "dimensions are read (an image); give single frames: the belief remembers the earlier ones"
        )
    if what == "actions" and isinstance(space, Box) and space.dtype.kind != "f":
        raise UsageError(
            f"{where}: are whole numbers in a Box, {_short(space)}; give a Discrete or MultiDiscrete space, or a Box of "
            "float32 whose values the environment rounds"
        )


class Observations:
    """The flat layout of structured observations.

    Args:
        space: the space of the environment.
        images: size and colours of images.

    Raises:
        UsageError: if a part of the space is not supported.
    """

    def __init__(self, space: Space[Any], images: ImageSettings = SMALL_GREY):
        self.space, self.settings = space, images
        """The space of the environment."""
        self.leaves = [
            replace(leaf, pixels=pixels_of(leaf.space, images, leaf.name)) for leaf in leaves_of(space, "observations")
        ]
        if not self.leaves:
            raise UsageError(f"observations: are in {_short(space)}, which is empty; give one or more numbers")
        sizes = [_size(leaf) for leaf in self.leaves]
        if sum(sizes) > MOST_ENTRIES:
            raise UsageError(
                f"observations: have {sum(sizes):,} entries, more than {MOST_ENTRIES:,}, because symbols become one-hot; "
                "compute fewer numbers of them in a wrapper"
            )
        self._ends: list[int] = np.cumsum(sizes).tolist()
        self.names = [name for leaf in self.leaves for name in _entries(leaf)]
        """The name of every entry of a row."""
        bounds = [_bounds(leaf, size) for leaf, size in zip(self.leaves, sizes, strict=True)]
        self.dtype = _row_type(self.leaves)
        low, high = (np.concatenate(each).astype(self.dtype) for each in zip(*bounds, strict=True))
        self.flat = Box(low, high, dtype=self.dtype.type)
        """The space of the rows."""

    @property
    def images(self) -> list[tuple[range, Pixels, str]]:
        """The entries of each image, how it becomes them, and its name."""
        starts = [0, *self._ends[:-1]]
        each = zip(starts, self._ends, self.leaves, strict=True)
        return [(range(start, end), leaf.pixels, leaf.name) for start, end, leaf in each if leaf.pixels is not None]

    def flatten(self, value: Any, batch: tuple[int, ...] = ()) -> NDArray[Any]:
        """Return an observation as a flat row.

        Args:
            value: an observation of the environment.
            batch: the leading dimensions of every array in it: (n,) for n environments.

        Raises:
            UsageError: if a part is missing, or has another shape than its space, or a symbol is not one of its space.
        """
        row = np.empty((*batch, self._ends[-1]), self.dtype)
        start = 0
        for leaf, end in zip(self.leaves, self._ends, strict=True):
            given = np.asarray(leaf.of(value))
            if given.shape != (*batch, *(leaf.space.shape or ())):
                raise UsageError(
                    f"{leaf.name}: has shape {given.shape}, and its space is {_short(leaf.space)}; give "
                    f"shape {(*batch, *(leaf.space.shape or ()))}"
                )
            if leaf.pixels is not None:
                row[..., start:end] = leaf.pixels.rows(given, leaf.name)
                start = end
                continue
            flat = given.reshape(*batch, leaf.count)
            row[..., start:end] = _one_hot(leaf, flat) if leaf.sizes and not _binary(leaf) else flat
            start = end
        return row

    def batch_of(self, value: Any) -> tuple[int, ...] | None:
        """Return the leading dimensions of a value: () for one observation, (n,) for n; None if it is not of this space."""
        leaf = self.leaves[0]
        try:
            given = np.shape(leaf.of(value))
        except (UsageError, ValueError):
            return None
        own = tuple(leaf.space.shape or ())
        batch = given[: max(0, len(given) - len(own))]
        return batch if len(batch) <= 1 and given == (*batch, *own) else None

    def selected(self, observe: str) -> list[int]:
        """Return the entries that names or patterns select, in the order given.

        Args:
            observe: names separated by commas: of an entry (imu/gyro[2]), of a part (imu/gyro, imu), or a pattern with *
                and ?; or indices.

        Raises:
            UsageError: if a name selects nothing.
        """
        found: list[int] = []
        for wanted in re.split(r",(?![^\[]*\])", observe):
            wanted = wanted.strip()
            some = [int(wanted)] if re.fullmatch(r"-?\d+", wanted) else self._named(wanted)
            if not some:
                some_names = ", ".join(self.names[:8]) + (", …" if len(self.names) > 8 else "")
                raise UsageError(
                    f"observe={wanted!r} is the name of no observation; give all, indices, or names or patterns of "
                    f"{some_names}"
                )
            found += [index for index in some if index not in found]
        return found

    def _named(self, wanted: str) -> list[int]:
        if wanted in self.names:
            return [self.names.index(wanted)]
        below = [i for i, name in enumerate(self.names) if re.match(re.escape(wanted) + r"[/\[=]", name)]
        pattern = wanted.replace("[", "[[]")
        return below or [i for i, name in enumerate(self.names) if fnmatch.fnmatchcase(name, pattern)]


class MixedActions(Box):
    """Flat actions of a structure with numbers and symbols: the numbers, then one whole number from 0 for each symbol.

    Args:
        low: lower bounds of the numbers.
        high: upper bounds of the numbers.
        symbols: number of values of each symbol.
    """

    def __init__(self, low: NDArray[Any], high: NDArray[Any], symbols: Sequence[int]):
        self.symbols = tuple(symbols)
        last = np.array(self.symbols, np.float64) - 1
        super().__init__(np.append(low, 0 * last), np.append(high, last), dtype=np.float64)

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[Any]:
        """Return random numbers and symbols."""
        row = super().sample()
        first = len(row) - len(self.symbols)
        row[first:] = self.np_random.integers(0, self.symbols)
        return row


class Actions:
    """The flat layout of structured actions.

    Args:
        space: the space of the environment.

    Raises:
        UsageError: if a part of the space is not supported.
    """

    def __init__(self, space: Space[Any]):
        self.space = space
        """The space of the environment."""
        leaves = list(leaves_of(space, "actions"))
        if not leaves:
            raise UsageError(f"actions: are in {_short(space)}, which is empty; give one or more actions")
        self._boxes = [leaf for leaf in leaves if not leaf.sizes]
        self._symbols = [leaf for leaf in leaves if leaf.sizes]
        sizes = [n for leaf in self._symbols for n in leaf.sizes]
        self.names = [name for leaf in (*self._boxes, *self._symbols) for name in leaf.items()]
        """The name of every entry of a row."""
        low, high = (
            np.concatenate([np.zeros(0), *(getattr(leaf.space, bound).reshape(-1) for leaf in self._boxes)])
            for bound in ("low", "high")
        )
        if not sizes:
            dtype: Any = np.result_type(*(leaf.space.dtype for leaf in self._boxes))
            self.flat: Space[Any] = Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        elif len(low):
            self.flat = MixedActions(low, high, sizes)
        else:
            self.flat = MultiDiscrete(sizes) if len(sizes) > 1 else Discrete(sizes[0])
        """The space of the rows."""

    def unflatten(self, row: Any) -> Any:
        """Return the environment's own action. Takes one row, or one row per environment."""
        row = np.asarray(row)
        row = row[..., None] if isinstance(self.flat, Discrete) else row
        values, start = {}, 0
        for leaf in (*self._boxes, *self._symbols):
            part = row[..., start : (start := start + leaf.count)]
            if leaf.sizes:
                part = np.clip(np.rint(part).astype(np.int64), 0, np.array(leaf.sizes) - 1) + leaf.start
            part = part.astype(leaf.space.dtype).reshape((*row.shape[:-1], *(leaf.space.shape or ())))
            values[leaf.path] = part[()]
        return _rebuilt(self.space, values, ())

    def flatten(self, value: Any, batch: tuple[int, ...] = ()) -> NDArray[Any]:
        """Return an action of the environment as a flat row. `batch` is as in `Observations.flatten`."""
        parts = [
            np.asarray(leaf.of(value)).reshape(*batch, leaf.count) - (leaf.start if leaf.sizes else 0)
            for leaf in (*self._boxes, *self._symbols)
        ]
        row = np.concatenate(parts, axis=-1).astype(self.flat.dtype)
        return row[..., 0] if isinstance(self.flat, Discrete) else row


class Flattened(gymnasium.Wrapper, RecordConstructorArgs):
    """An environment with structured spaces as one with flat spaces. See `rpsp.envs.structures` for the layout.

    Args:
        env: the environment.
        images: size and colours of images.

    Raises:
        UsageError: if a part of a space is not supported.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], images: ImageSettings = SMALL_GREY):
        RecordConstructorArgs.__init__(self, images=images)
        gymnasium.Wrapper.__init__(self, env)
        self.observations = observations_of(env.observation_space, images)
        """The layout of observations; None if they are flat already."""
        self.actions = actions_of(env.action_space)
        """The layout of actions; None if they are flat already."""
        if self.observations is not None:
            self.observation_space = self.observations.flat
        if self.actions is not None:
            self.action_space = self.actions.flat

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and return its observation as a row."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._row(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment with the action that a row describes, and return its observation as a row."""
        own = action if self.actions is None else self.actions.unflatten(action)
        observation, reward, terminated, truncated, info = self.env.step(own)
        return self._row(observation), reward, terminated, truncated, info

    def _row(self, observation: Any) -> Any:
        if self.observations is None:
            return observation
        try:
            return self.observations.flatten(observation)
        except UsageError as error:
            raise UsageError(f"{type(self.unwrapped).__name__} returned an observation whose {error}") from error


def flattened(env: gymnasium.Env[Any, Any], images: ImageSettings = SMALL_GREY) -> gymnasium.Env[Any, Any]:
    """Return an environment with flat spaces: itself, or in `Flattened`."""
    structured = observations_of(env.observation_space, images) or actions_of(env.action_space)
    return Flattened(env, images) if structured else env


def observations_of(space: Space[Any], images: ImageSettings = SMALL_GREY) -> Observations | None:
    """Return the layout of observations in a space; None if they are one symbol or a row of numbers already."""
    plain = isinstance(space, Discrete) or (isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] > 0)
    return None if plain else Observations(space, images)


def actions_of(space: Space[Any]) -> Actions | None:
    """Return the layout of actions in a space; None if they are one symbol, a row of symbols or of numbers already."""
    if isinstance(space, MultiDiscrete):
        plain = len(space.shape) == 1 and not np.any(getattr(space, "start", 0))
    else:
        plain = isinstance(space, Discrete) or (isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] > 0)
    return None if plain else Actions(space)


def symbols_of(space: Space[Any]) -> tuple[int, ...]:
    """Return the number of values of each symbol of flat actions; empty for numbers alone."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    if isinstance(space, MultiDiscrete):
        return tuple(int(n) for n in space.nvec)
    return space.symbols if isinstance(space, MixedActions) else ()


def number_of_values(space: Space[Any]) -> int:
    """Return the number of values of all symbols of flat actions together: the size of an action mask."""
    return sum(symbols_of(space))


def images_in(envs: VectorEnv) -> list[tuple[range, Pixels, str]]:
    """Return the entries of each image in the delivered observations, how it becomes them, and its name.

    Images of which only some pixels are observed are not listed: their pixels are numbers.
    """
    layout, observed = getattr(envs.unwrapped, "observations", None), None
    while isinstance(envs, VectorWrapper):
        observed = vars(envs).get("observed", observed)
        envs = envs.env
    if not isinstance(layout, Observations):
        return []
    return images_observed(layout, observed)


def images_observed(layout: Observations, observed: Sequence[int] | None) -> list[tuple[range, Pixels, str]]:
    """Return `layout.images` in rows of which only these entries are observed."""
    if observed is None:
        return layout.images
    places, found = {entry: place for place, entry in enumerate(observed)}, []
    for entries, pixels, name in layout.images:
        at = [places.get(entry, -1) for entry in entries]
        if at[0] >= 0 and at == list(range(at[0], at[0] + len(at))):
            found.append((range(at[0], at[0] + len(at)), pixels, name))
    return sorted(found, key=lambda one: one[0].start)


def mask_size(envs: VectorEnv) -> int:
    """Return the number of entries at the end of the observations that are an action mask."""
    while isinstance(envs, VectorWrapper):
        if "mask_size" in vars(envs):  # of a MaskedBatch, whose module loads MuJoCo
            return vars(envs)["mask_size"]
        envs = envs.env
    return 0


def _binary(leaf: Leaf) -> bool:
    return isinstance(leaf.space, MultiBinary)


def _size(leaf: Leaf) -> int:
    """Return the number of entries of a leaf of observations."""
    if leaf.pixels is not None:
        return leaf.pixels.size
    return sum(leaf.sizes) if leaf.sizes and not _binary(leaf) else leaf.count


def _entries(leaf: Leaf) -> list[str]:
    """Return a name for each entry of a leaf of observations."""
    if (pixels := leaf.pixels) is not None:
        shape = (pixels.height, pixels.width, pixels.channels)[: 3 if pixels.channels > 1 else 2]
        return [f"{leaf.name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
    if not leaf.sizes or _binary(leaf):
        return leaf.items()
    starts = np.broadcast_to(leaf.start, len(leaf.sizes)).tolist()
    return [
        f"{item}={first + i}" for item, first, n in zip(leaf.items(), starts, leaf.sizes, strict=True) for i in range(n)
    ]


def _bounds(leaf: Leaf, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(leaf.space, Box) and leaf.pixels is None:
        return leaf.space.low.reshape(-1), leaf.space.high.reshape(-1)
    return np.zeros(size), np.ones(size)


def _row_type(leaves: Sequence[Leaf]) -> np.dtype[Any]:
    """Return the type of rows: double where a box needs it, half where there is nothing but pixels."""
    boxes = [leaf.space.dtype for leaf in leaves if isinstance(leaf.space, Box) and leaf.pixels is None]
    if any(dtype.itemsize > 2 and dtype != np.float32 for dtype in boxes):
        return np.dtype(np.float64)
    return np.dtype(np.float16 if all(leaf.pixels is not None for leaf in leaves) else np.float32)


def _one_hot(leaf: Leaf, given: NDArray[Any]) -> Float[np.ndarray, "*batch entry"]:
    """Return the one-hot vectors of the symbols of a leaf, one after the other."""
    numbers = given.astype(np.int64) - leaf.start
    if (numbers != given - leaf.start).any() or (numbers < 0).any() or (numbers >= leaf.sizes).any():
        raise UsageError(f"{leaf.name}: is {given.tolist()}, which is not in {_short(leaf.space)}; make them agree")
    vectors = np.zeros((*given.shape[:-1], sum(leaf.sizes)))
    first = np.cumsum((0, *leaf.sizes[:-1]))
    np.put_along_axis(vectors, numbers + first, 1.0, axis=-1)
    return vectors


def _rebuilt(space: Space[Any], values: Mapping[tuple[str | int, ...], Any], path: tuple[str | int, ...]) -> Any:
    if isinstance(space, Dict):
        return {key: _rebuilt(part, values, (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_rebuilt(part, values, (*path, i)) for i, part in enumerate(space.spaces))
    return values[path]


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:119]}…"


# ---------------------------------------------------------------------------------------------------------------------
# Spaces as JSON
# ---------------------------------------------------------------------------------------------------------------------


def describe(space: Any) -> dict[str, Any]:
    """Return a space as a JSON object. Infinite bounds become null."""
    if isinstance(space, Dict):
        return {"dict": [[key, describe(part)] for key, part in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"tuple": [describe(part) for part in space.spaces]}
    if isinstance(space, MultiBinary):
        return {"binary": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, MultiDiscrete):
        return {"nvec": space.nvec.tolist(), "start": np.broadcast_to(space.start, space.nvec.shape).tolist()}
    if isinstance(space, Discrete):
        return {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, MixedActions):
        numbers = len(space.low) - len(space.symbols)
        bounds = {name: [_plain(x) for x in getattr(space, name)[:numbers]] for name in ("low", "high")}
        return {"symbols": list(space.symbols), **bounds}
    found: dict[str, Any] = {name: [_plain(x) for x in getattr(space, name).reshape(-1)] for name in ("low", "high")}
    if len(space.shape) != 1:
        found |= {"shape": list(space.shape)}
        for name in ("low", "high"):  # an image has the same bounds everywhere
            found[name] = found[name][0] if len(set(found[name])) == 1 else found[name]
    return found | {"dtype": str(space.dtype)}


def rebuild(content: Any) -> Space[Any]:
    """Return the space that `describe` described.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError or AssertionError: if the description is damaged.
    """
    if "dict" in content:
        return Dict([(key, rebuild(part)) for key, part in content["dict"]])
    if "tuple" in content:
        return Tuple([rebuild(part) for part in content["tuple"]])
    if "binary" in content:
        _check_entries(content["binary"])
        return MultiBinary(content["binary"])
    if "nvec" in content:
        return MultiDiscrete(np.array(content["nvec"]), start=np.array(content["start"]))
    if "n" in content:
        return Discrete(content["n"], start=content["start"])
    if "symbols" in content:
        return MixedActions(*_bounds_in(content, np.dtype(np.float64)), content["symbols"])
    dtype = np.dtype(content["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {content['dtype']} is not numeric")
    low, high = _bounds_in(content, dtype)
    if "shape" in content:
        shape = tuple(content["shape"])
        _check_entries(shape)
        low, high = (np.broadcast_to(x.reshape(shape if x.size > 1 else ()), shape) for x in (low, high))
    return Box(low, high, dtype=dtype.type)


def _check_entries(shape: Any) -> None:
    """Raise `ValueError` if a file describes a space that is too large."""
    sizes = shape if isinstance(shape, list | tuple) else [shape]
    if math.prod(int(n) for n in sizes) > 64 * MOST_ENTRIES:
        raise ValueError(f"a space of shape {shape} is too large")


def _plain(x: Any) -> int | float | None:
    return None if math.isinf(x) else x.item()


def _bounds_in(content: Any, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lower and upper bounds in a description."""
    given = [content[name] if isinstance(content[name], list) else [content[name]] for name in ("low", "high")]
    low, high = (
        np.array([infinite if x is None else x for x in some], dtype)
        for infinite, some in zip((-math.inf, math.inf), given, strict=True)
    )
    return low, high
