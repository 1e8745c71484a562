"""Networks by hand, and the scaling of their inputs."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rpsp.algorithms.networks import Network, NormedNetwork, ResidualNetwork, in_units, input_scaling
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import Concatenated, trainable
from rpsp.filters.memory import history_window, observation_window


def test_a_normed_network_standardises_each_layer_and_so_stays_bounded() -> None:
    """By hand; and an input a million times as far away leaves its output where it was, where a plain network's explodes."""
    last = eqx.nn.Linear(8, 1, key=jax.random.key(1))

    def made(kind: type[Network]) -> Network:
        network = kind(3, 1, hidden=(8, 8), scaling=None, key=jax.random.key(0))
        return eqx.tree_at(lambda n: n.layers[-1], network, last)  # whose last layer is not zero

    plain, normed = made(Network), made(NormedNetwork)
    q = jnp.asarray([0.3, -1.0, 2.0])
    x = np.asarray(q)
    for layer in normed.layers[:-1]:
        h = np.asarray(layer.weight) @ x + np.asarray(layer.bias)
        x = np.maximum((h - h.mean()) / h.std(), 0)
    np.testing.assert_allclose(normed(q), np.asarray(last.weight) @ x + np.asarray(last.bias), rtol=1e-3)
    np.testing.assert_allclose(normed(1e3 * q), normed(1e9 * q), rtol=1e-2)
    assert abs(plain(1e9 * q)[0]) > 1e3 * abs(plain(1e3 * q)[0])


def test_a_policy_may_see_a_projection_of_the_state() -> None:
    """z = (Pᵀ q − mean) / scale, by hand; and P is a constant."""
    P = np.array([[1.0, 0.0], [0.5, -1.0], [0.0, 2.0]])
    scaling = Scaling(np.array([0.1, -0.2]), np.array([1.0, 3.0]))
    network = Network(2, 1, hidden=(), scaling=scaling, view=P, key=jax.random.key(0))
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.array([[2.0, -1.0]]))
    q = np.array([0.3, -1.0, 2.0])
    z = [(0.3 - 0.5 - 0.1) / 1, (1 + 4 + 0.2) / 3]
    np.testing.assert_allclose(network(jnp.asarray(q, jnp.float32)), [2 * z[0] - z[1]], rtol=1e-5)
    marks = trainable(network)
    assert not marks.view and not marks.mean and marks.layers[0].weight


def test_the_units_of_a_projection_are_those_of_what_is_seen() -> None:
    window = replace(history_window(1, 2, 1), P=jnp.array([[1.0], [1.0], [0.0]]))
    states = np.random.default_rng(0).normal(size=(1000, 3)) * [5.0, 0.01, 0.3]
    for filter, n in ((window, 3), (Concatenated(window, observation_window(1, 1, 1)), 4)):
        q = np.concatenate([states, 7 * states[:, :1]], axis=1)[:, :n]
        scaling, seen = input_scaling(filter, q), states[:, 0] + states[:, 1]
        np.testing.assert_allclose(scaling.scale, [seen.std(), 7 * states[:, 0].std()][: n - 2])
        np.testing.assert_allclose(scaling.mean, [seen.mean(), 7 * states[:, 0].mean()][: n - 2])


def test_inputs_of_one_filter_share_a_unit_and_parts_have_their_own() -> None:
    """q = [window of 2 observations, window of 1]: each part is divided by its largest standard deviation."""
    parts = observation_window(2, 1, 1), observation_window(1, 1, 1)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(1000, 3)) * [5.0, 0.01, 0.3] + [1.0, 2.0, 3.0]
    scaling = input_scaling(Concatenated(*parts), states)
    std = states.std(axis=0)
    np.testing.assert_allclose(scaling.scale, [std[0], std[0], std[2]])
    np.testing.assert_allclose(scaling.mean, states.mean(axis=0))


def residual(hidden: tuple[int, ...] = (8, 8), scaling: Scaling | None = None) -> ResidualNetwork:
    """Return a network whose last layer is not zero."""
    network = ResidualNetwork(3, 2, hidden=hidden, scaling=scaling, key=jax.random.key(0))
    return eqx.tree_at(lambda n: n.layers[-1], network, eqx.nn.Linear(hidden[0], 2, key=jax.random.key(1)))


def test_a_residual_network_is_its_formula_and_stays_bounded() -> None:
    scaling = Scaling(np.array([5.0, -1.0, 0.0]), np.array([2.0, 0.1, 1.0]))
    network, q = residual(scaling=scaling), np.array([0.3, -1.0, 2.0])
    (E, e), *blocks, (W, w) = [(np.asarray(x.weight, np.float64), np.asarray(x.bias)) for x in network.layers]
    assert [layer[0].shape for layer in blocks] == [(32, 8), (8, 32)] * 2
    h = E @ ((q - scaling.mean) / scaling.scale) + e
    for (A, a), (B, b) in zip(blocks[::2], blocks[1::2], strict=True):
        h = h + B @ np.maximum(A @ ((h - h.mean()) / h.std()) + a, 0) + b
    np.testing.assert_allclose(network(jnp.asarray(q, jnp.float32)), W @ ((h - h.mean()) / h.std()) + w, rtol=1e-3)
    far = jnp.asarray(q, jnp.float32)
    np.testing.assert_allclose(network(1e3 * far), network(1e9 * far), rtol=0.05)
    assert not ResidualNetwork(3, 2, hidden=(8,), scaling=None, key=jax.random.key(0))(far).any(), "zero when made"


def test_a_change_of_units_keeps_the_function_of_a_residual_network() -> None:
    network = residual()
    changed = in_units(network, Scaling(np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.2, 1.0])))
    assert isinstance(changed, ResidualNetwork)
    for q in jax.random.normal(jax.random.key(2), (5, 3)):
        np.testing.assert_allclose(changed(q), network(q), atol=1e-5)


@pytest.mark.parametrize("hidden", [(8, 16), ()])
def test_the_blocks_of_a_residual_network_have_one_width(hidden: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"hidden=\[.*\]: the blocks .* same width; .* such as 128 128"):
        residual(hidden)
