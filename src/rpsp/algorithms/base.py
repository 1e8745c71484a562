"""The protocol of an algorithm: how it changes an agent, and which parameters it may change.

The paper's alternating optimisation is a composition:

    InSequence(Trpo(max_kl=0.01, moves=policy_only), Vrpg(learning_rate=1e-3, moves=filter_only))

A user's own algorithm is a subclass of `AbstractAlgorithm` with `init` and `step`. Its settings are its fields. See
docs/guides/extending.md for a complete example.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.policies import Agent
from rpsp.data import trees
from rpsp.data.batches import Batch
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import trainable

Memory = Any
"""What an algorithm keeps from one step to the next: a tree of arrays."""
Diagnostics = dict[str, Array]
"""Numbers about one step, by name."""
Select = Callable[[Agent], Any]
"""Agent → a tree of booleans, True at the parameters that an algorithm may change."""
Vector = Float[Array, " theta"]
"""The parameters that an algorithm changes, concatenated."""


class AbstractAlgorithm(eqx.Module):
    """Changes an agent, given a batch of its episodes.

    The fields of a subclass are its settings. `init` and `step` are pure functions of their arguments: everything that the
    next step depends on is in the memory, and all randomness comes from the key. Then runs resume bit for bit.

    Several runs can be trained together, by `jax.vmap`. Float fields in which the runs differ are arrays in that case, so
    test them with `jnp.where` instead of `if`. Exception: a field that is 0 in one run is 0 in all runs of the group.
    """

    off_policy: ClassVar[bool] = False
    """Whether it also learns from earlier batches and from the exploration."""
    squashed: ClassVar[bool] = False
    """Whether it needs a `SquashedPolicy` if actions are continuous."""
    gains_from_gpu: ClassVar[bool] = False
    """Whether its steps are faster on a GPU. With `--device auto` the others are computed on the CPU."""

    @abc.abstractmethod
    def init(self, agent: Agent, *, key: PRNGKeyArray) -> Memory:
        """Return the memory before the first step.

        Args:
            agent: the agent that will be trained.
            key: for random initial values, such as the weights of a critic.

        Returns:
            A tree of arrays. Its structure and shapes stay the same over all steps.
        """

    @abc.abstractmethod
    def step(
        self, agent: Agent, memory: Memory, batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[Agent, Memory, Diagnostics]:
        """Change the agent, given a batch of its episodes.

        Args:
            agent: the agent that acted in the batch.
            memory: the memory after the previous step.
            batch: whole episodes, packed into rows.
            key: for the randomness of this step.

        Returns:
            The new agent, the new memory, and diagnostics. A step that was not applied reports `skipped` = 1. If the cause
            was NaN or infinite values it also reports `unsound` = 1.
        """

    @property
    def scales_inputs(self) -> bool:
        """Whether it changes the scaling of the policy's input itself. Default: False."""
        return False

    @property
    def interval(self) -> int:
        """Number of environment steps between two calls of `learn`. Default: 0, `learn` is not called."""
        return 0

    def learn(self, agent: Agent, memory: Memory, lot: Batch, *, key: PRNGKeyArray) -> tuple[Agent, Memory]:
        """Hook while episodes are in progress, called every `interval` steps. Default: nothing changes.

        `step` is called after the iteration as always, with whole episodes that contain the steps of all lots.

        Args:
            agent: the agent after the previous lot. It may change the policy, but not the filter.
            memory: the memory after the previous lot.
            lot: the new steps, with pre-states. Episodes may begin and end anywhere in it, and all of it may be padding.
            key: for the randomness of this lot.

        Returns:
            The new agent and the new memory.
        """
        return agent, memory

    @property
    def name(self) -> str:
        """Prefix of the diagnostics where several algorithms run in sequence. Default: the class name in lower case."""
        return type(self).__name__.lower()

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: which parameters it may change. Default: all trainable ones."""
        return trainable(agent)

    @property
    def parts(self) -> tuple[AbstractAlgorithm, ...]:
        """The algorithms whose fields are settings: itself, or those that it is composed of."""
        return (self,)

    def with_settings(self, values: Mapping[str, Any]) -> AbstractAlgorithm:
        """Return the algorithm with other settings.

        Args:
            values: new values by field name. Names that are not fields of it are ignored.

        Raises:
            UsageError: if a value is out of range.
        """
        own = {field.name for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: value for name, value in values.items() if name in own})

    def moves_filter(self, agent: Agent) -> bool:
        """Return whether it may change parameters of the filter, and with them the states."""
        return any(jax.tree.leaves(self.select(agent).filter))

    def on_exploration(self, agent: Agent, memory: Memory, batch: Batch) -> Memory:
        """Hook before the first step. Default: the memory stays as it is.

        Args:
            agent: the agent that will be trained.
            memory: the memory that `init` returned.
            batch: the episodes of the random exploration.

        Returns:
            The new memory.
        """
        return memory

    def on_refit(self, agent: Agent, memory: Memory) -> Memory:
        """Hook after a refit of the filter that keeps the meaning of state coordinates. Default: no change.

        After any other refit, and wherever the algorithm changes the filter itself, `init` is called instead.

        Args:
            agent: the agent with the refitted filter.
            memory: the memory before the refit.

        Returns:
            The new memory.
        """
        return memory

    def on_new_units(self, agent: Agent, memory: Memory, scaling: Scaling) -> Memory:
        """Hook before the policy's input is rescaled. Default: no change.

        Critics of states and moments of an optimiser depend on the scaling; see `rpsp.algorithms.adam`.

        Args:
            agent: the agent before the change.
            memory: the memory before the change.
            scaling: the new scaling of the policy's input.

        Returns:
            The new memory.
        """
        return memory


def check_positive(algorithm: AbstractAlgorithm, *names: str) -> None:
    """Raise a `UsageError` unless each of these settings is None or greater than 0."""
    for name in names:
        if (value := getattr(algorithm, name)) is not None and not value > 0:
            raise UsageError(f"{name}: {value} must be greater than 0.")


def check_not_negative(algorithm: AbstractAlgorithm, *names: str) -> None:
    """Raise a `UsageError` unless each of these settings is at least 0."""
    for name in names:
        if not (value := getattr(algorithm, name)) >= 0:
            raise UsageError(f"{name}: {value} must be at least 0.")


def check_fraction(algorithm: AbstractAlgorithm, **usual: float) -> None:
    """Raise a `UsageError` unless each of these settings is between 0 and 1.

    Args:
        algorithm: the algorithm.
        **usual: a usual value of each setting, for the error message.
    """
    for name, example in usual.items():
        if not 0 <= (value := getattr(algorithm, name)) <= 1:
            raise UsageError(f"{name}: {value} is not between 0 and 1; a usual value is {example}.")


def everything(agent: Agent) -> Any:
    """Select all parameters of filter and policy, except fields declared `constant`."""
    return trainable(agent)


def policy_only(agent: Agent) -> Any:
    """Select θ_re, the parameters of the reactive policy."""
    marks = trainable(agent)
    return trees.replace(lambda marks: marks.filter, marks, _nothing(marks.filter))


def filter_only(agent: Agent) -> Any:
    """Select θ_PSR, the parameters of the filter."""
    marks = trainable(agent)
    return trees.replace(lambda marks: marks.policy, marks, _nothing(marks.policy))


def _nothing(marks: Any) -> Any:
    return trees.map(lambda _: False, marks)
