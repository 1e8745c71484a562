"""PPO's gradient against the policy gradient, its bootstrap by a plain loop, what may move and when it stops."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import KEY, bits_equal, change, leaves

from rpsp.algorithms.base import everything, policy_only
from rpsp.algorithms.networks import in_units
from rpsp.algorithms.objectives import distributions, gae, policy_loss
from rpsp.algorithms.policies import AbstractPolicy, Agent, CategoricalPolicy, GaussianPolicy
from rpsp.algorithms.ppo import Moments, Ppo, PpoMemory, merge, shuffled, states_after
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import compiled_unroll, trainable
from rpsp.filters.memory import GRU, observation_window

OBS, ACT = 2, 2
DIAGNOSTICS = {
    "kl",
    "policy_loss",
    "value_loss",
    "entropy",
    "explained_variance",
    "clip_fraction",
    "policy_gradient_norm",
    "skipped",
    "unsound",
    "epochs_done",
    "reward_scale",
    "log_std",
}


def batch_of(seed: int) -> Batch:
    """Six short episodes, 30 steps, in rows with filler; two of them terminated."""
    rng = np.random.default_rng(seed)
    episodes = []
    for i, steps in enumerate((3, 7, 5, 4, 9, 2)):
        drawn = rng.standard_normal((steps, ACT))
        rewards = rng.standard_normal(steps) + drawn[:, 0]
        observations = rng.standard_normal((steps + 1, OBS))
        episodes.append(Episode(observations, np.clip(drawn, -1, 1), rewards, drawn, terminated=i in (1, 5)))
    return pack(episodes, row_length=12, row_multiple=4)


@cache
def gru_agent() -> Agent:
    """A policy with live units and an output layer that is not zero."""
    policy = GaussianPolicy(3, ACT, hidden=(3,), key=jax.random.key(0))
    weight = 0.5 * jax.random.normal(jax.random.key(7), (ACT, 3))
    policy = eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, weight)
    return Agent(GRU(3, OBS, ACT, key=jax.random.key(1)), policy)


SMALL = {"passes": 3, "minibatch": 8, "hidden": (4,)}


# Its parts


def test_the_state_after_an_episode_that_ran_out_of_time() -> None:
    """By one more update of the filter; two such episodes share a row."""
    agent, batch = gru_agent(), batch_of(0)
    states = compiled_unroll(agent.filter, batch)
    after = np.asarray(eqx.filter_jit(states_after)(agent.filter, states, batch))
    truncated = np.asarray(batch.truncated)
    assert truncated.sum() == 4 and truncated.sum(axis=1).max() > 1
    for row, t in np.argwhere(truncated):
        given = states[row, t], jnp.asarray(batch.actions[row, t]), jnp.asarray(batch.observations[row, t])
        np.testing.assert_allclose(after[row, t], agent.filter.update(*given), rtol=1e-4, atol=1e-6)
    assert (after[~truncated] == 0).all()


def test_steps_come_before_filler_each_once_and_in_another_order() -> None:
    mask = jnp.asarray(np.random.default_rng(0).random(50) < 0.6)
    steps = int(mask.sum())
    one, other = (np.asarray(shuffled(mask, key=jax.random.key(seed))) for seed in (0, 1))
    for order in (one, other):
        assert sorted(order) == list(range(50))
        np.testing.assert_array_equal(np.sort(order[:steps]), np.flatnonzero(mask))
    assert (one[:steps] != other[:steps]).any()


def test_moments_of_batches_are_those_of_all_steps_together() -> None:
    rng = np.random.default_rng(0)
    zero = jnp.zeros(())
    moments, seen = Moments(zero, zero, zero), []
    for scale in (1.0, 10.0, 0.1):
        x, mask = 5 + scale * rng.standard_normal((3, 7)), rng.random((3, 7)) < 0.7
        moments = merge(moments, jnp.asarray(np.where(mask, x, np.nan), jnp.float32), jnp.asarray(mask))
        seen += list(x[mask])
    np.testing.assert_allclose(moments, [len(seen), np.mean(seen), np.var(seen)], rtol=1e-5)


# The step


@pytest.mark.parametrize("bootstrap", [True, False])
def test_the_first_gradient_is_the_policy_gradient(bootstrap: bool) -> None:
    """One minibatch of the whole batch: every ratio is 1, and Adam's first step is −η sign(g)."""
    agent, batch = gru_agent(), batch_of(0)
    algorithm = Ppo(
        1e-3, passes=1, minibatch=30, bootstrap=bootstrap, scale_rewards=False, normalise=False, hidden=(4,)
    )
    state: PpoMemory = algorithm.init(agent, key=KEY)
    state = state._replace(critic=eqx.tree_at(lambda c: c.layers[-1].bias, state.critic, jnp.asarray([1.5])))
    new, _, found = algorithm.step(agent, state, batch, key=KEY)
    values = jnp.full(batch.shape, 1.5)
    A = gae(batch, values, values if bootstrap else 0 * values, 0.99, 0.95)
    states = compiled_unroll(agent.filter, batch)
    gradient = jax.jit(jax.grad(lambda p: policy_loss(distributions(p, states), batch, A)))(agent.policy)
    gradient = jax.tree.map(lambda g: 6 / 30 * np.asarray(g), eqx.filter(gradient, trainable(agent.policy)))
    norm = np.sqrt(sum(np.sum(g**2) for g in leaves(gradient)))
    np.testing.assert_allclose(found["policy_gradient_norm"], norm, rtol=1e-3)
    moved = jax.tree.map(lambda now, was: np.asarray(now - was), new.policy, agent.policy)
    for g, step in zip(leaves(gradient), leaves(eqx.filter(moved, trainable(agent.policy))), strict=True):
        clear = np.abs(g) > 1e-2
        np.testing.assert_allclose(step[clear], -1e-3 * np.sign(g)[clear], rtol=2e-2)


def test_the_filter_stays_bit_for_bit() -> None:
    agent = gru_agent()
    algorithm = Ppo(**SMALL)
    new, memory, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0), key=KEY)
    assert bits_equal(agent.filter, new.filter) and not bits_equal(agent.policy, new.policy)
    assert bits_equal(agent.policy.network.scale, new.policy.network.scale)  # type: ignore[attr-defined]
    assert not bits_equal(memory.critic, algorithm.init(agent, key=KEY).critic)
    assert set(found) == DIAGNOSTICS and all(np.isfinite(value) for value in found.values())
    assert found["skipped"] == 0 and found["epochs_done"] == 3
    np.testing.assert_allclose(found["kl"], change(agent, new, batch_of(0)), rtol=1e-2, atol=1e-8)
    with pytest.raises(UsageError, match="moves"):
        Ppo(moves=everything).init(agent, key=KEY)


def test_the_same_keys_give_the_same_bits() -> None:
    def twice(init: int, step: int) -> Any:
        algorithm, agent = Ppo(**SMALL), gru_agent()
        memory = algorithm.init(agent, key=jax.random.key(init))
        agent, memory, _ = algorithm.step(agent, memory, batch_of(0), key=jax.random.key(step))
        return algorithm.step(agent, memory, batch_of(1), key=jax.random.key(step + 1))

    first = twice(0, 0)
    assert bits_equal(first, twice(0, 0))
    assert not bits_equal(first[0], twice(1, 0)[0]), "another critic"
    assert not bits_equal(first[0], twice(0, 1)[0]), "another order of steps"


def test_nothing_is_learned_from_filler() -> None:
    agent, batch = gru_agent(), batch_of(0)
    algorithm = Ppo(**SMALL)
    expected = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    filler = ~np.asarray(batch.mask)
    for name in ("previous_observations", "previous_actions", "drawn_actions", "actions", "observations", "rewards"):
        np.asarray(getattr(batch, name))[filler] = np.nan
    assert bits_equal(algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY), expected)


@pytest.mark.parametrize(
    ("where", "poison"),
    # The square of the last is not finite.
    [
        ("rewards", np.nan),
        ("rewards", np.inf),
        ("drawn_actions", np.inf),
        ("previous_observations", np.nan),
        ("rewards", 1e30),
    ],
)
def test_a_batch_that_is_not_finite_is_skipped_and_forgotten(where: str, poison: float) -> None:
    algorithm = Ppo(**SMALL)
    agent, state, _ = algorithm.step(gru_agent(), algorithm.init(gru_agent(), key=KEY), batch_of(0), key=KEY)
    bad = batch_of(1)
    np.asarray(getattr(bad, where))[0, 1] = poison
    after, remembered, found = algorithm.step(agent, state, bad, key=KEY)
    assert bits_equal(agent, after) and bits_equal(state, remembered)
    assert found["skipped"] == 1 and found["epochs_done"] == found["kl"] == 0


def test_a_gradient_that_is_not_finite_is_not_followed() -> None:
    """Of two minibatches one has a gradient whose norm overflows. The other is learned from."""
    agent, batch = gru_agent(), batch_of(0)
    np.asarray(batch.rewards)[0, 0] = 1e18
    algorithm = Ppo(passes=1, minibatch=15, value_weight=1e10, scale_rewards=False, normalise=False, hidden=(4,))
    new, memory, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    assert found["skipped"] == 0.5
    assert not bits_equal(agent.policy, new.policy)
    assert all(np.isfinite(leaf).all() for leaf in leaves((new, memory)))


def test_epochs_end_when_the_policy_has_changed_enough() -> None:
    agent, batch = gru_agent(), batch_of(0)
    done = {}
    for target in (1e-6, 0.03):
        algorithm = Ppo(1e-2, passes=20, minibatch=8, hidden=(4,), target_kl=target)
        _, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
        done[target] = int(found["epochs_done"])
        assert found["kl"] > target
    assert done[1e-6] == 1 < done[0.03] < 20


def test_after_a_change_of_units_it_goes_on_as_if_they_had_always_been_these() -> None:
    """Policy and critic make the same steps in their parameters, in units twice as large: no step remembers old units."""
    algorithm, agent, batch = Ppo(1e-2, max_norm=1e9, target_kl=None, **SMALL), gru_agent(), batch_of(0)
    agent, memory, _ = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    units = Scaling(np.zeros(3), np.full(3, 2.0))
    doubled = eqx.tree_at(lambda a: a.policy.network, agent, in_units(agent.policy.network, units))
    moved = algorithm.on_new_units(agent, memory, units)
    first, second = (memory.adam[1], moved.adam[1])
    ratio = np.asarray(second.mu) / np.where(first.mu == 0, 1, first.mu)
    assert set(np.round(ratio[np.asarray(first.mu) != 0], 4)) == {1.0, 0.5}, "only the first layers' weights"
    np.testing.assert_allclose(np.asarray(second.nu), np.asarray(first.nu) * ratio**2, rtol=1e-4, atol=1e-12)
    once = Ppo(1e-3, passes=1, minibatch=30, max_norm=1e9, hidden=(4,))
    steps = []
    for before, kept in ((agent, memory), (doubled, moved)):
        after, remembered, _ = once.step(before, kept, batch, key=KEY)
        pairs = (after.policy.network, before.policy.network), (remembered.critic, kept.critic)
        steps.append([leaf for new, old in pairs for leaf in map(np.subtract, leaves(new), leaves(old))])
    for one, other in zip(*steps, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert max(np.abs(step).max() for step in steps[0]) > 2e-4


def test_the_learning_rate_falls_to_nothing() -> None:
    agent, batch = gru_agent(), batch_of(0)
    algorithm = Ppo(anneal=2, **SMALL)
    state, moved = algorithm.init(agent, key=KEY), []
    for _ in range(3):
        new, state, _ = algorithm.step(agent, state, batch, key=KEY)
        moved.append(max(np.abs(a - b).max() for a, b in zip(leaves(new), leaves(agent), strict=True)))
        agent = new
    assert moved[0] > moved[1] > moved[2] == 0


def test_scaled_rewards_do_not_know_their_unit() -> None:
    agent, batch = gru_agent(), batch_of(0)
    algorithm = Ppo(**SMALL)
    large = eqx.tree_at(lambda b: b.rewards, batch, 1024 * np.asarray(batch.rewards))
    one, _, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    other, _, found_large = algorithm.step(agent, algorithm.init(agent, key=KEY), large, key=KEY)
    assert float(found_large["reward_scale"]) == 1024 * float(found["reward_scale"])
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_critic_learns_the_value_of_a_state() -> None:
    """Reward is what was last seen, episodes have one step: V(q) = q."""
    rng = np.random.default_rng(0)
    agent = Agent(observation_window(1, 1, 1), GaussianPolicy(1, 1, hidden=(2,), key=jax.random.key(0)))
    algorithm = Ppo(3e-3, minibatch=32, hidden=(16,))
    state, explained = algorithm.init(agent, key=KEY), []
    for _ in range(20):
        seen, drawn = rng.standard_normal((2, 100))
        episodes = [
            Episode(np.array([[o], [0.0]]), np.array([[a]]), np.array([o]), terminated=True)
            for o, a in zip(seen, drawn, strict=True)
        ]
        agent, state, found = algorithm.step(agent, state, pack(episodes, row_length=10), key=KEY)
        explained.append(float(found["explained_variance"]))
    assert abs(explained[0]) < 1e-5 and explained[-1] > 0.9


@pytest.mark.parametrize("kind", [GaussianPolicy, CategoricalPolicy])
def test_it_finds_the_best_action_and_compiles_once(kind: type[AbstractPolicy]) -> None:
    """A bandit in one-step episodes: reward −(a − 0.5)², or 1 for the second of three arms."""
    traced = []

    def counting(agent: Agent) -> Any:
        traced.append(1)
        return policy_only(agent)

    discrete = kind is CategoricalPolicy
    actions = 3 if discrete else 1
    window = observation_window(1, 1, actions)
    agent = Agent(window, kind(1, actions, hidden=(4,), key=jax.random.key(0)))  # type: ignore[call-arg]
    algorithm = Ppo(1e-2, minibatch=50, hidden=(8,), moves=counting)
    state, act = algorithm.init(agent, key=KEY), eqx.filter_jit(lambda agent: agent.policy(jnp.zeros(1)))
    draw = eqx.filter_jit(lambda dist, noise: jax.vmap(dist.sample)(noise))
    noise = jax.random.gumbel if discrete else jax.random.normal
    assert len(traced) == 1
    for iteration in range(20):
        drawn = np.asarray(draw(act(agent), noise(jax.random.key(iteration), (200, actions))))
        rewards = drawn[:, 1] if discrete else -((drawn[:, 0] - 0.5) ** 2)
        episodes = [
            Episode(np.zeros((2, 1)), a[None], r[None], terminated=True) for a, r in zip(drawn, rewards, strict=True)
        ]
        agent, state, _ = algorithm.step(agent, state, pack(episodes, row_length=10), key=KEY)
    if discrete:
        assert jax.nn.softmax(act(agent).logits)[1] > 0.9
    else:
        np.testing.assert_allclose(act(agent).mean, 0.5, atol=0.15)
        assert float(act(agent).log_std[0]) < -0.5
    assert len(traced) == 2


def test_settings_are_checked() -> None:
    wrong = [
        {"learning_rate": 0.0},
        {"clip": 1.0},
        {"passes": 0},
        {"minibatch": 0},
        {"discount": 1.1},
        {"gae": -0.1},
        {"value_weight": -1.0},
        {"entropy_weight": -1.0},
        {"max_norm": 0.0},
        {"target_kl": 0.0},
        {"anneal": 0},
    ]
    for settings in wrong:
        with pytest.raises(UsageError, match=next(iter(settings))):
            Ppo(**settings)  # type: ignore[arg-type]
