"""The Fisher product against the dense Hessian, the trust region, what may move, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import KEY, bits_equal, close, leaves
from jax.flatten_util import ravel_pytree

from rpsp.algorithms.base import everything, filter_only, policy_only
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import AbstractPolicy, Agent, CategoricalPolicy, GaussianPolicy
from rpsp.algorithms.trpo import Trpo, conjugate_gradient, fisher_product
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import fit_scaling
from rpsp.envs.make import make
from rpsp.errors import UsageError
from rpsp.experiments.configure import configured
from rpsp.filters.base import compiled_unroll, trainable, unroll
from rpsp.filters.memory import GRU, observation_window
from rpsp.training.rollouts import collect, explore

OBS, ACT = 2, 2


def batch_of(seed: int, *, one_hot: bool = False) -> Batch:
    """Five short episodes in rows with filler."""
    rng = np.random.default_rng(seed)
    episodes = []
    for steps in (3, 7, 5, 4, 9):
        drawn = np.eye(ACT)[rng.integers(ACT, size=steps)] if one_hot else rng.standard_normal((steps, ACT))
        rewards = rng.standard_normal(steps) + drawn[:, 0]
        observations = rng.standard_normal((steps + 1, OBS))
        episodes.append(Episode(observations, np.clip(drawn, -1, 1), rewards, drawn))
    return pack(episodes, row_length=12, row_multiple=4)


def shaken(policy: Any, key: int = 7) -> Any:
    """A policy whose output layer is not zero."""
    last = policy.network.layers[-1]
    weight = 0.5 * jax.random.normal(jax.random.key(key), last.weight.shape)
    return eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, weight)


def window_agent(policy: type[AbstractPolicy] = GaussianPolicy) -> Agent:
    window = observation_window(2, OBS, ACT)
    return Agent(window, shaken(policy(window.size, ACT, hidden=(4,), key=jax.random.key(0))))  # type: ignore[call-arg]


def gru_agent() -> Agent:
    gru = GRU(2, OBS, ACT, key=jax.random.key(1))
    return Agent(gru, shaken(GaussianPolicy(2, ACT, hidden=(3,), key=jax.random.key(0))))


@pytest.mark.parametrize(
    ("agent", "select"),
    [(window_agent(), policy_only), (window_agent(CategoricalPolicy), policy_only), (gru_agent(), everything)],
    ids=["gaussian", "categorical", "through time"],
)
def test_fisher_product_is_the_dense_hessian(agent: Agent, select: Any) -> None:
    batch = jax.tree.map(jnp.asarray, batch_of(0))
    moving, fixed = eqx.partition(agent, select(agent))
    theta, restore = ravel_pytree(moving)

    def act(theta: jax.Array) -> Any:
        agent = eqx.combine(restore(theta), fixed)
        return distributions(agent.policy, unroll(agent.filter, batch))

    @jax.jit
    def both(theta: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        mask = jnp.asarray(batch.mask)
        old, J = jax.linearize(act, theta)
        dense = jax.hessian(lambda t: mean_kl(old, act(t), mask))(theta)
        return fisher_product(old, J, jax.linear_transpose(J, theta), mask, 0.1)(v), dense @ v + 0.1 * v

    for v in np.random.default_rng(2).standard_normal((3, len(theta))).astype(np.float32):
        product, expected = both(theta, v)
        np.testing.assert_allclose(product, expected, rtol=1e-3, atol=1e-5)


def equal_episodes(steps: int, count: int, seed: int = 0) -> Batch:
    """Episodes of equal length in rows with filler."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(count):
        drawn = rng.standard_normal((steps, ACT))
        episodes.append(Episode(rng.standard_normal((steps + 1, OBS)), np.clip(drawn, -1, 1), drawn[:, 0], drawn))
    return pack(episodes, row_length=2 * steps + 3, row_multiple=4)


@pytest.mark.parametrize("start", [window_agent, gru_agent])
def test_a_region_per_episode_is_that_per_sample_times_the_length_of_an_episode(start: Any) -> None:
    """With ε·T and λ·T the steps are the same, to the rounding of float32; with the same ε and λ they are not."""
    T, agent, batch = 8, start(), equal_episodes(8, 5)
    moves = everything if start is gru_agent else policy_only
    given = {
        "sample": Trpo(max_kl=0.02, damping=0.05, moves=moves),
        "episode": Trpo(max_kl=0.02 * T, damping=0.05 * T, kl_per="episode", moves=moves),
        "narrower": Trpo(max_kl=0.02, damping=0.05, kl_per="episode", moves=moves),
    }
    found = {name: a.step(agent, a.init(agent, key=KEY), batch, key=KEY) for name, a in given.items()}
    (sample, _, one), (episode, _, other), (narrower, _, third) = (found[name] for name in given)
    assert one["skipped"] == other["skipped"] == third["skipped"] == 0
    assert not bits_equal(agent, sample)
    close(sample, episode, rtol=1e-3, atol=1e-5)
    assert float(other["kl"]) == pytest.approx(T * float(one["kl"]), rel=1e-3)
    assert float(change(agent, narrower, batch)) * T == pytest.approx(float(third["kl"]), rel=1e-3)
    assert float(third["kl"]) <= 0.02 and float(change(agent, narrower, batch)) < 0.4 * float(one["kl"])


def test_the_kl_per_episode_is_summed_over_each_and_averaged_over_all() -> None:
    """Episodes of 3, 7, 5, 4 and 9 steps, by hand; and its dense Hessian is the Fisher product."""
    agent, other, batch = window_agent(), window_agent(), jax.tree.map(jnp.asarray, batch_of(0))
    other = eqx.tree_at(lambda a: a.policy.log_std, other, jnp.array([0.1, -0.2]))
    old, new = (distributions(a.policy, unroll(a.filter, batch)) for a in (agent, other))
    kl = np.asarray(jax.vmap(jax.vmap(lambda p, q: p.kl(q)))(old, new), np.float64)
    expected = kl[np.asarray(batch.mask)].sum() / 5
    assert float(mean_kl(old, new, batch.mask, per=batch.ends)) == pytest.approx(expected, rel=1e-5)
    assert float(mean_kl(old, new, batch.mask)) == pytest.approx(expected * 5 / 28, rel=1e-5)

    moving, fixed = eqx.partition(agent, policy_only(agent))
    theta, restore = ravel_pytree(moving)

    def act(theta: jax.Array) -> Any:
        return distributions(eqx.combine(restore(theta), fixed).policy, unroll(agent.filter, batch))

    old, J = jax.linearize(act, theta)
    dense = jax.hessian(lambda t: mean_kl(old, act(t), batch.mask, per=batch.ends))(theta)
    v = jnp.asarray(np.random.default_rng(2).standard_normal(len(theta)), jnp.float32)
    product = fisher_product(old, J, jax.linear_transpose(J, theta), batch.mask, 0.1, per=batch.ends)(v)
    np.testing.assert_allclose(product, dense @ v + 0.1 * v, rtol=1e-3, atol=1e-4)


def test_conjugate_gradient_solves() -> None:
    A = jax.random.normal(jax.random.key(0), (8, 8))
    A = A @ A.T + jnp.eye(8)
    b = jnp.arange(8.0)
    for steps in (4, 20):
        x, A_x = conjugate_gradient(lambda v: A @ v, b, steps)
        np.testing.assert_allclose(A @ x, A_x, atol=1e-3)
    np.testing.assert_allclose(A_x, b, atol=1e-3)
    np.testing.assert_array_equal(conjugate_gradient(lambda v: A @ v, jnp.zeros(8), 20)[0], np.zeros(8))


@eqx.filter_jit
def change(old: Agent, new: Agent, batch: Batch) -> jax.Array:
    """The mean KL of filter and policy together."""
    dists = [distributions(agent.policy, unroll(agent.filter, batch)) for agent in (old, new)]
    return mean_kl(*dists, jnp.asarray(batch.mask))


@pytest.mark.parametrize(
    ("start", "max_kl", "damping"),
    [
        (window_agent, 0.5, 1e-3),  # far enough for the line search to shorten steps
        (lambda: window_agent(CategoricalPolicy), 0.01, 0.1),
        (gru_agent, 0.01, 0.1),
    ],
)
def test_a_step_never_leaves_the_trust_region(start: Any, max_kl: float, damping: float) -> None:
    agent: Agent = start()
    discrete = isinstance(agent.policy, CategoricalPolicy)
    algorithm = Trpo(max_kl=max_kl, damping=damping, moves=everything if start is gru_agent else policy_only)
    state = algorithm.init(agent, key=KEY)
    moved, fractions = 0, []
    for seed in range(5):
        batch = batch_of(seed, one_hot=discrete)
        new, state, diagnostics = algorithm.step(agent, state, batch, key=KEY)
        # Recomputed outside the compiled step, the KL may differ in its last bits.
        assert change(agent, new, batch) <= max_kl * (1 + 1e-3) + 1e-8
        assert diagnostics["kl"] <= max_kl
        assert (diagnostics["surrogate_improvement"] > 0) != bool(diagnostics["skipped"])
        assert all(np.isfinite(value) for value in diagnostics.values())
        fractions.append(float(diagnostics["step_fraction"]))
        moved += not bits_equal(agent, new)
        agent = new
    assert moved >= 4
    assert max_kl < 0.5 or min(fractions) < 1


@pytest.mark.parametrize("select", [policy_only, filter_only, everything])
def test_what_is_frozen_stays_bit_for_bit(select: Any) -> None:
    agent = window_agent() if select is policy_only else gru_agent()
    algorithm = Trpo(moves=select)
    new, _, diagnostics = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0), key=KEY)
    assert diagnostics["skipped"] == 0
    assert bits_equal(agent.filter, new.filter) == (select is policy_only)
    assert bits_equal(agent.policy, new.policy) == (select is filter_only)
    _, frozen = eqx.partition(agent, trainable(agent))
    _, frozen_new = eqx.partition(new, trainable(agent))
    assert leaves(frozen) and bits_equal(frozen, frozen_new)  # the z-scoring constants
    marks = select(agent)
    assert any(jax.tree.leaves(marks.filter)) == (select is not policy_only)
    assert any(jax.tree.leaves(marks.policy)) == (select is not filter_only)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_step_that_is_not_finite_is_skipped(poison: float) -> None:
    agent, batch = window_agent(), batch_of(0)
    np.asarray(batch.rewards)[0, 1] = poison
    algorithm = Trpo()
    new, _, diagnostics = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    assert diagnostics["skipped"] == 1 and diagnostics["kl"] == 0
    assert bits_equal(agent, new)


def test_it_finds_the_best_action_and_compiles_once() -> None:
    """A bandit: reward −(a − 0.5)² in one-step episodes, so the mean goes to 0.5 and the noise dies down."""
    traced = []

    def counting(agent: Agent) -> Any:
        traced.append(1)
        return policy_only(agent)

    window = observation_window(1, 1, 1)
    agent = Agent(window, GaussianPolicy(1, 1, hidden=(2,), key=jax.random.key(0)))
    algorithm = Trpo(max_kl=0.05, moves=counting)
    rng = np.random.default_rng(0)
    state, act = algorithm.init(agent, key=KEY), eqx.filter_jit(lambda agent: agent.policy(jnp.zeros(1)))
    for _ in range(25):
        dist = act(agent)
        drawn = np.asarray(dist.mean) + np.exp(np.asarray(dist.log_std)) * rng.standard_normal((200, 1))
        episodes = [Episode(np.zeros((2, 1)), a[None], -((a - 0.5) ** 2), terminated=True) for a in drawn]
        agent, state, _ = algorithm.step(agent, state, pack(episodes, row_length=10), key=KEY)
    np.testing.assert_allclose(act(agent).mean, 0.5, atol=0.1)
    assert float(act(agent).log_std[0]) < -0.5
    assert len(traced) == 1


def test_settings_are_checked() -> None:
    for wrong in ({"max_kl": 0.0}, {"damping": -1.0}, {"cg_steps": 0}, {"shrink": 1.0}, {"discount": -0.5}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Trpo(**wrong)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="kl_per"):  # a UsageError, unless the type checks of the tests come first
        Trpo(kl_per="row")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="kl_per: 'row' is not one of sample, episode"):
        configured({"method": "fm2", "kl_per": "row"})


@pytest.mark.slow
def test_two_frames_learn_to_balance_without_velocities(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings where it stands
    envs = make("InvertedPendulum-v5", 10)
    explored = explore(envs, episodes=100, seed=0)
    scaling = fit_scaling(np.concatenate([episode.observations for episode in explored]))
    window = observation_window(2, 2, 1)
    batch = pack([replace(e, observations=scaling.encode(e.observations)) for e in explored])
    inputs = fit_scaling(np.asarray(compiled_unroll(window, batch), np.float64)[batch.mask])
    agent = Agent(window, GaussianPolicy(window.size, 1, scaling=inputs, key=jax.random.key(0)))
    algorithm = Trpo()
    state, best = algorithm.init(agent, key=KEY), 0.0
    for iteration in range(40):
        collected = collect(agent, envs, scaling=scaling, samples=2000, seed=0, iteration=iteration)
        batch = pack(collected.episodes, row_length=200, row_multiple=4)
        agent, state, diagnostics = algorithm.step(agent, state, batch, key=KEY)
        assert diagnostics["kl"] <= 0.01
        best = max(best, collected.stats["mean_return"])
    assert best >= 150
