"""An exported policy as an ONNX graph, built from the same arrays and operations as `act.py`.

    step(observation, state, start) → (action, next_state)

The state is one vector: the beliefs, followed by the last action. It is ignored if `start` is true. Numbers are double,
as in the script. Actions are the most probable ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rpsp.errors import UsageError
from rpsp.experiments.acting_template import Policy

OPSET, IR = 17, 8
"""ONNX versions of 2022, which all common runtimes support."""


class Graph:
    """A graph under construction. A call adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes, self.constants = [], []

    def __call__(
        self, operator: str, *inputs: str | np.ndarray, outputs: int | list[str] = 1, **attributes: Any
    ) -> Any:
        """Add an operator.

        Args:
            operator: name of the operator.
            inputs: names of values, or arrays, which become constants.
            outputs: number of outputs, or their names.
            attributes: attributes of the operator.

        Returns:
            The name of the output, or a list of names if there are several.
        """
        from onnx import helper, numpy_helper  # an optional extra

        names = []
        for value in inputs:
            if not isinstance(value, str):
                self.constants.append(numpy_helper.from_array(np.asarray(value), f"constant{len(self.constants)}"))
                value = self.constants[-1].name
            names.append(value)
        made = [f"{operator}{len(self.nodes)}_{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
        self.nodes.append(helper.make_node(operator, names, made, **attributes))
        return made[0] if len(made) == 1 else made

    def split(self, name: str, sizes: list[int]) -> list[str]:
        """Split a vector into pieces of these sizes."""
        pieces = self("Split", name, np.array(sizes), outputs=len(sizes))
        return [pieces] if len(sizes) == 1 else pieces

    def affine(self, W: np.ndarray, x: str, b: np.ndarray) -> str:
        """Return W x + b."""
        return self("Add", self("MatMul", W, x), b)


# Filter updates q' = f(q, a, o), as in act.py. w are the weights.
def _window(g: Graph, w: Any, q: str, a: str, o: str, size: int) -> str:
    return g("Gather", g("Concat", q, a, o, axis=0), w.kept.astype(np.int64))


def _gru(g: Graph, w: Any, q: str, a: str, o: str, size: int) -> str:
    thirds = [len(w.q0)] * 3
    inputs = g.split(g.affine(w.W_input, g("Concat", o, a, axis=0), w.b_input), thirds)
    states = g.split(g.affine(w.W_state, q, w.b_state), thirds)
    reset, keep = (g("Sigmoid", g("Add", i, s)) for i, s in zip(inputs[:2], states[:2], strict=True))
    new = g("Tanh", g("Add", inputs[2], g("Mul", reset, states[2])))
    return g("Add", new, g("Mul", keep, g("Sub", q, new)))


def _inference(g: Graph, w: Any, q: str, a: str, o: str, size: int) -> str:
    x, youth = g.split(q, [len(w.q0) - 1, 1])
    z = g("Add", g("Mul", g("Concat", x, a, o, axis=0), w.factor), w.shift)
    half_square = g("Mul", g("MatMul", z, z), np.array(0.5))
    bumps = g("Exp", g("Sub", g("Sub", g("MatMul", z, w.centres), half_square), w.half_squares))
    later = g("Add", g("MatMul", z, w.W_linear), g("Mul", youth, g("MatMul", z, w.W_young)))
    later = g("Add", g("Add", later, g("MatMul", bumps, w.W_bumps)), w.constant)
    first = g("Add", g("MatMul", o, w.W_first), w.first)
    new = g("Equal", youth, np.zeros(1))
    x = g("Min", g("Max", g("Where", new, first, later), -w.bound), w.bound)
    older = g("Where", new, np.ones(1), g("Div", youth, g("Add", youth, np.ones(1))))
    return g("Concat", x, older, axis=0)


BELIEFS: dict[str, Callable[..., str]] = {"window": _window, "gru": _gru, "inference": _inference}
"""For each kind of filter, the function that adds its update to the graph."""


def _plain(g: Graph, layers: Any, x: str) -> str:
    for i, layer in enumerate(layers):
        x = g.affine(layer.W, g("Relu", x) if i else x, layer.b)
    return x


def _residual_network(g: Graph, layers: Any, x: str) -> str:
    def standardised(x: str) -> str:
        return g("LayerNormalization", x, np.ones(len(first.b)), axis=-1, epsilon=1e-5)

    first, *inner, last = layers
    x = g.affine(first.W, x, first.b)
    for a, b in zip(inner[::2], inner[1::2], strict=True):
        x = g("Add", x, g.affine(b.W, g("Relu", g.affine(a.W, standardised(x), a.b)), b.b))
    return g.affine(last.W, standardised(x), last.b)


def graph_bytes(policy: Policy) -> bytes:
    """Return the content of policy.onnx. Requires the package onnx.

    Raises:
        UsageError: if a filter needs operators that ONNX does not have.
    """
    from onnx import TensorProto, checker, helper  # an optional extra

    about, u, n = policy.about, policy.units, len(policy.units.null)
    if unknown := [kind for kind in about["beliefs"] if kind not in BELIEFS]:
        raise UsageError(
            f"onnx: a {unknown[0]} belief needs operators that ONNX does not have (kernel Bayes solves a linear system "
            f"at every step); supported are {', '.join(BELIEFS)}; export without --onnx and use act.py."
        )
    if about["kind"] == "product" or hasattr(u, "allowed_above"):
        what = "several symbols" if about["kind"] == "product" else "an action mask"
        raise UsageError(f"onnx: actions with {what} are not supported; export without --onnx and use act.py.")
    g = Graph()
    symbols, sizes = about["symbols"], [len(w.q0) for _, w in policy.beliefs]
    if symbols:
        index = g("Sub", "observation", np.array(int(u.mean)))
        o = g("Gather", np.eye(symbols), index)
    else:
        o = g("Sub", "observation", u.mean)
        if hasattr(u, "directions"):
            o = g("MatMul", o, u.directions)
        o = g("Div", o, u.scale)
    begin = np.concatenate([*(w.q0 for _, w in policy.beliefs), u.null])
    *qs, a = g.split(g("Where", "start", begin, "state"), [*sizes, n])
    size = symbols or len(u.mean)
    qs = [
        BELIEFS[kind](g, w, q, a, o, size) for kind, (_, w), q in zip(about["beliefs"], policy.beliefs, qs, strict=True)
    ]
    network = _residual_network if about.get("body") == "residual" else _plain
    x = network(g, policy.layers, g("Concat", *qs, axis=0))
    if about["kind"] == "categorical":
        chosen = g("ArgMax", x, axis=0, keepdims=0)
        g("Add", chosen, np.array(about["first_action"]), outputs=["action"])
        a, kind, shape = g("Gather", np.eye(n), chosen), TensorProto.INT64, []
    else:
        squashed = about["kind"] == "squashed"
        mean = g("Tanh", g.split(x, [n, n])[0]) if squashed else x
        a = g("Min", g("Max", mean, u.low), u.high)
        kind, shape = helper.np_dtype_to_tensor_dtype(np.dtype(about["dtype"])), [n]
        g("Cast", g("Add", g("Mul", a, u.half), u.middle), to=kind, outputs=["action"])
    g("Concat", *qs, a, axis=0, outputs=["next_state"])
    double, total = TensorProto.DOUBLE, sum(sizes) + n
    observed = (TensorProto.INT64, []) if symbols else (double, [len(u.mean)])
    inputs: dict[str, Any] = {"observation": observed, "state": (double, [total]), "start": (TensorProto.BOOL, [])}
    outputs: dict[str, Any] = {"action": (kind, shape), "next_state": (double, [total])}
    ends = [[helper.make_tensor_value_info(name, *of) for name, of in named.items()] for named in (inputs, outputs)]
    graph = helper.make_graph(g.nodes, "step", *ends, initializer=g.constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="rpsp"
    )
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _like(u: Any, rng: np.random.Generator) -> np.ndarray:
    """Return random numbers at the scale of observations, without their mean."""
    x = u.scale * rng.standard_normal(len(u.scale))
    return u.directions @ x if hasattr(u, "directions") else x


def difference(policy: Policy, graph: bytes, steps: int = 200, seed: int = 0) -> float:
    """Return the largest difference between actions of graph and script, in units of half the action range.

    Episodes have 50 random observations each. Requires the package onnxruntime.
    """
    import onnxruntime  # an optional extra

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    rng, u, symbols = np.random.default_rng(seed), policy.units, policy.about["symbols"]
    largest, state = 0.0, None
    vector = np.zeros(session.get_inputs()[1].shape)
    for step in range(steps):
        start = step % 50 == 0
        seen = u.mean + (rng.integers(symbols) if symbols else _like(u, rng))
        seen = np.asarray(seen, np.int64 if symbols else np.float64)
        action, vector = session.run(None, {"observation": seen, "state": vector, "start": np.array(start)})
        expected, state = policy.step(seen, None if start else state)
        largest = max(largest, float(np.max(np.abs(action - expected) / getattr(u, "half", 1))))
    return largest
