"""Soft actor-critic: the buffer, the losses against hand-written ones, and a task it must solve."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import KEY

from rpsp.algorithms.critics import values
from rpsp.algorithms.networks import Network, NormedNetwork, ResidualNetwork, with_fixed_norms
from rpsp.algorithms.objectives import rewards_to_go
from rpsp.algorithms.policies import Agent, CategoricalPolicy, GaussianPolicy, SquashedGaussian, SquashedPolicy
from rpsp.algorithms.sac import Sac
from rpsp.algorithms.sac_memory import SacMemory, recomputed, reward_scale
from rpsp.algorithms.sac_sequences import pieces, states_of
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.replay import store
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import compiled_unroll
from rpsp.filters.memory import GRU, observation_window

SMALL = {"hidden": (16,), "minibatch": 8, "capacity": 40}


def episodes(rng: np.random.Generator, *lengths: int) -> list[Episode]:
    return [
        Episode(
            observations=rng.normal(size=(n + 1, 2)),
            actions=np.clip(rng.normal(size=(n, 1)), -1, 1),
            rewards=rng.normal(size=n),
            drawn_actions=np.tanh(rng.normal(size=(n, 1))),
            terminated=bool(n % 2),
            truncated=not n % 2,
        )
        for n in lengths
    ]


def batch_of(seed: int, *lengths: int) -> Batch:
    return pack(episodes(np.random.default_rng(seed), *lengths), row_length=12)


def gru_agent(seed: int = 0) -> Agent:
    first, second = jax.random.split(jax.random.key(seed))
    filter = GRU(4, 2, 1, key=first)
    return Agent(filter, SquashedPolicy(4, 1, key=second))


# The policy


def test_squashed_log_probabilities_integrate_to_one() -> None:
    dist = SquashedGaussian(jnp.asarray([0.3]), jnp.asarray([-0.4]))
    grid = np.tanh(np.linspace(-6, 6, 4001))
    mass = np.trapezoid(np.exp(jax.vmap(lambda a: dist.log_prob(a[None]))(jnp.asarray(grid))), grid)
    assert mass == pytest.approx(1.0, abs=1e-3)


def test_the_log_probability_of_a_sample_is_that_of_the_action() -> None:
    dist = SquashedGaussian(jnp.asarray([0.3, -1.0]), jnp.asarray([-0.4, 0.2]))
    for noise in np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32):
        action, log_prob = dist.sample_and_log_prob(jnp.asarray(noise))
        np.testing.assert_allclose(action, dist.sample(jnp.asarray(noise)))
        np.testing.assert_allclose(log_prob, dist.log_prob(action), rtol=1e-3, atol=1e-3)
    _, far = dist.sample_and_log_prob(jnp.asarray([30.0, -30.0]))  # tanh is ±1 there
    assert np.isfinite(far)


def test_squashing_changes_no_divergence() -> None:
    one = SquashedGaussian(jnp.asarray([0.3]), jnp.asarray([-0.4]))
    other = SquashedGaussian(jnp.asarray([-0.2]), jnp.asarray([0.1]))
    noise = np.random.default_rng(0).normal(size=(200_000, 1)).astype(np.float32)
    actions, log_probs = jax.vmap(one.sample_and_log_prob)(noise)
    estimate = np.mean(log_probs - jax.vmap(other.log_prob)(actions))
    assert float(one.kl(other)) == pytest.approx(float(estimate), rel=0.02)


# The buffer


def in_ring(memory: SacMemory, name: str) -> np.ndarray:
    """Of the buffer what is filled, oldest first."""
    x, steps = np.asarray(getattr(memory.stored, name)), int(memory.steps)
    return np.roll(x, -steps, axis=0) if steps >= len(x) else x[:steps]


def test_the_buffer_holds_the_latest_steps_in_order() -> None:
    agent, algorithm = gru_agent(), Sac(**SMALL)
    memory, everything = algorithm.init(agent, key=KEY), []
    for seed in range(4):
        batch = batch_of(seed, 5, 4, 7)
        everything.append(np.asarray(batch.rewards)[np.asarray(batch.mask)])
        _, memory, found = algorithm.step(agent, memory, batch, key=KEY)
        expected = np.concatenate(everything)[-40:]
        np.testing.assert_allclose(in_ring(memory, "reward"), expected, rtol=1e-6)
        assert int(found["stored"]) == len(expected)
    terminated = np.asarray(batch.ends)[np.asarray(batch.mask)] & ~np.asarray(batch.truncated)[np.asarray(batch.mask)]
    np.testing.assert_array_equal(in_ring(memory, "terminated")[-16:], terminated)
    assert terminated.sum() == 2


def test_the_exploration_is_stored_as_it_was_done() -> None:
    agent, algorithm = gru_agent(), Sac(**SMALL)
    batch = batch_of(0, 5, 4, 7)
    mask = np.asarray(batch.mask)
    memory = algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), batch)
    np.testing.assert_array_equal(in_ring(memory, "action"), np.asarray(batch.actions)[mask])
    np.testing.assert_allclose(in_ring(memory, "q"), np.asarray(compiled_unroll(agent.filter, batch))[mask], atol=1e-6)
    assert int(algorithm.step(agent, memory, batch_of(1, 3), key=KEY)[1].steps) == 19, (
        "what is acted later comes behind it"
    )
    much = batch_of(2, *[12] * 5)  # more than the buffer's 40
    expected = np.asarray(much.rewards)[np.asarray(much.mask)][-40:]
    np.testing.assert_array_equal(
        in_ring(algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), much), "reward"), expected
    )


def test_states_are_computed_anew_as_if_the_new_filter_had_acted() -> None:
    """Exactly where a piece begins with an episode; and where it does not, from the state that was stored."""
    agent, other = gru_agent(0), gru_agent(1)
    batch = batch_of(0, 12, 12)
    memory = Sac(**SMALL).init(agent, key=KEY)
    states = np.asarray(compiled_unroll(agent.filter, batch))
    memory = memory._replace(
        stored=store(memory.stored, memory.steps, batch, jnp.asarray(states)), steps=jnp.asarray(24, jnp.int32)
    )
    expected = np.asarray(compiled_unroll(other.filter, batch)).reshape(24, -1)
    again = recomputed(other, memory, 40).stored.q
    np.testing.assert_allclose(again[:24], expected, atol=1e-6)
    np.testing.assert_array_equal(again[24:], memory.stored.q[24:])
    same = recomputed(agent, memory, 7).stored.q
    np.testing.assert_allclose(same[:24], states.reshape(24, -1), atol=1e-6)


def test_the_oldest_step_of_a_full_buffer_does_not_go_on_from_the_newest() -> None:
    """Computed anew by the filter that made them, states stay what they are, though the ring's seam cuts an episode."""
    agent, algorithm = gru_agent(), Sac(**SMALL)
    batch = batch_of(0, 12, 12, 12, 12, 12)  # 60 steps into a ring of 40: the oldest is the ninth of an episode
    memory = algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), batch)
    assert int(memory.steps) % 40 == 20 and not bool(memory.stored.start[20])
    for length in (40, 7):
        np.testing.assert_allclose(recomputed(agent, memory, length).stored.q, memory.stored.q, atol=1e-6)


# Learning


def test_the_critics_learn_what_a_plain_loop_says() -> None:
    """y = r + γ (min_i Q̄_i(q', a') − α log π(a' | q')), and r alone where an episode terminated, not where time ran out."""
    agent = gru_agent()
    algorithm = Sac(hidden=(16,), minibatch=8, capacity=40, discount=0.9, ratio=0.1)  # one gradient of eleven steps
    first = algorithm.init(agent, key=KEY)
    memory = first._replace(
        targets=jax.tree.map(lambda x: 1.5 * x + 0.1, first.critics), log_temperature=jnp.asarray(-1.0)
    )
    _, after, found = algorithm.step(agent, memory, batch_of(0, 1, 2, 1, 2, 3, 2), key=KEY)
    pick, draw, _ = jax.random.split(jax.random.fold_in(KEY, 0), 3)
    chosen = np.asarray(jax.random.randint(pick, (8,), 0, 11))
    noise, s = jax.random.normal(draw, (8, 1)), after.stored
    lasts = [bool(s.terminated[i]) for i in chosen if i + 1 == 11 or s.start[i + 1]]
    assert any(lasts) and not all(lasts), "both ways to end are among them"

    def both(critics: Network, q: Any, action: Any) -> list[float]:
        inputs = jnp.concatenate([q, action])
        return [float(jax.tree.map(lambda x, i=i: x[i], critics)(inputs)[0]) for i in (0, 1)]

    losses = []
    for i, e in zip(chosen, noise, strict=True):
        y = float(s.reward[i])
        if not s.terminated[i]:
            next_q = agent.filter.update(s.q[i], s.performed[i], s.observation[i])
            action, log_prob = agent.policy(next_q).sample_and_log_prob(e)
            y += 0.9 * (min(both(memory.targets, next_q, action)) - np.exp(-1.0) * float(log_prob))
        losses.append(sum((Q - y) ** 2 for Q in both(memory.critics, s.q[i], s.action[i])))
    assert float(found["critic_loss"]) == pytest.approx(np.mean(losses), rel=1e-4)


def test_pieces_of_the_buffer_are_consecutive() -> None:
    """Also across the end of the ring; not across its seam, where the oldest step follows the newest."""
    agent, algorithm = gru_agent(), Sac(**SMALL)
    memory = algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), batch_of(0, 12, 12, 12, 12, 12))
    numbered = memory.stored._replace(reward=(jnp.arange(40) - 20) % 40.0)  # the oldest of 60 steps is at 20
    found = np.asarray(pieces(numbered, memory.steps, 300, 8, key=KEY).reward)
    np.testing.assert_array_equal(found, found[:, :1] + np.arange(8))
    assert found[:, 0].min() == 0 and found[:, 0].max() == 32
    plain = memory.stored._replace(reward=jnp.arange(40.0))
    short = np.asarray(pieces(plain, jnp.asarray(9), 50, 8, key=KEY).reward)
    assert set(short[:, 0].tolist()) == {0, 1}, "of nine steps, pieces of eight begin with the first or the second"


def test_states_of_pieces_are_those_of_the_buffer_and_differentiable() -> None:
    agent, algorithm = gru_agent(), Sac(**SMALL)
    memory = algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), batch_of(0, 5, 4, 7))
    some = pieces(memory.stored, memory.steps, 4, 10, key=KEY)
    np.testing.assert_allclose(states_of(agent.filter, some), some.q, atol=1e-6)
    gradient = eqx.filter_grad(lambda filter: jnp.sum(states_of(filter, some) ** 2))(agent.filter)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradient)) > 1e-2


def test_a_filter_that_is_trained_moves_at_its_own_rate() -> None:
    """Adam's first step is η sign(g): of the policy with its own step size, of the GRU with `filter_rate`.

    Only the weights of the prediction stay, which no loss of SAC depends on.
    """
    agent = gru_agent()
    algorithm = Sac(1e-2, **SMALL, sequence=4, filter_rate=1e-4, ratio=1 / 24)
    assert algorithm.moves_filter(agent) and not Sac(**SMALL).moves_filter(agent)
    memory = algorithm.init(agent, key=KEY)
    last = memory.critics.layers[-1].weight  # zero at first, which would leave nothing to propagate to the filter
    memory = memory._replace(
        critics=eqx.tree_at(lambda c: c.layers[-1].weight, memory.critics, jax.random.normal(KEY, last.shape))
    )
    new, _, found = algorithm.step(agent, memory, batch_of(0, 12, 12), key=KEY)
    moved = jax.tree.map(lambda n, o: float(jnp.abs(n - o).max()), new.filter, agent.filter)
    assert float(found["skipped"]) == 0
    assert moved.cell.weight_hh == pytest.approx(1e-4, rel=0.01) == moved.cell.weight_ih
    assert moved.decoder.weight == 0
    bias = new.policy.network.layers[-1].bias - agent.policy.network.layers[-1].bias
    assert float(jnp.abs(bias).max()) == pytest.approx(1e-2, rel=0.01)


def test_a_change_of_units_keeps_functions_and_rescales_adams_moments() -> None:
    algorithm, agent = Sac(1e-2, **SMALL), gru_agent()
    agent, memory, _ = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0, 9, 8, 7), key=KEY)
    units = Scaling(np.asarray(agent.policy.network.mean), 2 * np.asarray(agent.policy.network.scale))
    moved = algorithm.on_new_units(agent, memory, units)
    rng = np.random.default_rng(1)
    q, action = (jnp.asarray(rng.normal(size=(6, n)), jnp.float32) for n in (4, 1))
    for name in ("critics", "targets"):
        old, new = getattr(memory, name), getattr(moved, name)
        np.testing.assert_allclose(values(new, q, action), values(old, q, action), atol=1e-4)
        np.testing.assert_allclose(new.scale, np.tile([2.0, 2, 2, 2, 1], (2, 1)) * np.asarray(old.scale))
    (old, *_), (new, *_) = memory.adam, moved.adam
    for before, after, power in ((old.mu, new.mu, 1), (old.nu, new.nu, 2)):
        halved = 0.5**power
        first = before[0].network.layers[0], after[0].network.layers[0]
        np.testing.assert_allclose(first[1].weight, halved * np.asarray(first[0].weight), rtol=1e-5)
        np.testing.assert_array_equal(first[1].bias, first[0].bias)
        first = before[1].layers[0], after[1].layers[0]
        columns = np.array([halved] * 4 + [1.0])  # of four states and one action
        np.testing.assert_allclose(first[1].weight, columns * np.asarray(first[0].weight), rtol=1e-5)
        assert np.abs(first[0].weight).max() > 0
        np.testing.assert_array_equal(after[1].layers[1].weight, before[1].layers[1].weight)
        np.testing.assert_array_equal(after[2], before[2])


def test_running_scale_standardises_all_that_was_seen() -> None:
    """The moments of all states, the first 1000 of which are those of the policy's own scaling; critics share them."""
    agent, algorithm = gru_agent(), Sac(**SMALL, running_scale=True)
    batches = [batch_of(0, 12, 12, 9), batch_of(1, 12, 7, 5)]
    memory = algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), batches[0])
    new, memory, found = algorithm.step(agent, memory, batches[1], key=KEY)
    states = [np.asarray(compiled_unroll(agent.filter, b), np.float64)[np.asarray(b.mask)] for b in batches]
    seen = np.concatenate(states)
    n = len(seen) + 1000  # mean 0 and scale 1
    mean = seen.sum(axis=0) / n
    scale = np.sqrt(((seen**2).sum(axis=0) + 1000) / n - mean**2)
    for network in (new.policy.network, *(jax.tree.map(lambda x, i=i: x[i], memory.critics) for i in (0, 1))):
        np.testing.assert_allclose(network.mean[:4], mean, atol=1e-6)
        np.testing.assert_allclose(network.scale[:4], scale, rtol=1e-5)
    np.testing.assert_array_equal(memory.critics.mean[:, 4:], 0)
    np.testing.assert_array_equal(memory.critics.scale[:, 4:], 1)
    assert eqx.tree_equal(memory.targets.scale, memory.critics.scale) and float(found["skipped"]) == 0
    broken = eqx.tree_at(lambda b: b.observations, batches[1], np.full_like(batches[1].observations, np.nan))
    after = algorithm.step(new, memory, broken, key=KEY)[1]
    assert np.isfinite(after.inputs.mean).all(), "what is not finite does not enter them"


def test_rewards_are_divided_by_the_scale_of_all_returns() -> None:
    """max(σ_G, max |G| / 5) of the discounted returns G of all steps; with means it divides the critics' loss."""
    agent, algorithm = gru_agent(), Sac(**SMALL, scale_rewards=True, discount=0.9)
    batches = [batch_of(0, 12, 12, 9), batch_of(1, 12, 7, 5)]
    assert float(reward_scale(algorithm.init(agent, key=KEY).returns)) == 1
    memory = algorithm.on_exploration(agent, algorithm.init(agent, key=KEY), batches[0])
    _, memory, _ = algorithm.step(agent, memory, batches[1], key=KEY)
    G = np.concatenate([np.asarray(rewards_to_go(b, 0.9))[np.asarray(b.mask)] for b in batches])
    assert G.std() > np.abs(G).max() / 5
    assert float(reward_scale(memory.returns)) == pytest.approx(G.std(), rel=1e-4)
    large = eqx.tree_at(lambda b: b.rewards, batches[1], 1000 * (np.asarray(batches[1].starts) == 1).astype(np.float32))
    _, after, _ = algorithm.step(agent, memory, large, key=KEY)
    assert float(reward_scale(after.returns)) == pytest.approx(1000 / 5, rel=1e-3)
    broken = eqx.tree_at(lambda b: b.rewards, batches[1], np.full_like(batches[1].rewards, np.inf))
    assert float(reward_scale(algorithm.step(agent, after, broken, key=KEY)[1].returns)) == pytest.approx(200, rel=1e-3)


def test_fixed_norms_change_no_function_behind_a_normalisation() -> None:
    network = NormedNetwork(3, 2, hidden=(16, 16), scaling=None, key=KEY)
    network = eqx.tree_at(lambda n: n.layers[-1].weight, network, jnp.ones((2, 16)))
    grown = eqx.tree_at(
        lambda n: [x for a in n.layers[:-1] for x in (a.weight, a.bias)],
        network,
        [3 * x for a in network.layers[:-1] for x in (a.weight, a.bias)],
    )
    fixed = with_fixed_norms(grown)
    for layer in fixed.layers[:-1]:
        assert float(jnp.linalg.norm(layer.weight)) == pytest.approx(np.sqrt(16 / 3), rel=1e-5)
    q = jnp.asarray([0.3, -1.0, 2.0])
    np.testing.assert_allclose(fixed(q), network(q), atol=1e-4)
    ratio = np.asarray(fixed.layers[0].bias) / np.asarray(network.layers[0].bias)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


def test_norms_stay_while_it_learns() -> None:
    agent, algorithm = gru_agent(), Sac(1e-2, **SMALL, fixed_norms=True)
    new, memory, _ = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0, 12, 12), key=KEY)
    for network, size in ((new.policy.network, 1), (memory.critics, 2)):
        norms = jnp.sqrt(jnp.sum(network.layers[0].weight ** 2) / size)
        assert float(norms) == pytest.approx(np.sqrt(network.layers[0].weight.shape[-2] / 3), rel=1e-5)


def test_nothing_is_learned_of_less_than_a_minibatch() -> None:
    agent, algorithm = gru_agent(), Sac(**SMALL)
    new, memory, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0, 4), key=KEY)
    assert eqx.tree_equal(new, agent) and int(memory.steps) == 4 and float(found["kl"]) == 0


def test_lots_and_the_rest_make_as_many_gradient_steps_as_a_batch() -> None:
    """And leave the same buffer: whole episodes in order, whatever the lots were."""
    agent = gru_agent()
    whole, lots = Sac(**SMALL, ratio=0.7), Sac(**SMALL, ratio=0.7, learn_every=3)
    batch = batch_of(0, 12, 12, 12)
    batch = eqx.tree_at(lambda b: b.states, batch, compiled_unroll(agent.filter, batch), is_leaf=lambda x: x is None)
    memory, learner, taken = lots.init(agent, key=KEY), agent, []
    learn = eqx.filter_jit(lots.learn)
    for row in range(3):
        for t in range(0, 12, 3):
            lot = jax.tree.map(lambda x, row=row, t=t: x[row : row + 1, t : t + 3], batch)
            learner, memory = learn(learner, memory, lot, key=jax.random.fold_in(KEY, 12 * row + t))
            taken.append(float(memory.fresh.tally.taken))
    steps = np.floor(0.7 * np.arange(3, 37, 3))
    np.testing.assert_array_equal(taken, np.cumsum(np.where(np.arange(3, 37, 3) < 8, 0, np.diff(steps, prepend=0))))
    assert not eqx.tree_equal(learner.policy, agent.policy)
    _, after, found = lots.step(learner, memory, batch, key=KEY)
    _, expected, _ = whole.step(agent, whole.init(agent, key=KEY), batch, key=KEY)
    assert eqx.tree_equal(after.stored, expected.stored) and int(after.steps) == 36
    assert int(after.fresh.steps) == 0 == float(after.fresh.tally.taken)
    assert float(found["entropy"]) == pytest.approx(float(memory.fresh.tally.totals[2]) / taken[-1])


def test_the_filter_stays_and_a_seed_gives_the_same_bits() -> None:
    agent, algorithm = gru_agent(), Sac(**SMALL)
    ends = [algorithm.step(agent, algorithm.init(agent, key=KEY), batch_of(0, 12, 12), key=KEY) for _ in range(2)]
    assert eqx.tree_equal(ends[0], ends[1])
    assert eqx.tree_equal(ends[0][0].filter, agent.filter) and not eqx.tree_equal(ends[0][0].policy, agent.policy)


@pytest.mark.parametrize("reward", [np.inf, 2e19])
def test_a_gradient_that_is_not_finite_is_not_followed(reward: float) -> None:
    """Nor one whose squares are not, which Adam would remember for ever."""
    agent, algorithm = gru_agent(), Sac(**SMALL)
    batch = batch_of(0, 12, 12)
    batch = eqx.tree_at(lambda b: b.rewards, batch, np.full_like(batch.rewards, reward))
    new, memory, found = algorithm.step(agent, algorithm.init(agent, key=KEY), batch, key=KEY)
    assert float(found["skipped"]) == 1 and eqx.tree_equal(new, agent)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(memory.adam))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "critics", ["plain", "normed", pytest.param("residual", marks=SLOW), pytest.param("atoms", marks=SLOW)]
)
def test_it_finds_the_best_action_of_a_bandit(critics: str) -> None:
    """Episodes of one step; the reward is −(a − 0.5)², so that the policy must come to 0.5, and its value near 0."""
    rng = np.random.default_rng(0)
    window = observation_window(1, 1, 1)
    body = "residual" if critics == "residual" else "plain"
    agent = Agent(window, SquashedPolicy(1, 1, body=body, key=jax.random.key(0)))
    normed = critics == "normed"
    algorithm = Sac(3e-3, hidden=(32,), minibatch=64, capacity=4000, target_entropy=-3.0, normed=normed)
    if critics == "atoms":
        algorithm = dataclasses.replace(algorithm, atoms=21, scale_rewards=True)
    memory = algorithm.init(agent, key=KEY)
    assert type(memory.critics) is {"normed": NormedNetwork, "residual": ResidualNetwork}.get(critics, Network)
    for n in range(12):
        drawn = np.asarray(jax.vmap(agent.policy(jnp.zeros(1)).sample)(rng.normal(size=(200, 1))))
        played = [
            Episode(np.zeros((2, 1)), a[None], np.array([-((a[0] - 0.5) ** 2)]), a[None], terminated=True)
            for a in drawn
        ]
        agent, memory, found = algorithm.step(
            agent, memory, pack(played, row_length=20), key=jax.random.fold_in(KEY, n)
        )
    assert float(agent.policy(jnp.zeros(1)).mode()[0]) == pytest.approx(0.5, abs=0.1)
    assert float(found["value"]) > -0.1


@pytest.mark.parametrize("atoms", [1, 21])
def test_it_finds_the_probabilities_of_a_discrete_bandit(atoms: int) -> None:
    """Rewards 1, 0.5, 0, known without noise: π ∝ exp(r / α) with the temperature that it has come to."""
    rng = np.random.default_rng(0)
    agent = Agent(observation_window(1, 1, 3), CategoricalPolicy(1, 3, key=jax.random.key(0)))
    algorithm = Sac(3e-3, hidden=(32,), minibatch=64, capacity=4000, atoms=atoms, scale_rewards=atoms > 1)
    memory = algorithm.init(agent, key=KEY)
    for n in range(12):
        drawn = np.asarray(jax.vmap(agent.policy(jnp.zeros(1)).sample)(rng.gumbel(size=(200, 3))))
        played = [
            Episode(np.zeros((2, 1)), a[None], np.array([1 - np.argmax(a) / 2]), a[None], terminated=True)
            for a in drawn
        ]
        agent, memory, found = algorithm.step(
            agent, memory, pack(played, row_length=20), key=jax.random.fold_in(KEY, n)
        )
    temperature = float(jnp.exp(memory.log_temperature)) * float(reward_scale(memory.returns))
    expected = np.exp(np.array([1, 0.5, 0]) / temperature)
    np.testing.assert_allclose(jax.nn.softmax(agent.policy(jnp.zeros(1)).logits), expected / expected.sum(), atol=0.06)
    assert float(found["entropy"]) == pytest.approx(0.5 * np.log(3), abs=0.15)


def test_mistakes_are_said() -> None:
    with pytest.raises(UsageError, match=r"learning_rate: 0\.0 must be greater than 0"):
        Sac(0.0)
    with pytest.raises(UsageError, match=r"target_rate: 2\.0 is not between 0 and 1"):
        Sac(target_rate=2.0)
    with pytest.raises(UsageError, match="capacity: 10 is less than one minibatch; choose at least 256"):
        Sac(capacity=10)
    with pytest.raises(UsageError, match="sequence: 7 steps need learn_every=0 and a minibatch that is a multiple"):
        Sac(sequence=7)
    with pytest.raises(
        UsageError, match="atoms: 101 atoms cover returns of scaled rewards only; also set scale_rewards"
    ):
        Sac(atoms=101)
    agent = Agent(observation_window(1, 1, 1), GaussianPolicy(1, 1, key=jax.random.key(0)))
    with pytest.raises(UsageError, match="SquashedPolicy"):
        Sac(**SMALL).init(agent, key=KEY)
