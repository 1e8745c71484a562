"""The protocol of a belief: the settings of a filter, and how it is fitted to episodes.

A belief is a frozen dataclass. Its fields are settings, which `rpsp train` and `rpsp fit` offer as flags; the docstring of
a field is its help text. A minimal one:

    @dataclass(frozen=True)
    class Averaging(Belief):
        rate: float = 0.3
        \"\"\"Weight of the newest observation.\"\"\"

        def fit(self, batch, held_out, *, key):
            return Averages(jnp.asarray(self.rate), batch.observations.shape[-1])

See docs/guides/extending.md for the whole example.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from jaxtyping import PRNGKeyArray

from rpsp.data.batches import Batch
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter


@dataclass(frozen=True)
class Belief(abc.ABC):
    """Settings of a filter, and how it is fitted."""

    kind: ClassVar[str] = ""
    """Name of the belief, as in `rpsp fit --kind`. Default: the class name in lower case."""
    keeps_coordinates: ClassVar[bool] = False
    """Whether state coordinates keep their meaning in a refit. If not, the policy is expressed in the new ones."""
    discrete: ClassVar[bool] = False
    """Whether it needs discrete observations and actions, as one-hot vectors."""
    marks: ClassVar[bool] = False
    """How it is told that readings are missing: by marks as additional inputs (`MarkedFilter`), or not at all, because its
    predictive distribution completes them (`GapFilter`)."""

    def __init_subclass__(cls) -> None:
        """Give a subclass without a `kind` the default one."""
        super().__init_subclass__()
        if "kind" not in vars(cls):
            cls.kind = cls.__name__.lower()

    @abc.abstractmethod
    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Fit a filter to episodes.

        Args:
            batch: training episodes, scaled or one-hot.
            held_out: held-out episodes, for choices such as a ridge or the number of epochs.
            key: the source of all randomness of the fit.

        Returns:
            The filter.
        """

    def refit(
        self, filter: AbstractFilter, batch: Batch, held_out: Batch, *, key: PRNGKeyArray
    ) -> AbstractFilter | None:
        """Fit a filter again, to recent episodes of the policy. Not in the paper.

        Args:
            filter: the filter in use.
            batch: recent training episodes.
            held_out: recent held-out episodes.
            key: the source of all randomness of the fit.

        Returns:
            The new filter, with a state of the same size; None to keep the one in use. Default: None.
        """
        return None

    @property
    def min_length(self) -> int:
        """Number of steps that an exploration episode must have to be used."""
        return 1

    @property
    def can_refit(self) -> bool:
        """Whether `refit` is defined."""
        return type(self).refit is not Belief.refit

    @property
    def predictive(self) -> bool:
        """Whether the filter is fitted to predict, so that bad predictions mean a bad state. Default: True."""
        return True

    def for_refits(self) -> Belief:
        """Return the settings to use if the filter will be refitted. Default: the same."""
        return self


MOST = 10_000
"""Largest accepted length or dimension. Larger values are mistakes: the machine would run out of memory."""


def check_at_least(part: Any, least: int, *names: str, most: int | None = MOST) -> None:
    """Check settings that are numbers, tuples of numbers, or None.

    Args:
        part: the belief, or another dataclass of settings.
        least: the smallest accepted number.
        *names: the names of the settings.
        most: the largest accepted whole number; None: there is none. Other numbers have no maximum.

    Raises:
        UsageError: if a number is out of range or NaN.
    """
    for name in names:
        value: Any = getattr(part, name)
        values = () if value is None else cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
        if not all(number >= least for number in values):
            raise UsageError(f"{name}: {value} must be at least {least}.")
        if most is not None and any(isinstance(number, int) and number > most for number in values):
            raise UsageError(f"{name}: {value} is more than the maximum, {most}.")
