"""Many agents at once: Algorithm 1 for several runs side by side, their updates one compiled program. (Ours.)

Runs whose rules are alike and whose agents have the same shapes are stacked along a first axis. Their environments are
stepped as one batch, their policies asked in one call, and what an update rule does to one agent is done to all (`vmap`).
Each keeps its own seed, data, stopping rule and sizes of steps, and its randomness derives from (seed, iteration) as ever:
the numbers are those of the run alone but for rounding, and a run may go on alone, or together with others, from any
iteration.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv

from rpsp.data.batches import Batch
from rpsp.errors import DivergedError
from rpsp.training.loop import (
    Recipe,
    Record,
    Refitted,
    Training,
    TrainingSettings,
    Update,
    advance,
    begin,
    concluded,
    diagnose,
    packed,
    padded,
    part_way,
    refit_if_due,
)
from rpsp.training.rollouts import collect_together


class Step(NamedTuple):
    """What has become of one of the runs."""

    run: int
    training: Training | None
    """None where the run cannot go on."""
    record: Record
    error: DivergedError | None = None
    """Why it cannot."""


def train_together(
    recipes: Sequence[Recipe],
    make_envs: Callable[[int], VectorEnv],
    settings: Sequence[TrainingSettings],
    iterations: int,
    trainings: Sequence[Training | None],
    threads: int = 1,
) -> Iterator[list[Step]]:
    """`training.train` of several runs in the same environment; those that are behind go first.

    `make_envs(n)` makes environments for n of them. A run without a `training` to go on from begins, `threads` of them at
    a time. A run that diverges is left out from then on.
    """
    made: dict[int, VectorEnv] = {}

    def envs_for(count: int) -> VectorEnv:
        if count not in made:
            made[count] = make_envs(count)
        return made[count]

    now: dict[int, Training] = {i: training for i, training in enumerate(trainings) if training is not None}
    try:
        with ThreadPoolExecutor(threads) as pool:
            if new := [i for i, training in enumerate(trainings) if training is None]:
                envs = envs_for(1) if len(new) == 1 else None
                steps = _side_by_side(pool, lambda i: _begin(recipes[i], envs, make_envs, i, settings[i]), new)
                now |= {step.run: step.training for step in steps if step.training is not None}
                yield steps
            while unfinished := [i for i, training in now.items() if training.iteration < iterations]:
                behind = min(now[i].iteration for i in unfinished)
                level = [i for i in unfinished if now[i].iteration == behind]
                at_once = _alike(recipes, settings, now, level)
                steps = _advance(recipes, envs_for, settings, now, at_once, pool)
                for step in steps:
                    now.pop(step.run)
                    if step.training is not None:
                        now[step.run] = step.training
                yield steps
    finally:
        for envs in made.values():
            with suppress(Exception):  # what is broken may not even close
                envs.close()


def _begin(
    recipe: Recipe,
    envs: VectorEnv | None,
    make_envs: Callable[[int], VectorEnv],
    run: int,
    settings: TrainingSettings,
) -> Step:
    """Begin a run, in these environments or in some of its own."""
    with nullcontext(envs) if envs is not None else closing(make_envs(1)) as envs:
        try:
            return Step(run, *begin(recipe, envs, settings))
        except DivergedError as error:
            return Step(run, None, {}, error)


def _alike(
    recipes: Sequence[Recipe], settings: Sequence[TrainingSettings], trainings: dict[int, Training], runs: Sequence[int]
) -> list[int]:
    """The first of some runs, and those that can advance together with it."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for i in sorted(runs):
        found[settings[i].samples, _shapes(recipes[i], trainings[i])].append(i)
    return next(iter(found.values()))


def _shapes(recipe: Recipe, now: Training | Refitted) -> Hashable:
    """What runs that go together have in common: parameters of the same shapes, and rules that differ in nothing but numbers
    such as a learning rate."""
    leaves, structure = jax.tree.flatten((recipe.rule.step, now.agent, now.memory))
    return structure, tuple(map(_form, leaves))


class _Unlike(Exception):
    """Runs that were alike are so no longer: a refit may find another number of features."""


def _form(leaf: Any) -> Hashable:
    """What leaves must have in common to be stacked. (A weight of 0 drops a term: that is another rule.)"""
    if eqx.is_array(leaf):
        return leaf.shape, leaf.dtype
    return ("number", leaf == 0) if isinstance(leaf, float) else leaf


def _side_by_side(pool: ThreadPoolExecutor, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """`function` of each item; of several in threads, and on the CPU: fits are many small steps, one after the other."""
    items = list(items)
    if len(items) == 1:  # which can then be interrupted
        return [function(items[0])]

    def there(item: Any) -> Any:
        with jax.default_device(jax.devices("cpu")[0]):
            return function(item)

    return list(pool.map(there, items))


def _advance(
    recipes: Sequence[Recipe],
    envs_for: Callable[[int], VectorEnv],
    settings: Sequence[TrainingSettings],
    trainings: dict[int, Training],
    runs: list[int],
    pool: ThreadPoolExecutor,
) -> list[Step]:
    """One iteration of some runs of one shape. Where it diverges, they take it one by one, to tell which of them it was; and
    where refits set them apart."""
    envs = envs_for(len(runs))
    try:
        if len(runs) == 1:
            (i,) = runs
            return [Step(i, *advance(recipes[i], envs, settings[i], trainings[i]))]
        own = [recipes[i] for i in runs], [settings[i] for i in runs], [trainings[i] for i in runs]
        found = advance_together(envs, *own, pool)
        return [Step(i, *after) for i, after in zip(runs, found, strict=True)]
    except (DivergedError, _Unlike) as error:
        if len(runs) == 1 and isinstance(error, DivergedError):
            return [Step(runs[0], None, {}, error)]
        return [_advance(recipes, envs_for, settings, trainings, [i], pool)[0] for i in runs]


def advance_together(
    envs: VectorEnv,
    recipes: Sequence[Recipe],
    settings: Sequence[TrainingSettings],
    trainings: Sequence[Training],
    pool: ThreadPoolExecutor,
) -> list[tuple[Training, Record]]:
    """`training.advance` of several runs of one shape, `envs` having an equal number of rows for each.

    The times in a record are those of all of them together.
    """
    started = time.perf_counter()
    runs = list(zip(recipes, settings, trainings, strict=True))
    before = _side_by_side(pool, lambda run: refit_if_due(*run), runs)
    fitted = time.perf_counter()
    if len({_shapes(recipe, each) for recipe, each in zip(recipes, before, strict=True)}) > 1:
        raise _Unlike
    agents, memories = stack([(each.agent, each.memory) for each in before])
    collected = collect_together(
        agents,
        envs,
        scalings=[training.scaling for training in trainings],
        samples=settings[0].samples,
        seeds=[own.seed for own in settings],
        iteration=trainings[0].iteration,
        drop_raising=settings[0].drop_raising,
    )
    acted = time.perf_counter()
    rows = max(training.rows for training in trainings)
    batches = [packed(each, envs, rows) for each in collected]
    rows = max(batch.shape[0] for batch in batches)
    batches = [padded(batch, rows) for batch in batches]
    fractions = jnp.asarray([0.5**training.halvings for training in trainings])
    moved = recipes[0].rule.moves_filter(before[0].agent)
    rules = _stack_rules([recipe.rule.step for recipe in recipes])
    found = unstack(_learn(rules, moved, agents, memories, _stack_batches(batches), fractions), len(runs))
    times = started, fitted, acted
    return [
        concluded(*run, prior, each, Update(batch, *after), times)
        for run, prior, each, batch, after in zip(runs, before, collected, batches, found, strict=True)
    ]


@eqx.filter_jit
def _learn(rules: Any, moved: bool, agents: Any, memories: Any, batches: Batch, fractions: Any) -> Any:
    """The update of all agents, of which each goes a fraction of its step: (agents, memories, diagnostics)."""

    def one(step: Any, agent: Any, memory: Any, batch: Batch, fraction: Any) -> tuple[Any, Any, dict[str, Any]]:
        new, memory, diagnostics = step(agent, memory, batch)
        new = part_way(new, agent, fraction)
        return new, memory, diagnose(agent, new, batch, moved) | diagnostics

    return eqx.filter_vmap(one)(rules, agents, memories, batches, fractions)


@eqx.filter_jit
def stack(trees: Sequence[Any]) -> Any:
    """Trees of one shape as one tree, whose arrays have a first axis more; what is no array is the first tree's."""
    return jax.tree.map(lambda first, *others: jnp.stack([first, *others]) if eqx.is_array(first) else first, *trees)


@eqx.filter_jit
def unstack(tree: Any, count: int) -> list[Any]:
    """The trees that were stacked."""
    arrays, others = eqx.partition(tree, eqx.is_array)
    return [eqx.combine(jax.tree.map(lambda x, i=i: x[i], arrays), others) for i in range(count)]


def _stack_rules(steps: Sequence[Any]) -> Any:
    """One step for all; numbers in which they differ become arrays, and those in which they agree stay compiled in."""

    def leaf(first: Any, *others: Any) -> Any:
        differ = isinstance(first, float) and any(other != first for other in others)
        return jnp.asarray([first, *others]) if differ else first

    return jax.tree.map(leaf, *steps)


def _stack_batches(batches: Sequence[Batch]) -> Batch:
    return jax.tree.map(lambda *x: np.stack(x), *batches)
