"""Several runs at once: Algorithm 1 for runs side by side, with one compiled step for all. Not in the paper.

Runs with the same algorithm, up to values of float settings, and with agents of the same shapes are stacked along a first
axis. Their environments are stepped as one batch, their policies are evaluated in one call, and the algorithm's step is
mapped over all agents (`vmap`). Each run keeps its own seed, data and step sizes, and its randomness is derived from
(seed, iteration). So the results are those of the run alone up to rounding, and a run can continue alone or together with
others from any iteration.
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
from jaxtyping import Array, Key, PRNGKeyArray

from rpsp.algorithms.base import AbstractAlgorithm, Diagnostics
from rpsp.data.batches import Batch, padded
from rpsp.errors import DivergedError
from rpsp.training.diagnostics import diagnose
from rpsp.training.interleaved import Interleaved
from rpsp.training.loop import Update, advance, begin, concluded, packed, part_way
from rpsp.training.refits import Refitted, refit_if_due
from rpsp.training.rollouts import collect_together
from rpsp.training.state import STEP_STREAM, Recipe, Record, Training, TrainingSettings, key_for


class Step(NamedTuple):
    """One of the runs after an iteration."""

    run: int
    training: Training | None
    """None if the run cannot continue."""
    record: Record
    error: DivergedError | None = None
    """Why it cannot continue."""


def train_together(
    recipes: Sequence[Recipe],
    make_envs: Callable[[int], VectorEnv],
    settings: Sequence[TrainingSettings],
    iterations: int,
    trainings: Sequence[Training | None],
    threads: int = 1,
    spent: Sequence[Callable[[Training], bool]] = (),
) -> Iterator[list[Step]]:
    """Run Algorithm 1 for several runs in the same environment. Runs that are behind go first.

    Args:
        recipes: the parts of each run's method.
        make_envs: `make_envs(n)` makes environments for n runs.
        settings: sizes and seed of each run.
        iterations: total number of iterations of each run.
        trainings: the runs to continue. None: begin a new one.
        threads: number of new runs that begin at a time.
        spent: for each run, a function that returns whether it has reached another limit. Default: there is none.

    Yields:
        A list with one entry for each run that advanced. A run that diverges is left out from then on.
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
            while unfinished := [
                i
                for i, training in now.items()
                if training.iteration < iterations and not (spent and spent[i](training))
            ]:
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
            with suppress(Exception):  # a broken environment may fail to close
                envs.close()


def _begin(
    recipe: Recipe,
    envs: VectorEnv | None,
    make_envs: Callable[[int], VectorEnv],
    run: int,
    settings: TrainingSettings,
) -> Step:
    """Begin a run in these environments, or in new ones if `envs` is None."""
    with nullcontext(envs) if envs is not None else closing(make_envs(1)) as envs:
        try:
            return Step(run, *begin(recipe, envs, settings))
        except DivergedError as error:
            return Step(run, None, {}, error)


def _alike(
    recipes: Sequence[Recipe], settings: Sequence[TrainingSettings], trainings: dict[int, Training], runs: Sequence[int]
) -> list[int]:
    """Return the first of some runs, and those that can advance together with it."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for i in sorted(runs):
        found[settings[i].samples, _shapes(recipes[i], trainings[i])].append(i)
    return next(iter(found.values()))


def _shapes(recipe: Recipe, now: Training | Refitted) -> Hashable:
    """Return what runs that advance together have in common.

    These are the shapes of all parameters, and all settings of the algorithm except the values of float settings.
    """
    leaves, structure = jax.tree.flatten((recipe.algorithm, now.agent, now.memory))
    return structure, tuple(map(_form, leaves))


class _Unlike(Exception):
    """Runs have got different shapes: a refit may choose another number of features."""


def _form(leaf: Any) -> Hashable:
    """Return what leaves must have in common to be stacked. A setting of 0 may drop a term, which changes the program."""
    if eqx.is_array(leaf):
        return leaf.shape, leaf.dtype
    return ("number", leaf == 0) if isinstance(leaf, float) else leaf


def _side_by_side(pool: ThreadPoolExecutor, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call `function` with each item; several in threads, and on the CPU, because fits are sequences of many small steps."""
    items = list(items)
    if len(items) == 1:  # in this thread, which can be interrupted
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
    """Run one iteration of some runs of one shape.

    If it diverges they run one by one, to find out which of them did. The same happens if refits give them different shapes.
    """
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
    """Run one iteration of several runs of one shape.

    Args:
        envs: the environments, with an equal number of rows for each run.
        recipes: the parts of each run's method.
        settings: sizes and seed of each run.
        trainings: the runs before the iteration.
        pool: threads for refits.

    Returns:
        Each run after the iteration, and its record. The times in a record are those of all runs together.
    """
    started = time.perf_counter()
    runs = list(zip(recipes, settings, trainings, strict=True))
    before = _side_by_side(pool, lambda run: refit_if_due(*run), runs)
    fitted = time.perf_counter()
    if len({_shapes(recipe, each) for recipe, each in zip(recipes, before, strict=True)}) > 1:
        raise _Unlike
    agents, memories = stack([(each.agent, each.memory) for each in before])
    keys = jnp.stack([key_for(own.seed, STEP_STREAM, now.iteration) for _, own, now in runs])
    algorithms = _stack_algorithms([recipe.algorithm for recipe in recipes])
    learner = None
    if recipes[0].algorithm.interval:
        rows = envs.num_envs // len(runs)
        learner = Interleaved(algorithms, agents, memories, keys, rows=rows, agents=len(runs))
    collected = collect_together(
        agents,
        envs,
        scalings=[training.scaling for training in trainings],
        samples=settings[0].samples,
        seeds=[own.seed for own in settings],
        iteration=trainings[0].iteration,
        drop_raising=settings[0].drop_raising,
        learner=learner,
        pink_noise=[own.pink_noise for own in settings],
    )
    acted = time.perf_counter()
    rows = max(training.rows for training in trainings)
    batches = [packed(each, envs, rows) for each in collected]
    rows = max(batch.shape[0] for batch in batches)
    batches = [padded(batch, rows) for batch in batches]
    fractions = jnp.asarray([0.5**training.halvings for training in trainings])
    moved = recipes[0].algorithm.moves_filter(before[0].agent)
    now = (agents, memories) if learner is None else (learner.agent, learner.memory)
    learned = _learn(algorithms, moved, agents, *now, _stack_batches(batches), keys, fractions)
    found = unstack(learned, len(runs))
    times = started, fitted, acted
    return [
        concluded(*run, prior, each, Update(batch, *after), times)
        for run, prior, each, batch, after in zip(runs, before, collected, batches, found, strict=True)
    ]


@eqx.filter_jit
def _learn(
    algorithms: Any,
    moved: bool,
    before: Any,
    agents: Any,
    memories: Any,
    batches: Batch,
    keys: Key[Array, " run"],
    fractions: Any,
) -> Any:
    """Take a step of all agents, and return (agents, memories, diagnostics).

    Each agent goes its fraction of the way from the one before the iteration. `agents` are those of the moment: they
    differ from those before if they have learned while episodes were in progress.
    """

    def one(
        algorithm: AbstractAlgorithm,
        before: Any,
        agent: Any,
        memory: Any,
        batch: Batch,
        key: PRNGKeyArray,
        fraction: Any,
    ) -> tuple[Any, Any, Diagnostics]:
        new, memory, diagnostics = algorithm.step(agent, memory, batch, key=key)
        new = part_way(new, before, fraction)
        return new, memory, diagnose(before, new, batch, moved) | diagnostics

    return eqx.filter_vmap(one)(algorithms, before, agents, memories, batches, keys, fractions)


@eqx.filter_jit
def stack(trees: Sequence[Any]) -> Any:
    """Stack the arrays of trees of one shape along a new first axis. Other leaves are those of the first tree."""
    return jax.tree.map(lambda first, *others: jnp.stack([first, *others]) if eqx.is_array(first) else first, *trees)


@eqx.filter_jit
def unstack(tree: Any, count: int) -> list[Any]:
    """Return the trees that were stacked."""
    arrays, others = eqx.partition(tree, eqx.is_array)
    return [eqx.combine(jax.tree.map(lambda x, i=i: x[i], arrays), others) for i in range(count)]


def _stack_algorithms(algorithms: Sequence[AbstractAlgorithm]) -> AbstractAlgorithm:
    """Return one algorithm for all runs. Float settings in which they differ become arrays; the others stay constants."""

    def leaf(first: Any, *others: Any) -> Any:
        differ = isinstance(first, float) and any(other != first for other in others)
        return jnp.asarray([first, *others]) if differ else first

    return jax.tree.map(leaf, *algorithms)


def _stack_batches(batches: Sequence[Batch]) -> Batch:
    return jax.tree.map(lambda *x: np.stack(x), *batches)
