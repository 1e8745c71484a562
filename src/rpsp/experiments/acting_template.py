"""Act with a trained policy, using only numpy. `rpsp export` writes this file as act.py, next to policy.npz.

    policy = load("policy.npz")
    action, state = policy.step(observation)           # starts an episode
    action, state = policy.step(observation, state)    # continues it, at each new observation

The state contains the belief and the last action. Actions are the most probable ones. With a third argument,
np.random.default_rng(seed), they are sampled as in training. Observations and actions are in the environment's units.
Of structured ones they are flat rows; policy.about["observation_names"] and ["action_names"] name their entries.
"""

import json
from types import SimpleNamespace

import numpy as np


# Filter updates q' = f(q, a, o): q is the last belief, a the last action, o the new observation, w are the weights.
def window(w, q, a, o):
    """Window of the latest observations, or pairs of action and observation, oldest first."""
    return np.concatenate((q, a, o))[w.kept.astype(int)]


def gru(w, q, a, o):
    """Gated recurrent unit, with σ(x) = (1 + tanh(x/2)) / 2."""
    inputs = (w.W_input @ np.concatenate((o, a)) + w.b_input).reshape(3, -1)
    states = (w.W_state @ q + w.b_state).reshape(3, -1)
    reset, keep = (1 + np.tanh((inputs[:2] + states[:2]) / 2)) / 2
    new = np.tanh(inputs[2] + reset * states[2])
    return new + keep * (q - new)


def inference(w, q, a, o):
    """Direct inference: q = [x, 1/t]; terms linear in z = [x, a, o], linear terms times 1/t, radial basis functions."""
    x, youth = q[:-1], q[-1]
    if youth == 0:
        x, youth = w.first + o @ w.W_first, np.inf
    else:
        z = np.concatenate((x, a, o)) * w.factor + w.shift
        bumps = np.exp(z @ w.centres - z @ z / 2 - w.half_squares)
        x = w.constant + z @ w.W_linear + youth * (z @ w.W_young) + bumps @ w.W_bumps
    return np.append(np.clip(x, -w.bound, w.bound), 1 / (1 + 1 / youth))


def kernel_bayes(w, q, a, o):
    """The paper's filter: extend q with W_ext, then condition on a and o by kernel Bayes' rule with weights v."""
    phi_a = np.cos(np.clip(a, w.a_low, w.a_high) @ w.a_frequencies + w.a_phases) @ w.a_projection
    phi_o = np.cos(np.clip(o, w.o_low, w.o_high) @ w.o_frequencies + w.o_phases) @ w.o_projection
    C = (q @ w.W_ext_o @ phi_a) @ w.U_oo
    v = np.linalg.solve(C @ C + w.ridge, C @ phi_o)
    operator = (v @ w.U_xi_o) @ (q @ w.W_ext_xi) @ (phi_a @ w.U_xi_a)
    return np.clip(operator.reshape(-1) @ w.U_q, w.low, w.high)


def residual(w, q, a, o):
    """A linear filter, and kernel Bayes' rule on what it does not predict. The first observation has no prediction."""
    x, p = np.split(q, [len(w.bound) + 1])
    z = np.concatenate((x[:-1], a)) * w.pred_factor + w.pred_shift
    bumps = np.exp(z @ w.pred_centres - z @ z / 2 - w.pred_half_squares)
    expected = w.pred_constant + z @ w.pred_W_linear + x[-1] * (z @ w.pred_W_young) + bumps @ w.pred_W_bumps
    e = (o - expected) / w.spread if x[-1] else 0 * o
    return np.concatenate((inference(w, x, a, o), kernel_bayes(w, p, a, e)))


def tabular(w, q, a, o):
    """Bayes' rule on a table of probabilities: select the entries for a and o, then normalise each column."""
    if not q.any():
        return w.first[o.argmax()]
    joint = np.maximum(q @ w.W[a.argmax(), o.argmax()], 0)
    total = joint.sum(axis=0)
    return np.where(total > 1e-12, joint / np.maximum(total, 1e-12), 1 / len(joint)).reshape(-1)


def plain(layers, x):
    """Fully connected ReLU network."""
    for i, layer in enumerate(layers):
        x = layer.W @ (np.maximum(x, 0) if i else x) + layer.b
    return x


def residual_network(layers, x):
    """Residual blocks with layer normalisation."""
    first, *inner, last = layers
    x = first.W @ x + first.b
    for a, b in zip(inner[::2], inner[1::2], strict=True):
        x = x + b.W @ np.maximum(a.W @ standardised(x) + a.b, 0) + b.b
    return last.W @ standardised(x) + last.b


def standardised(x):
    """Return x with mean 0 and variance 1."""
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


class Policy:
    """A trained policy: filters, and the network that maps their beliefs to actions."""

    def __init__(self, about, parts):
        self.about, self.units = about, parts["units"]
        self.beliefs = [(globals()[kind], parts[f"belief{i}"]) for i, kind in enumerate(about["beliefs"])]
        self.layers = [parts[f"layer{i}"] for i in range(about["layers"])]

    def step(self, observation, state=None, rng=None):
        """Return the action for an observation, and the state for the next call. Without a state, start an episode."""
        u, (qs, a) = self.units, state or ([w.q0 for _, w in self.beliefs], self.units.null)
        o = np.asarray(observation, float)
        if o.shape != u.mean.shape or not np.isfinite(o).all():
            raise ValueError(f"observation: {o.tolist()} is not of shape {u.mean.shape} or not finite.")
        o = np.eye(self.about["symbols"])[int(o - u.mean)] if self.about["symbols"] else o - u.mean
        o = o @ u.directions if hasattr(u, "directions") else o  # principal components of images
        o = o if self.about["symbols"] else o / u.scale
        qs = [update(w, q, a, o) for (update, w), q in zip(self.beliefs, qs, strict=True)]
        network = residual_network if self.about.get("body") == "residual" else plain
        q = np.concatenate(qs)
        x = network(self.layers, q)
        if hasattr(u, "allowed_above"):  # the belief ends with the action mask
            x[-len(u.allowed_above) :][q[-len(u.allowed_above) :] <= u.allowed_above] = -1e9
        if self.about["kind"] == "categorical":
            action = np.argmax(x if rng is None else x + rng.gumbel(size=len(x)))
            return action + self.about["first_action"], (qs, np.eye(len(x))[action])
        squashed, n = self.about["kind"] == "squashed", len(u.half)
        std = np.exp(np.clip(x[n:], -5, 2)) if squashed else u.std
        a = x[:n] if rng is None else x[:n] + std * rng.standard_normal(n)
        a = np.clip(np.tanh(a) if squashed else a, u.low, u.high)
        row = a * u.half + u.middle
        for logits in np.split(x[n:], np.cumsum(self.about.get("actions", []), dtype=int))[:-1]:  # of symbols
            chosen = np.argmax(logits if rng is None else logits + rng.gumbel(size=len(logits)))
            row, a = np.append(row, chosen), np.append(a, np.eye(len(logits))[chosen])
        return row.astype(self.about["dtype"]), (qs, a)


def load(path):
    """Load a policy that `rpsp export` wrote."""
    with np.load(path, allow_pickle=False) as file:
        about, names = json.loads(str(file["about"])), [name.split("/") for name in file.files if "/" in name]
        parts = {part: SimpleNamespace() for part, _ in names}
        for part, name in names:
            setattr(parts[part], name, file[f"{part}/{name}"].astype(float))
    return Policy(about, parts)
