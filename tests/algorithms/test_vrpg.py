"""VRPG's gradients against finite differences of a plain loop, its weights by hand, what may move and how far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import KEY, bits_equal, change, close, leaves
from jax.flatten_util import ravel_pytree

from rpsp.algorithms.adam import adam_in_units, moments_in_units
from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, everything, filter_only, policy_only
from rpsp.algorithms.networks import Network, in_units
from rpsp.algorithms.policies import Agent, GaussianPolicy
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg, gradient_variance, truncated_unroll, variance_weights, without_outliers
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import Concatenated, compiled_unroll, prediction_loss, trainable, unroll
from rpsp.filters.memory import GRU, observation_window
from rpsp.filters.two_stage import KernelBayes, fit_two_stage

OBS, ACT = 2, 1


def episodes_of(seed: int, lengths: tuple[int, ...] = (3, 7, 5, 4, 9)) -> list[Episode]:
    rng = np.random.default_rng(seed)
    episodes = []
    for steps in lengths:
        drawn = rng.standard_normal((steps, ACT))
        rewards = rng.standard_normal(steps) + drawn[:, 0]
        observations = np.cumsum(rng.standard_normal((steps + 1, OBS)), axis=0) / 2
        episodes.append(Episode(observations, np.clip(drawn, -1, 1), rewards, drawn))
    return episodes


def batch_of(seed: int) -> Batch:
    """Five short episodes in rows with filler."""
    return pack(episodes_of(seed), row_length=12, row_multiple=4)


def policy_on(inputs: int) -> Any:
    """A policy with live units and an output layer that is not zero: its loss has a gradient in the filter."""
    policy = GaussianPolicy(inputs, ACT, hidden=(3,), key=jax.random.key(0))
    weight = 0.5 * jax.random.normal(jax.random.key(7), (ACT, 3))
    return eqx.tree_at(
        lambda p: (p.network.layers[0].bias, p.network.layers[-1].weight), policy, (jnp.full(3, 0.7), weight)
    )


@cache
def gru_agent() -> Agent:
    return Agent(GRU(2, OBS, ACT, key=jax.random.key(1)), policy_on(2))


@cache
def psr_agent() -> Agent:
    """The paper's filter and two frames: it has constants, and parameters that no loss of VRPG looks at (W_hor)."""
    chosen = KernelBayes(past=3, future=2, dimension=3, history_dimension=8, frequencies=20)
    psr = fit_two_stage(pack(episodes_of(3, (12,) * 20)), chosen, rng=np.random.default_rng(0))
    filter = Concatenated(psr, observation_window(1, OBS, ACT))
    return Agent(filter, policy_on(filter.size))


# Gradients


def losses_by_hand(episodes: list[Episode], discount: float) -> Callable[[Agent, Agent], jax.Array]:
    """(ℓ₁, ℓ₂) of an agent by a loop over episodes and steps; the advantages are those of another, fixed agent."""

    def states(agent: Agent, episode: Episode) -> list[jax.Array]:
        q = agent.filter.update(agent.filter.init(), jnp.zeros(ACT), jnp.asarray(episode.observations[0]))
        all_q = [q]
        for a, o in zip(episode.actions[:-1], episode.observations[1:-1], strict=True):
            all_q.append(agent.filter.update(all_q[-1], jnp.asarray(a), jnp.asarray(o)))
        return all_q

    def losses(agent: Agent, fixed: Agent) -> jax.Array:
        inputs = jnp.stack([jnp.append(q, 1.0) for episode in episodes for q in states(fixed, episode)])
        R = []
        for episode in episodes:
            assert episode.rewards is not None
            discounts = discount ** np.arange(len(episode))
            R += [np.sum(episode.rewards[t:] * discounts[: len(episode) - t]) for t in range(len(episode))]
        A = jnp.asarray(R) - inputs @ jnp.linalg.lstsq(inputs, jnp.asarray(R))[0]
        policy, prediction, step = 0.0, 0.0, 0
        for episode in episodes:
            assert episode.drawn_actions is not None
            for t, q in enumerate(states(agent, episode)):
                policy -= agent.policy(q).log_prob(jnp.asarray(episode.drawn_actions[t])) * A[step]
                guess = agent.filter.predict(q, jnp.asarray(episode.actions[t]))
                prediction += jnp.sum((guess - episode.observations[t + 1]) ** 2)
                step += 1
        return jnp.stack([policy, prediction]) / len(episodes)

    return losses


def test_gradients_are_those_of_finite_differences() -> None:
    """Norms from the diagnostics, signs from Adam's first step, which is −η sign(g)."""
    episodes = episodes_of(0, (2, 4, 1))
    single = gru_agent(), pack(episodes, row_length=5)
    with jax.enable_x64(True):
        agent, batch = jax.tree.map(
            lambda x: jnp.asarray(x, jnp.float64) if eqx.is_inexact_array_like(x) else x,
            single,
        )
        moving, fixed = eqx.partition(agent, trainable(agent))
        theta, restore = ravel_pytree(moving)
        by_hand = losses_by_hand(episodes, 0.9)
        at = jax.jit(jax.vmap(lambda theta: by_hand(eqx.combine(restore(theta), fixed), agent)))
        nudges = 1e-5 * jnp.eye(len(theta))
        here, up, down = np.split(
            np.asarray(at(jnp.concatenate([theta[None], theta + nudges, theta - nudges]))), [1, len(theta) + 1]
        )
        gradients = (up - down) / 2e-5
        norms = np.linalg.norm(gradients, axis=0)
        algorithm = Vrpg(1e-3, discount=0.9, normalise=False, prediction_weight=3.0, max_norm=1e9)
        new, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
        for i, name in enumerate(["policy", "prediction"]):
            np.testing.assert_allclose(found[f"{name}_loss"], here[0, i], rtol=1e-4)
            np.testing.assert_allclose(found[f"{name}_gradient_norm"], norms[i], rtol=1e-4)
        joint = gradients @ ([1.0, 3.0] / norms)
        clear = np.abs(joint) > 1e-4
        assert clear.mean() > 0.9
        moved = np.asarray(ravel_pytree(eqx.filter(new, trainable(new)))[0] - theta)
        np.testing.assert_allclose(moved[clear], -1e-3 * np.sign(joint[clear]), rtol=1e-2)


@pytest.mark.parametrize("length", [1, 5])
def test_truncation_changes_no_state(length: int) -> None:
    filter, batch = psr_agent().filter, batch_of(0)
    states = eqx.filter_jit(truncated_unroll)(filter, jax.tree.map(jnp.asarray, batch), length)
    # Two programs: XLA may fuse them differently, so the last bits differ between CPUs.
    np.testing.assert_allclose(states, compiled_unroll(filter, batch), rtol=1e-4, atol=1e-5)


def test_gradients_flow_back_within_a_segment_and_an_episode_only() -> None:
    filter, batch = gru_agent().filter, jax.tree.map(jnp.asarray, batch_of(0))
    length = 5

    def states(seen: jax.Array) -> jax.Array:
        return truncated_unroll(filter, eqx.tree_at(lambda b: b.previous_observations, batch, seen), length).sum(
            axis=-1
        )

    sensitivity = np.abs(np.asarray(jax.jit(jax.jacrev(states))(batch.previous_observations))).max(
        axis=-1
    )  # [row, t, row, s]
    for row in range(batch.shape[0]):
        episode = np.cumsum(batch.starts[row])
        for t in range(batch.shape[1]):
            expected = [s <= t and s // length == t // length and episode[s] == episode[t] for s in range(12)]
            np.testing.assert_array_equal(sensitivity[row, t, row] > 0, expected)


def test_pieces_that_begin_at_known_states_give_the_same_gradient() -> None:
    """All pieces at once, from the states that were acted on, or one after the other."""
    agent, batch = psr_agent(), batch_of(0)
    known = eqx.tree_at(
        lambda b: b.states, batch, np.asarray(compiled_unroll(agent.filter, batch)), is_leaf=lambda x: x is None
    )
    algorithm = Vrpg(truncate=5)
    found = [algorithm.step(agent, algorithm.init(agent, key=KEY), b, key=KEY)[2] for b in (batch, known)]
    for name in ("policy_gradient_norm", "prediction_gradient_norm", "kl", "policy_loss", "prediction_loss"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-4)
    states = [truncated_unroll(agent.filter, jax.tree.map(jnp.asarray, b), 5) for b in (batch, known)]
    np.testing.assert_allclose(*states, atol=1e-5)


def test_a_truncation_longer_than_every_row_is_none() -> None:
    agent, batch = gru_agent(), batch_of(0)
    after = {}
    for truncate in (None, 12, 2):
        algorithm = Vrpg(prediction_weight=3.0, truncate=truncate)
        new, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
        np.testing.assert_allclose(found["kl"], change(agent, new, batch), rtol=1e-2, atol=1e-8)
        after[truncate] = new, float(found["prediction_gradient_norm"])
    # A new static argument is a new program: equal up to rounding, which Adam's first step, −η sign(g), keeps small.
    close(after[None], after[12])
    assert after[2][1] != pytest.approx(after[None][1], rel=1e-3)


# Weights


def test_beta_weights_the_new_value() -> None:
    """Squared norms 25 and 4, then 100 and 0, then 0 and 0, with β = 0.1: 0.9 · 25 + 0.1 · 100 = 32.5, and so on."""
    v = jnp.zeros(2)
    expected = [[25, 4], [32.5, 3.6], [29.25, 3.24]]
    for gradients, wanted in zip([[[3, 4], [0, 2]], [[6, 8], [0, 0]], [[0, 0], [0, 0]]], expected, strict=True):
        v = gradient_variance(v, jnp.asarray(gradients, jnp.float32), 0.1)
        np.testing.assert_allclose(v, wanted, rtol=1e-6)
    np.testing.assert_allclose(variance_weights(jnp.asarray([4.0, 0.0])), [0.5, 0.0])


def test_the_rule_weights_its_losses_so() -> None:
    agent = gru_agent()
    algorithm = Vrpg(prediction_weight=3.0, max_norm=100.0)  # so that neither counts as an outlier
    agent, state, first = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0), key=KEY)
    _, state, second = algorithm.step(agent, state, batch_of(1), key=KEY)
    for i, (name, a) in enumerate({"policy": 1.0, "prediction": 3.0}.items()):
        norms = [float(found[f"{name}_gradient_norm"]) for found in (first, second)]
        assert norms[0] != norms[1]
        np.testing.assert_allclose(first[f"{name}_weight"], a / norms[0], rtol=1e-5)
        v = 0.9 * norms[0] ** 2 + 0.1 * norms[1] ** 2
        np.testing.assert_allclose(second[f"{name}_weight"], a / np.sqrt(v), rtol=1e-5)
        np.testing.assert_allclose(state.v[i], v, rtol=1e-5)


def test_the_policy_may_go_further_than_the_filter() -> None:
    agent, ends = gru_agent(), {}
    for rate in (1.0, 10.0):
        algorithm = Vrpg(policy_rate=rate)
        ends[rate] = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0), key=KEY)[0]
    close(ends[1.0].filter, ends[10.0].filter)  # the rate is compiled in: two programs
    way = {rate: jax.tree.map(lambda new, old: new - old, end.policy, agent.policy) for rate, end in ends.items()}
    for near, far in zip(jax.tree.leaves(way[1.0]), jax.tree.leaves(way[10.0]), strict=True):
        np.testing.assert_allclose(far, 10 * near, rtol=1e-3, atol=1e-6)


def test_outliers_are_cut_before_they_are_remembered() -> None:
    """Usual norms 5 and 2, three times of which are allowed: 20 becomes 15, 1 stays; before the first, nothing is known."""
    gradients = jnp.asarray([[12.0, 16.0], [0.0, 1.0]])
    np.testing.assert_allclose(without_outliers(gradients, jnp.asarray([25.0, 4.0]), 3.0), [[9, 12], [0, 1]], rtol=1e-6)
    np.testing.assert_array_equal(without_outliers(gradients, jnp.zeros(2), 3.0), gradients)


def test_a_step_after_an_explosion_is_as_long_as_before() -> None:
    """Rewards a thousand times larger for one batch: the weight of the policy loss falls by a third, not to nothing."""
    agent, algorithm = gru_agent(), Vrpg(learning_rate=1e-6, normalise=False)
    state, weights = algorithm.init(agent, key=KEY), []
    for factor in (1.0, 1000.0, 1.0):
        batch = batch_of(0)
        batch = eqx.tree_at(lambda b: b.rewards, batch, factor * batch.rewards)
        agent, state, found = algorithm.step(agent, state, batch, key=KEY)
        weights.append(float(found["policy_weight"]))
    np.testing.assert_allclose(weights[1:], weights[0] / np.sqrt([1.8, 0.9 * 1.8 + 0.1]), rtol=1e-3)


# What moves, and how far


@pytest.mark.parametrize("select", [policy_only, filter_only, everything])
def test_what_is_frozen_stays_bit_for_bit(select: Any) -> None:
    agent = psr_agent()
    algorithm = Vrpg(moves=select, truncate=5)
    new, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0), key=KEY)
    assert found["skipped"] == 0
    assert bits_equal(agent.filter, new.filter) == (select is policy_only)
    assert bits_equal(agent.policy, new.policy) == (select is filter_only)
    _, constants = eqx.partition(agent, trainable(agent))
    _, after = eqx.partition(new, trainable(agent))
    assert len(leaves(constants)) > 10 and bits_equal(constants, after)
    moved = not np.array_equal(agent.filter.first.W_pred, new.filter.first.W_pred)  # type: ignore[attr-defined]
    assert moved == (select is not policy_only)


def test_frozen_predictions_stay_and_still_teach_the_filter() -> None:
    """W_pred gets no gradient; that of the others is the same as with a W_pred that moves."""
    free, batch = psr_agent(), batch_of(0)
    frozen = eqx.tree_at(lambda a: a.filter.first, free, replace(free.filter.first, frozen=("W_pred",)))  # type: ignore[attr-defined]
    assert not trainable(frozen).filter.first.W_pred and trainable(free).filter.first.W_pred
    algorithm = Vrpg(return_weight=0.0, truncate=5)
    new, memory, found = algorithm.step(frozen, algorithm.init(frozen, key=KEY), batch, key=KEY)
    before, after = frozen.filter.first, new.filter.first  # type: ignore[attr-defined]
    assert found["skipped"] == 0 and bits_equal(before.W_pred, after.W_pred)
    assert not np.array_equal(before.W_ext_xi, after.W_ext_xi)

    def loss(agent: Agent, W_ext_xi: jax.Array) -> jax.Array:
        filter = eqx.tree_at(lambda f: f.first.W_ext_xi, agent.filter, W_ext_xi)
        return prediction_loss(filter, unroll(filter, batch), batch)

    expected, gradient = (jax.grad(lambda W, a=a: loss(a, W))(before.W_ext_xi) for a in (free, frozen))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    assert np.abs(expected).max() > 0
    sizes = [ravel_pytree(eqx.filter(a, trainable(a)))[0].size for a in (free, frozen)]
    assert sizes[0] - sizes[1] == before.W_pred.size and memory.adam is not None


def test_prediction_weight_0_drops_the_prediction_loss() -> None:
    """What only predictions depend on does not move, and a prediction that is not finite is nobody's business."""
    agent, batch = psr_agent(), batch_of(0)
    algorithm = Vrpg(prediction_weight=0.0)
    new, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    before, after = agent.filter.first, new.filter.first  # type: ignore[attr-defined]
    assert bits_equal((before.W_pred, before.W_hor), (after.W_pred, after.W_hor))
    assert not np.array_equal(before.W_ext_xi, after.W_ext_xi)
    assert found["prediction_gradient_norm"] == found["prediction_weight"] == 0 < found["prediction_loss"]
    np.asarray(batch.observations)[0, 0] = np.inf  # what is predicted, not what is filtered in; NaN would be missing
    again, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    assert found["skipped"] == 0 and np.isinf(found["prediction_loss"])
    assert bits_equal(again, new)


def test_a_step_never_leaves_the_trust_region() -> None:
    max_kl = 0.01
    algorithm, now = Vrpg(0.1, filter_kl=max_kl), gru_agent()
    state, fractions = algorithm.init(now, key=KEY), []
    for seed in range(4):
        batch = batch_of(seed)
        new, state, found = algorithm.step(now, state, batch, key=KEY)
        fractions.append(float(found["step_fraction"]))
        # Recomputed outside the compiled step, the KL may differ in its last bits.
        assert change(now, new, batch) <= max_kl * (1 + 1e-3) + 1e-8
        np.testing.assert_allclose(found["kl"], change(now, new, batch), rtol=1e-2, atol=1e-7)
        assert all(np.isfinite(value) for value in found.values())
        now = new
    assert 0 < min(fractions) < 1


def test_a_step_too_long_for_the_trust_region_is_given_up() -> None:
    agent, batch = gru_agent(), batch_of(0)
    algorithm = Vrpg(1e6, filter_kl=0.01)
    new, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    assert bits_equal(agent, new)
    assert found["skipped"] == 1 and found["step_fraction"] == found["kl"] == 0


@pytest.mark.parametrize(
    "algorithm", [Vrpg(prediction_weight=3.0), Vrpg(0.1, filter_kl=0.01)], ids=["free", "trust region"]
)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_batch_that_is_not_finite_is_skipped_and_forgotten(poison: float, algorithm: AbstractAlgorithm) -> None:
    agent, state, found = algorithm.step(gru_agent(), algorithm.init(gru_agent(), key=KEY), batch_of(0), key=KEY)
    assert found["skipped"] == 0
    bad = batch_of(1)
    np.asarray(bad.rewards)[0, 1] = poison
    after, remembered, found = algorithm.step(agent, state, bad, key=KEY)
    assert found["skipped"] == 1 and found["kl"] == found["step_fraction"] == 0
    assert bits_equal(agent, after) and bits_equal(state, remembered)


def test_so_is_one_whose_gradient_is_finite_but_not_its_norm() -> None:
    """Cut to a usual norm it would be 0, and the loss be forgotten without a word."""
    algorithm = Vrpg(prediction_weight=3.0)
    agent, state, _ = algorithm.step(gru_agent(), algorithm.init(gru_agent(), key=KEY), batch_of(0), key=KEY)
    bad = batch_of(1)
    np.asarray(bad.observations)[:] = 2e18
    after, remembered, found = algorithm.step(agent, state, bad, key=KEY)
    assert np.isfinite(found["prediction_loss"]) and found["prediction_gradient_norm"] == np.inf
    assert found["skipped"] == found["unsound"] == 1
    assert bits_equal(agent, after) and bits_equal(state, remembered)


def test_prediction_improves_and_one_shape_compiles_once() -> None:
    traced = []

    def counting(agent: Agent) -> Any:
        traced.append(1)
        return filter_only(agent)

    agent, batch = gru_agent(), batch_of(0)
    algorithm = Vrpg(1e-2, moves=counting)
    state, losses = algorithm.init(agent, key=KEY), []
    assert len(traced) == 1
    for _ in range(40):
        agent, state, found = algorithm.step(agent, state, batch, key=KEY)
        losses.append(float(found["prediction_loss"]))
    assert losses[-1] < 0.9 * losses[0]
    for seed in range(3):
        agent, state, _ = algorithm.step(agent, state, batch_of(seed), key=KEY)
    assert len(traced) == 2


def test_it_finds_the_best_action() -> None:
    """A bandit: reward −(a − 0.5)² in one-step episodes."""
    agent = Agent(observation_window(1, 1, 1), GaussianPolicy(1, 1, hidden=(2,), key=jax.random.key(0)))
    algorithm, rng = Vrpg(0.05, filter_kl=0.05), np.random.default_rng(0)
    state, act = algorithm.init(agent, key=KEY), eqx.filter_jit(lambda agent: agent.policy(jnp.zeros(1)))
    for _ in range(40):
        dist = act(agent)
        drawn = np.asarray(dist.mean) + np.exp(np.asarray(dist.log_std)) * rng.standard_normal((200, 1))
        episodes = [Episode(np.zeros((2, 1)), a[None], -((a - 0.5) ** 2), terminated=True) for a in drawn]
        agent, state, _ = algorithm.step(agent, state, pack(episodes, row_length=10), key=KEY)
    np.testing.assert_allclose(act(agent).mean, 0.5, atol=0.15)
    assert float(act(agent).log_std[0]) < -0.5


# Rules together


def test_alternating_is_the_trust_region_first_and_then_the_filter() -> None:
    agent, batch = gru_agent(), batch_of(0)
    first, second = Trpo(moves=policy_only), Vrpg(moves=filter_only)
    algorithm = InSequence(first, second)
    state = algorithm.init(agent, key=KEY)
    together, new_state, found = algorithm.step(agent, state, batch, key=KEY)
    half, _, trust = first.step(agent, first.init(agent, key=KEY), batch, key=KEY)
    whole, memory, joint = second.step(half, second.init(half, key=KEY), batch, key=KEY)
    assert bits_equal(together, whole) and bits_equal(new_state[1], memory)
    assert found == {f"trpo/{k}": v for k, v in trust.items()} | {f"vrpg/{k}": v for k, v in joint.items()}
    assert not bits_equal(agent.policy, together.policy) and not bits_equal(agent.filter, together.filter)
    other = InSequence(second, first)
    assert not bits_equal(together, other.step(agent, other.init(agent, key=KEY), batch, key=KEY)[0])


class Plain(AbstractAlgorithm):
    """Changes nothing, and has no hooks of its own."""

    def init(self, agent: Agent, *, key: Any) -> Any:
        return 1.0

    def step(self, agent: Agent, memory: Any, batch: Batch, *, key: Any) -> Any:
        return agent, memory, {"kl": jnp.zeros(()), "drawn": jax.random.uniform(key)}


class Keeping(Plain):
    """Counts in its memory which hooks were called."""

    off_policy: ClassVar[bool] = True
    squashed: ClassVar[bool] = True
    gains_from_gpu: ClassVar[bool] = True

    def on_exploration(self, agent: Agent, memory: Any, batch: Batch) -> Any:
        return memory + len(batch.mask)

    def on_refit(self, agent: Agent, memory: Any) -> Any:
        return memory + 10

    def on_new_units(self, agent: Agent, memory: Any, scaling: Scaling) -> Any:
        return memory + scaling.mean[0]


def test_two_algorithms_of_one_name_are_told_apart() -> None:
    both = InSequence(Plain(), Plain())
    found = both.step(gru_agent(), both.init(gru_agent(), key=KEY), batch_of(0), key=KEY)[2]
    assert set(found) == {"plain1/kl", "plain1/drawn", "plain2/kl", "plain2/drawn"} and both.name == "plain1+plain2"
    assert found["plain1/drawn"] != found["plain2/drawn"], "each has a key of its own"


def test_a_sequence_hands_on_what_its_algorithms_keep() -> None:
    """Of exploration, refits and units: to each algorithm its own memory."""
    agent, batch, units = gru_agent(), batch_of(0), Scaling(np.full(4, 0.5), np.ones(4))
    both = InSequence(Plain(), Keeping())
    memory = both.init(agent, key=KEY)
    assert both.on_refit(agent, memory) == (1.0, 11.0)
    assert both.on_exploration(agent, memory, batch) == (1.0, 1.0 + len(batch.mask))
    assert both.on_new_units(agent, memory, units) == (1.0, 1.5)
    assert both.squashed and both.off_policy and both.gains_from_gpu
    alone = InSequence(Plain(), Plain())
    assert not (alone.squashed or alone.off_policy or alone.gains_from_gpu)


def test_an_algorithm_without_a_step_is_refused() -> None:
    class Half(AbstractAlgorithm):
        def init(self, agent: Agent, *, key: Any) -> Any:
            return ()

    with pytest.raises(TypeError, match="step"):
        Half()  # pyright: ignore[reportAbstractUsage]


def test_settings_are_checked() -> None:
    wrong = [
        {"learning_rate": 0.0},
        {"filter_kl": 0.0},
        {"discount": 1.5},
        {"max_norm": -1.0},
        {"truncate": 0},
        {"averaging_rate": 0.0},
        {"averaging_rate": 1.1},
        {"prediction_weight": -1.0},
        {"return_weight": 0.0, "prediction_weight": 0.0},
    ]
    for settings in wrong:
        with pytest.raises(UsageError, match=next(iter(settings))):
            Vrpg(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_adams_moments_in_other_units_are_those_of_gradients_in_these_units(shift: float) -> None:
    """Two histories of the same losses, in the old units and in the new ones; by hand for the first layer."""
    rng = np.random.default_rng(0)
    old, new = (
        Scaling(np.array([1.0, -1.0]), np.array([2.0, 0.5])),
        Scaling(np.array([1.0, -1.0]), np.array([0.1, 4.0])),
    )
    new = Scaling(new.mean + shift, new.scale)
    network = Network(2, 1, hidden=(3,), scaling=old, key=jax.random.key(0))
    network = eqx.tree_at(lambda n: n.layers[-1].weight, network, jnp.asarray(rng.normal(size=(1, 3)), jnp.float32))
    rescaled, adam = in_units(network, new), optax.scale_by_adam(eps=1e-12)

    def gradient(network: Network, q: Any) -> Any:
        moving, fixed = eqx.partition(network, trainable(network))
        return jax.grad(lambda moving: jnp.sum(jnp.tanh(jax.vmap(eqx.combine(moving, fixed))(q))))(moving)

    states: list[Any] = [adam.init(eqx.filter(n, trainable(n))) for n in (network, rescaled)]
    for _ in range(5):
        q = jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)
        states = [adam.update(gradient(n, q), state)[1] for n, state in zip((network, rescaled), states, strict=True)]
    found: Any = adam_in_units(states[0], lambda m, v: moments_in_units(m, v, network, new))
    wanted: Any = states[1]
    for one, other in zip(jax.tree.leaves(found.mu), jax.tree.leaves(wanted.mu), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert not np.allclose(states[0].mu.layers[0].weight, wanted.mu.layers[0].weight, rtol=0.1)
    if shift == 0:  # a pure change of scale: second moments and the next step are the same as well
        q = jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)
        steps = [adam.update(gradient(rescaled, q), state)[0] for state in (found, wanted)]
        steps.append(
            adam.update(gradient(network, q), states[0])[0]
        )  # Adam's step does not depend on a gradient's scale
        for one, *others in zip(*map(jax.tree.leaves, steps), strict=True):
            for other in others:
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    else:
        (v, v_bias) = (np.asarray(x) for x in (states[0].nu.layers[0].weight, states[0].nu.layers[0].bias))
        r, d = old.scale / new.scale, (old.mean - new.mean) / new.scale
        np.testing.assert_allclose(found.nu.layers[0].weight, v * r**2 + v_bias[:, None] * d**2, rtol=1e-5)
        np.testing.assert_array_equal(found.nu.layers[0].bias, v_bias)


@pytest.mark.parametrize(("select", "halved"), [(everything, 1), (filter_only, 0)])
def test_vrpg_rescales_the_moments_of_the_policy_alone(select: Any, halved: int) -> None:
    algorithm, agent, batch = Vrpg(moves=select), gru_agent(), batch_of(0)
    agent, memory, _ = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    network: Any = agent.policy.network  # pyright: ignore[reportAttributeAccessIssue]
    after = algorithm.on_new_units(agent, memory, Scaling(np.asarray(network.mean), 2 * np.asarray(network.scale)))
    (before,), (then,) = (
        [s.mu for s in jax.tree.leaves(m.adam, is_leaf=lambda s: hasattr(s, "mu")) if hasattr(s, "mu")]
        for m in (memory, after)
    )
    restore = ravel_pytree(eqx.filter(agent, select(agent)))[1]
    before, then = restore(before), restore(then)
    assert sum(not np.array_equal(*pair) for pair in zip(leaves(before), leaves(then), strict=True)) == halved
    if halved:
        weights = [moments.policy.network.layers[0].weight for moments in (before, then)]
        np.testing.assert_allclose(weights[1], 0.5 * np.asarray(weights[0]), rtol=1e-6)
