"""Two-stage regression and the filter against numbers that the authors' own program computed.

`fixtures/authors_rffpsr.npz` holds 30 episodes of a made-up pendulum, the features and projections that the authors'
numpy program used on them (60 Fourier frequencies, d = 6), and what it computed: q0, W_ext^ξ, W_ext^o and the states of
five filtered episodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rpsp.filters.two_stage
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.filters.kernel_bayes import KernelBayesFilter
from rpsp.filters.two_stage import KernelBayes, Maps, fit_two_stage

FILE = Path(__file__).parents[1] / "fixtures" / "authors_rffpsr.npz"


@cache
def authors() -> dict[str, np.ndarray]:
    with np.load(FILE, allow_pickle=False) as file:
        return dict(file)


class Projected(eqx.Module):
    """Uᵀ [cos(Ωᵀx), sin(Ωᵀx)]/√n, with the authors' frequencies Ω and projection U."""

    frequencies: Any
    projection: Any

    def __call__(self, x: Any) -> Any:
        xp = x.__array_namespace__()
        # Our windows of history end with the known fraction, which the authors do not have.
        angles = x[..., : self.frequencies.shape[0]] @ self.frequencies
        waves = xp.concat([xp.cos(angles), xp.sin(angles)], axis=-1)
        return waves / self.frequencies.shape[1] ** 0.5 @ self.projection


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelBayesFilter]:
    """Our regression on their episodes, with their features, projections and ridges."""
    their = authors()
    names = ("history", "phi_o", "phi_a", "psi_o", "psi_a")
    maps = Maps(*(Projected(their[f"{name}_frequencies"], their[f"{name}_projection"]) for name in names))
    projections = iter([their[name] for name in ("U_xi_o", "U_xi_a", "U_oo", "U_q")])
    monkeypatch.setattr(rpsp.filters.two_stage, "randomized_svd", lambda x, rank, *, rng: next(projections))
    monkeypatch.setattr(rpsp.filters.two_stage, "fit_predictions", lambda filter, batch, ridge: filter)
    ridge = float(their["ridge"])
    settings = KernelBayes(
        past=int(their["past"]),
        future=int(their["future"]),
        dimension=int(their["dimension"]),
        padded=False,
        stage1_ridge=ridge,
        division_ridge=ridge,
        stage2_ridge=ridge,
        ridge=ridge,
        clamp=1e6,  # the authors' states are not clamped
    )
    episodes = [Episode(o, a) for o, a in zip(their["observations"], their["actions"], strict=True)]
    with jax.enable_x64(True):
        filter = fit_two_stage(pack(episodes), settings, rng=np.random.default_rng(0), maps=maps)
        yield jax.tree.map(lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, filter)


def test_the_regressions_are_the_authors(fitted: KernelBayesFilter) -> None:
    """Episodes are kept in single precision, which leaves a difference of 4e-8."""
    their = authors()
    for name in ("q0", "W_ext_xi", "W_ext_o"):
        np.testing.assert_allclose(getattr(fitted, name), their[name], atol=1e-6, err_msg=name)


def test_the_filtered_states_are_the_authors(fitted: KernelBayesFilter) -> None:
    """The authors filter in (a_t, o_t) from q0 on; ours filters in the reset observation before that."""
    their = authors()
    step = jax.jit(lambda q, action, observation: fitted.update(q, action, observation))
    for observations, actions, states in zip(their["observations"], their["actions"], their["states"], strict=False):
        q = jnp.asarray(fitted.q0)
        for action, observation, expected in zip(actions, observations[1:], states, strict=True):
            q = step(q, jnp.asarray(action), jnp.asarray(observation))
            np.testing.assert_allclose(q, expected, atol=1e-6)
