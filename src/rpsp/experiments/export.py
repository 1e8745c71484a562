"""The acting policy for use without jax: its numbers as plain arrays, and a script that acts with numpy alone.

What does not change while acting is folded here, in float64, so that the script has less to do: scalings into the layers
that follow them, sines into cosines, slices of tables laid out as they are used.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rpsp.algorithms.policies import AbstractPolicy, CategoricalPolicy, GaussianPolicy, Network, SquashedPolicy
from rpsp.data.files import write_bytes
from rpsp.data.scaling import OneHot
from rpsp.errors import DivergedError, RpspError, UsageError
from rpsp.experiments import acting_template
from rpsp.experiments.agents import ActingState, TrainedAgent, load
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.files import Say, free_directory
from rpsp.experiments.onnx_graph import difference as graph_difference
from rpsp.experiments.onnx_graph import graph_bytes
from rpsp.filters.base import AbstractFilter, Concatenated, to_float64
from rpsp.filters.features import RandomFourierFeatures
from rpsp.filters.inference import InferenceFilter
from rpsp.filters.kernel_bayes import KernelBayesFilter
from rpsp.filters.memory import GRU, ObservationWindow
from rpsp.filters.tabular import TabularFilter
from rpsp.training.actions import ActionRange, ActionSymbols

Arrays = dict[str, np.ndarray]

TOLERANCE = 1e-3
"""The most that the action of a step may differ from the source, where its range is [−1, 1]. Rounding explains 1e-5, and
1e-4 where a policy is as steep as SAC makes it; a mistake would be far larger."""


@compilation_cached()
def export(
    directory: Path, checkpoint: str = "last", out: str | None = None, onnx: bool = False, say: Say | None = None
) -> dict[str, Any]:
    """`rpsp export`: a folder with policy.npz and act.py, compared with the agent before anything is written."""
    if onnx and None in map(find_spec, ("onnx", "onnxruntime")):
        raise UsageError("onnx: the packages onnx and onnxruntime are not installed; pip install 'rpsp[onnx]'.")
    folder = free_directory(str(directory / "export") if out is None else out, "")
    agent = load(directory, int(checkpoint) if checkpoint.isdecimal() else checkpoint, say=say)
    data = policy_bytes(agent)
    policy = acting_template.load(io.BytesIO(data))
    results = compare(agent, policy)
    if not (difference := results["largest_difference_of_a_step"]) <= TOLERANCE:
        raise RpspError(
            f"export: the actions of the exported policy differ from the agent's by up to {difference:.1e} of half their "
            "range, so it was not written; act with rpsp.load(...).predict instead, and please report this."
        )
    if onnx:
        graph = graph_bytes(policy)
        results["largest_difference_of_onnx"] = (difference := graph_difference(policy, graph))
        if not difference <= TOLERANCE:
            raise RpspError(
                f"onnx: the graph's actions differ from those of act.py by up to {difference:.1e} of half their range, so "
                "nothing was written; export without --onnx, and please report this."
            )
        write_bytes(folder / "policy.onnx", graph)
    write_bytes(folder / "policy.npz", data)
    write_bytes(folder / "act.py", Path(acting_template.__file__).read_bytes())
    return {"directory": str(folder), "checkpoint": agent.checkpoint, "bytes": len(data), **results}


# ---------------------------------------------------------------------------------------------------------------------
# An agent as arrays
# ---------------------------------------------------------------------------------------------------------------------


def policy_bytes(agent: TrainedAgent) -> bytes:
    """policy.npz: arrays named part/name, and under "about" a JSON text that says what to make of them."""
    beliefs = _beliefs(agent.agent.filter)
    network = _network(agent.agent.policy)
    about = {
        "format": "rpsp policy 1",
        "beliefs": [kind for kind, _ in beliefs],
        "layers": len(network.layers),
        "symbols": agent.scaling.size if isinstance(agent.scaling, OneHot) else None,
        **_kind(agent),
    }
    parts = {f"belief{i}": arrays for i, (_, arrays) in enumerate(beliefs)}
    parts |= {f"layer{i}": arrays for i, arrays in enumerate(_layers(network))}
    parts["units"] = _units(agent)
    arrays = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
    for name, array in arrays.items():
        if np.isnan(array).any():
            raise DivergedError(f"export: {name} is not a number any more; choose an earlier checkpoint.")
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
    return file.getvalue()


def _beliefs(filter: AbstractFilter) -> list[tuple[str, Arrays]]:
    """The kind and the arrays of a filter; of filters side by side, one after another."""
    if type(filter) is Concatenated:
        return _beliefs(filter.first) + _beliefs(filter.second)
    for cls, (kind, arrays) in BELIEFS.items():
        if type(filter) is cls:
            return [(kind, {"q0": np.asarray(filter.init(), np.float64)} | arrays(to_float64(filter)))]
    raise UsageError(
        f"export: {type(filter).__name__} is not one of {', '.join(cls.__name__ for cls in BELIEFS)}, the only filters "
        "that act.py can run; act with rpsp.load(...).predict instead."
    )


def _window(filter: ObservationWindow) -> Arrays:
    return {}


def _gru(filter: GRU) -> Arrays:
    """Equinox adds bias_n to the state's part of the third gate only, before the reset gate is applied."""
    cell = filter.cell
    assert cell.bias is not None and cell.bias_n is not None  # GRU makes none without
    b_state = np.concatenate([np.zeros(2 * cell.hidden_size), cell.bias_n])
    weights = {"W_input": cell.weight_ih, "b_input": cell.bias, "W_state": cell.weight_hh, "b_state": b_state}
    return {name: np.asarray(x) for name, x in weights.items()}


def _inference(filter: InferenceFilter) -> Arrays:
    mean, scale, centres = map(np.asarray, (filter.phi.mean, filter.phi.scale, filter.phi.centres))
    W, W_first = np.asarray(filter.W), np.asarray(filter.W_first)
    constant, W_linear, W_young, W_bumps = np.split(W, np.cumsum([1, len(mean), len(mean)]))
    return {
        "first": W_first[0],
        "W_first": W_first[1:],
        "factor": 1 / scale,
        "shift": -mean / scale,
        "centres": centres,
        "half_squares": (centres**2).sum(axis=0) / 2,
        "constant": constant[0],
        "W_linear": W_linear,
        "W_young": W_young,
        "W_bumps": W_bumps,
        "bound": np.asarray(filter.bound),
    }


def _kernel_bayes(filter: KernelBayesFilter) -> Arrays:
    """A vector is multiplied from the left with the middle axis of a tensor, so that is the axis it is contracted with."""
    q, xi_o, xi_a, oo = len(filter.q0), filter.U_xi_o.shape[2], filter.U_xi_a.shape[1], filter.U_oo.shape[0]
    middle = (1, 0, 2)
    return {
        **{f"a_{name}": x for name, x in _cosines(filter.phi_a).items()},
        **{f"o_{name}": x for name, x in _cosines(filter.phi_o).items()},
        "W_ext_xi": np.reshape(filter.W_ext_xi, (q, xi_o, xi_a)).transpose(middle),
        "W_ext_o": np.reshape(filter.W_ext_o, (q, oo, -1)).transpose(middle),
        "U_oo": np.transpose(filter.U_oo, middle),
        "U_xi_o": np.transpose(filter.U_xi_o, middle),
        "U_xi_a": np.transpose(filter.U_xi_a, middle),
        "U_q": np.reshape(filter.U_q, (-1, q)),
        "ridge": np.asarray(filter.ridge) * np.eye(len(filter.U_xi_o)),
        "low": np.asarray(filter.low),
        "high": np.asarray(filter.high),
    }


def _cosines(features: Any) -> Arrays:
    """Random Fourier features as cosines alone: sin x = cos(x − π/2)."""
    if type(features) is not RandomFourierFeatures:
        raise UsageError(
            f"export: act.py knows no features but RandomFourierFeatures, and this filter's are {type(features).__name__}; "
            "act with rpsp.load(...).predict instead."
        )
    frequencies = np.asarray(features.frequencies)
    n = frequencies.shape[1]
    return {
        "low": np.asarray(features.low),
        "high": np.asarray(features.high),
        "frequencies": np.concatenate([frequencies, frequencies], axis=1),
        "phases": np.repeat([0.0, -np.pi / 2], n),
        "projection": np.asarray(features.projection) / np.sqrt(n),
    }


def _tabular(filter: TabularFilter) -> Arrays:
    """The slice of W_ext that an action and an observation choose, as W[a, o][o_k, q, a_k]."""
    symbols, o_k, a_k = filter.W_first.shape
    W = np.reshape(filter.W_ext, (o_k * a_k, symbols, o_k, filter.actions, a_k))
    return {"W": W.transpose(3, 1, 2, 0, 4), "first": np.reshape(filter.W_first, (symbols, -1))}


BELIEFS: dict[type[AbstractFilter], tuple[str, Callable[[Any], Arrays]]] = {
    ObservationWindow: ("window", _window),
    GRU: ("gru", _gru),
    InferenceFilter: ("inference", _inference),
    KernelBayesFilter: ("kernel_bayes", _kernel_bayes),
    TabularFilter: ("tabular", _tabular),
}
"""The function of act.py that updates each filter's states, and the arrays it takes."""


def _network(policy: AbstractPolicy) -> Network:
    if type(policy) not in (GaussianPolicy, SquashedPolicy, CategoricalPolicy):
        raise UsageError(
            f"export: {type(policy).__name__} is not GaussianPolicy, SquashedPolicy or CategoricalPolicy, the only policies "
            "that act.py can run; act with rpsp.load(...).predict instead."
        )
    return policy.network  # pyright: ignore[reportAttributeAccessIssue]


def _layers(network: Network) -> list[Arrays]:
    """Weights and biases, the z-scoring of the inputs folded into the first."""
    layers = [
        {"W": np.asarray(layer.weight, np.float64), "b": np.asarray(layer.bias, np.float64)} for layer in network.layers
    ]
    mean, scale = np.asarray(network.mean, np.float64), np.asarray(network.scale, np.float64)
    W = layers[0]["W"] / scale
    layers[0] = {"W": W, "b": layers[0]["b"] - W @ mean}
    return layers


def _kind(agent: TrainedAgent) -> dict[str, Any]:
    if isinstance(agent.units, ActionSymbols):
        return {"kind": "categorical", "first_action": agent.units.start}
    kind = "squashed" if isinstance(agent.agent.policy, SquashedPolicy) else "gaussian"
    return {"kind": kind, "dtype": agent.units.dtype.name}


def _units(agent: TrainedAgent) -> Arrays:
    scaling, units, policy = agent.scaling, agent.units, agent.agent.policy
    of_observations = (
        {"mean": np.array(agent.first)}
        if isinstance(scaling, OneHot)
        else {"mean": scaling.mean, "scale": scaling.scale}
    )
    of_actions = {"null": np.zeros(units.size)}
    if isinstance(units, ActionRange):
        of_actions |= {"low": units.low, "high": units.high, "half": units.half, "middle": units.middle}
    if isinstance(policy, GaussianPolicy):
        of_actions["std"] = np.exp(np.asarray(policy.log_std, np.float64))
    return of_observations | of_actions


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """What an agent saw and did in an episode, in the environment's own units; and the states it was left in."""

    observations: list[Any]
    actions: list[Any]
    states: list[ActingState]

    def act(self, agent: TrainedAgent, row: np.ndarray) -> np.ndarray:
        """One more step: the action for an observation, both as rows of one."""
        before = self.states[-1] if self.states else None
        action, state = agent.predict(row, before, episode_start=before is None)
        self.observations.append(row[0])
        self.actions.append(action[0])
        self.states.append(state)
        return action


def compare(agent: TrainedAgent, policy: acting_template.Policy, steps: int = 300, seed: int = 0) -> dict[str, Any]:
    """Episodes of the agent, every action beside that of the exported policy; and how long the latter takes.

    Differences are in units where the range of an action is [−1, 1]; of symbols, they are the share of steps at which
    another one is chosen. Two are given. *A step* begins at the agent's own state, so it tells whether the same thing is
    computed. Over whole episodes the agent's rounding (float32) adds up as well, and a belief far from the data it was
    fitted to can amplify it a thousandfold.
    """
    episodes = _invented(agent, steps, seed) if agent.make_envs is None else _played(agent, steps, seed)
    times, whole, single = [], [], []
    for _ in range(5):  # the best of several, for other processes may be at work
        started = time.perf_counter()
        whole = [_actions(policy, episode.observations) for episode in episodes]
        times.append(time.perf_counter() - started)
    for episode in episodes:
        before = [None, *(_state(policy, state) for state in episode.states)]
        single.append([policy.step(*both)[0] for both in zip(episode.observations, before, strict=False)])
    source = [episode.actions for episode in episodes]
    return {
        "largest_difference": _difference(agent.units, source, whole),
        "largest_difference_of_a_step": _difference(agent.units, source, single),
        "steps": (count := sum(map(len, source))),
        "episodes": len(episodes),
        "microseconds_per_step": round(1e6 * min(times) / count, 1),
    }


def _difference(units: ActionRange | ActionSymbols, source: list[list[Any]], exported: list[list[Any]]) -> float:
    differences = np.abs(np.concatenate(source).astype(np.float64) - np.concatenate(exported))
    return float((differences > 0).mean() if isinstance(units, ActionSymbols) else (differences / units.half).max())


def _actions(policy: acting_template.Policy, observations: list[Any]) -> list[Any]:
    actions, state = [], None
    for observation in observations:
        action, state = policy.step(observation, state)
        actions.append(action)
    return actions


def _state(policy: acting_template.Policy, state: ActingState) -> Any:
    """The agent's state as the exported policy keeps it."""
    sizes = [len(weights.q0) for _, weights in policy.beliefs]
    return np.split(state.q[0].astype(np.float64), np.cumsum(sizes)[:-1]), state.executed[0].astype(np.float64)


def _played(agent: TrainedAgent, steps: int, seed: int) -> list[Played]:
    """So many steps in the agent's own environment."""
    envs: Any = agent.environments(1)
    episodes: list[Played] = []
    try:
        while (left := steps - sum(len(e.actions) for e in episodes)) > 0:
            readings, _ = envs.reset(seed=[seed + len(episodes)])
            episodes.append(Played([], [], []))
            ended = False
            while not ended and len(episodes[-1].actions) < left:
                readings, _, terminated, truncated, _ = envs.step(episodes[-1].act(agent, readings))
                ended = bool(terminated[0] or truncated[0])
    finally:
        envs.close()
    return episodes


def _invented(agent: TrainedAgent, steps: int, seed: int) -> list[Played]:
    """Two episodes of observations drawn at random, for an agent that does not know its environment."""
    rng, episodes = np.random.default_rng(seed), [Played([], [], []), Played([], [], [])]
    for episode in episodes:
        for _ in range(steps // 2):
            if isinstance(agent.scaling, OneHot):
                episode.act(agent, agent.first + rng.integers(agent.scaling.size, size=1))
            else:
                episode.act(agent, agent.scaling.decode(rng.standard_normal((1, len(agent.scaling.mean)))))
    return episodes
