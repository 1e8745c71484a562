"""Export an acting policy for use without jax: its parameters as plain arrays, and a script that needs only numpy.

Constant operations are precomputed here in float64: scalings are folded into the following layers, sines become shifted
cosines, and slices of tables are stored in the layout in which they are used.
"""

from __future__ import annotations

import io
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from rpsp.algorithms.networks import BODIES, Network
from rpsp.algorithms.policies import AbstractPolicy, CategoricalPolicy, GaussianPolicy, ProductPolicy, SquashedPolicy
from rpsp.data.files import write_bytes
from rpsp.data.scaling import ImageBasis, Joined, OneHot, Scaling, encoded_size
from rpsp.errors import DivergedError, RpspError, UsageError
from rpsp.experiments import acting_template, onnx_graph
from rpsp.experiments.agent_uncertainty import predictive
from rpsp.experiments.agents import ActingState, TrainedAgent, load
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.files import Say, free_directory
from rpsp.filters.base import AbstractFilter, Concatenated
from rpsp.filters.gaps import GapFilter
from rpsp.training.actions import ActionProduct, ActionRange, ActionSymbols, Units

Arrays = dict[str, np.ndarray]

TOLERANCE = 1e-3
"""Largest accepted difference of an action from the agent's, for an action range of [−1, 1].

Rounding explains 1e-5, and 1e-4 for steep policies such as those of SAC. An error in the export would be much larger.
"""


@compilation_cached()
def export(
    directory: Path, checkpoint: str = "last", out: str | None = None, onnx: bool = False, say: Say | None = None
) -> dict[str, Any]:
    """Run `rpsp export`: write policy.npz and act.py after checking that they act as the agent does.

    Args:
        directory: run directory.
        checkpoint: iteration of the checkpoint, or "last" or "best".
        out: directory to write to. Default: DIR/export.
        onnx: whether to write policy.onnx as well.
        say: callback for messages.

    Returns:
        The directory, the checkpoint, the size of policy.npz in bytes, and the results of `compare`.

    Raises:
        UsageError: if the agent cannot be exported, or if packages for ONNX are missing.
        RpspError: if the exported policy acts differently.
    """
    if onnx and None in map(find_spec, ("onnx", "onnxruntime")):
        raise UsageError("onnx: the packages onnx and onnxruntime are not installed; pip install 'rpsp[onnx]'.")
    folder = free_directory(str(directory / "export") if out is None else out, "")
    agent = load(directory, int(checkpoint) if checkpoint.isdecimal() else checkpoint, say=say)
    data = policy_bytes(agent)
    policy = acting_template.load(io.BytesIO(data))
    results = compare(agent, policy)
    if not (difference := results["largest_difference_of_a_step"]) <= TOLERANCE:
        raise RpspError(
            f"export: the actions of the exported policy differ from the agent's by up to {difference:.1e} of half the "
            "action range, so nothing was written; use rpsp.load(...).predict instead, and please report this."
        )
    if onnx:
        graph = onnx_graph.graph_bytes(policy)
        results["largest_difference_of_onnx"] = (difference := onnx_graph.difference(policy, graph))
        if not difference <= TOLERANCE:
            raise RpspError(
                f"onnx: the actions of the graph differ from those of act.py by up to {difference:.1e} of half the "
                "action range, so nothing was written; export without --onnx, and please report this."
            )
        write_bytes(folder / "policy.onnx", graph)
    write_bytes(folder / "policy.npz", data)
    write_bytes(folder / "act.py", Path(acting_template.__file__).read_bytes())
    return {"directory": str(folder), "checkpoint": agent.checkpoint, "bytes": len(data), **results}


# ---------------------------------------------------------------------------------------------------------------------
# An agent as arrays
# ---------------------------------------------------------------------------------------------------------------------


def policy_bytes(agent: TrainedAgent) -> bytes:
    """Return the content of policy.npz: arrays named part/name, and "about", a JSON text that describes them.

    Raises:
        UsageError: if act.py does not support the filter or the policy.
        DivergedError: if an array contains NaN.
    """
    beliefs = _beliefs(agent.agent.filter)
    predicts = _with_prediction(agent, beliefs)
    network = _network(agent.agent.policy)
    about = {
        "format": "rpsp policy 1",
        "beliefs": [kind for kind, _ in beliefs],
        "layers": len(network.layers),
        "body": _body(network),
        "predicts": predicts,
        "gaps": agent.agent.filter.accepts_gaps,
        "symbols": agent.scaling.size if isinstance(agent.scaling, OneHot) else None,
        **_kind(agent),
        **_names(agent),
    }
    parts = {f"belief{i}": arrays for i, (_, arrays) in enumerate(beliefs)}
    parts |= {f"layer{i}": arrays for i, arrays in enumerate(_layers(network))}
    parts["units"] = _units(agent)
    arrays = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
    for name, array in arrays.items():
        if np.isnan(array).any():
            raise DivergedError(f"export: {name} contains NaN; choose an earlier checkpoint.")
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
    return file.getvalue()


def _beliefs(filter: AbstractFilter) -> list[tuple[str, Arrays]]:
    """Return the kind and the arrays of a filter. A concatenated filter gives several."""
    if isinstance(filter, Concatenated):
        return _beliefs(filter.first) + _beliefs(filter.second)
    kind, arrays = filter.exported()
    return [(kind, {"q0": np.asarray(filter.init(), np.float64)} | arrays)]


def _with_prediction(agent: TrainedAgent, beliefs: list[tuple[str, Arrays]]) -> str | None:
    """Add the arrays of `expect` and `surprise` to the first filter. Return the name of its prediction in act.py.

    It is None if act.py has no prediction of this filter, or the predictive distribution cannot be fitted because the
    environment is unknown.
    """
    filter = predictive(agent.agent.filter)
    kind, arrays = beliefs[0]
    if isinstance(filter, GapFilter):
        return kind.split()[-1]
    prediction = filter.exported_prediction()
    if prediction is None or not isinstance(agent.scaling, Scaling) or filter.accepts_gaps:
        return None
    if agent.make_envs is None and agent.fitted_uncertainty is None:
        return None
    arrays |= prediction[1] | agent.uncertainty.exported()
    return prediction[0]


def _network(policy: AbstractPolicy) -> Network:
    """Return the network of a policy."""
    if type(policy) not in (GaussianPolicy, SquashedPolicy, CategoricalPolicy, ProductPolicy):
        raise UsageError(
            f"export: {type(policy).__name__} is not GaussianPolicy, SquashedPolicy, CategoricalPolicy or ProductPolicy, "
            "the policies that act.py supports; use rpsp.load(...).predict instead."
        )
    return policy.network  # pyright: ignore[reportAttributeAccessIssue]


def _body(network: Network) -> str:
    """Return the name of the function of the network in act.py."""
    for name, kind in BODIES.items():
        if type(network) is kind:
            return name
    raise UsageError(
        f"export: {type(network).__name__} is none of the networks that act.py supports, {', '.join(BODIES)}; use "
        "rpsp.load(...).predict instead."
    )


def _layers(network: Network) -> list[Arrays]:
    """Return weights and biases. Projection and scaling of the inputs are folded into the first layer."""
    layers = [
        {"W": np.asarray(layer.weight, np.float64), "b": np.asarray(layer.bias, np.float64)} for layer in network.layers
    ]
    mean, scale = np.asarray(network.mean, np.float64), np.asarray(network.scale, np.float64)
    W = layers[0]["W"] / scale
    seen = W if network.view is None else W @ np.asarray(network.view, np.float64).T
    layers[0] = {"W": seen, "b": layers[0]["b"] - W @ mean}
    return layers


def _kind(agent: TrainedAgent) -> dict[str, Any]:
    """Return the kind of policy and the type of its actions."""
    if isinstance(agent.units, ActionSymbols):
        return {"kind": "categorical", "first_action": agent.units.start}
    if isinstance(agent.units, ActionProduct):
        return {"kind": "product", "actions": list(agent.units.symbols), "dtype": agent.units.dtype.name}
    kind = "squashed" if isinstance(agent.agent.policy, SquashedPolicy) else "gaussian"
    return {"kind": kind, "dtype": agent.units.dtype.name}


def _affine(encoding: Scaling | ImageBasis | Joined) -> Arrays:
    """Return the arrays of an encoding ((x − mean) directions) / scale; without directions, x − mean is not projected."""
    if isinstance(encoding, Scaling):
        return {"mean": encoding.mean, "scale": encoding.scale}
    parts = encoding.parts if isinstance(encoding, Joined) else (encoding,)
    blocks = [part.directions if isinstance(part, ImageBasis) else np.eye(len(part.mean)) for part in parts]
    found: Arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("mean", "scale")}
    return found | {"directions": np.asarray(block_diag(*blocks))}


def _names(agent: TrainedAgent) -> dict[str, list[str]]:
    """Return the names of the entries of structured observations and actions."""
    seen, done = agent.structure.names, agent.structure.actions
    found = {} if seen is None else {"observation_names": list(seen)}
    return found if done is None else found | {"action_names": done.names}


def _units(agent: TrainedAgent) -> Arrays:
    """Return the scales of observations and actions."""
    scaling, units, policy = agent.scaling, agent.units, agent.agent.policy
    of_observations = {"mean": np.array(agent.first)} if isinstance(scaling, OneHot) else _affine(scaling)
    of_actions = {"null": np.zeros(units.size)}
    if not isinstance(units, ActionSymbols):
        numbers = units if isinstance(units, ActionRange) else units.numbers
        of_actions |= {"low": numbers.low, "high": numbers.high, "half": numbers.half, "middle": numbers.middle}
    if isinstance(policy, GaussianPolicy | ProductPolicy):
        of_actions["std"] = np.exp(np.asarray(policy.log_std, np.float64))
    if isinstance(policy, CategoricalPolicy | ProductPolicy) and policy.allowed_above is not None:
        of_actions["allowed_above"] = np.asarray(policy.allowed_above, np.float64)
    return of_observations | of_actions


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """Observations and actions of an episode in the environment's units, and the agent's state after each step."""

    observations: list[Any]
    actions: list[Any]
    states: list[ActingState]

    def act(self, agent: TrainedAgent, row: np.ndarray) -> np.ndarray:
        """Act on one more observation and record the step. Observation and action are batches of one."""
        before = self.states[-1] if self.states else None
        action, state = agent.act(row, before, episode_start=before is None)
        self.observations.append(row[0])
        self.actions.append(action[0])
        self.states.append(state)
        return action


def compare(agent: TrainedAgent, policy: acting_template.Policy, steps: int = 300, seed: int = 0) -> dict[str, Any]:
    """Compare the actions of the exported policy with the agent's, and measure its speed.

    Differences are given for an action range of [−1, 1]. For symbols they are the fraction of steps with a different
    action. `largest_difference_of_a_step` starts each step from the agent's own state, so it shows whether the
    computation is the same. `largest_difference` is measured over whole episodes, where float32 rounding of the agent
    accumulates; a belief far from its training data can amplify it a thousandfold.

    Args:
        agent: the trained agent.
        policy: the exported policy.
        steps: number of steps.
        seed: seed of the episodes.
    """
    episodes = _invented(agent, steps, seed) if agent.make_envs is None else _played(agent, steps, seed)
    times, whole, single = [], [], []
    for _ in range(5):  # the fastest of several, because other processes may be running
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


def _difference(units: Units, source: list[list[Any]], exported: list[list[Any]]) -> float:
    """Return the largest difference of actions; for symbols, the fraction of different ones."""
    differences = np.abs(np.concatenate(source).astype(np.float64) - np.concatenate(exported))
    return float((differences > 0).mean() if isinstance(units, ActionSymbols) else (differences / units.half).max())


def _actions(policy: acting_template.Policy, observations: list[Any]) -> list[Any]:
    """Return the actions of the exported policy in an episode."""
    actions, state = [], None
    for observation in observations:
        action, state = policy.step(observation, state)
        actions.append(action)
    return actions


def _state(policy: acting_template.Policy, state: ActingState) -> Any:
    """Convert the agent's state to that of the exported policy."""
    sizes = [len(weights.q0) for _, weights in policy.beliefs]
    return np.split(state.q[0].astype(np.float64), np.cumsum(sizes)[:-1]), state.executed[0].astype(np.float64)


def _played(agent: TrainedAgent, steps: int, seed: int) -> list[Played]:
    """Play episodes in the agent's own environment, `steps` steps in total."""
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
    """Play two episodes of random observations, for an agent whose environment is unknown."""
    rng, episodes = np.random.default_rng(seed), [Played([], [], []), Played([], [], [])]
    for episode in episodes:
        for _ in range(steps // 2):
            if isinstance(agent.scaling, OneHot):
                episode.act(agent, agent.first + rng.integers(agent.scaling.size, size=1))
            else:
                episode.act(agent, agent.scaling.decode(rng.standard_normal((1, encoded_size(agent.scaling)))))
    return episodes
