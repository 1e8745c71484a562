"""Act with a trained policy, using only numpy. `rpsp export` writes this file as act.py, next to policy.npz.

    policy = load("policy.npz")
    action, state = policy.step(observation)           # starts an episode
    action, state = policy.step(observation, state)    # continues it, at each new observation

The state contains the belief and the last action. Actions are the most probable ones. With a third argument,
np.random.default_rng(seed), they are sampled as in training. Observations and actions are in the environment's units.
Of structured ones they are flat rows; policy.about["observation_names"] and ["action_names"] name their entries.

    mean, std = policy.expect(state)                   # the next observation, if the action is executed
    z, p = policy.surprise(observation, state)         # of that observation, before the next step: z-scores and p-value
"""

import json
import math
from functools import partial
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
    e = (o - regression(w, x, a)) / w.spread if x[-1] else 0 * o
    return np.concatenate((inference(w, x, a, o), kernel_bayes(w, p, a, e)))


def tabular(w, q, a, o):
    """Bayes' rule on a table of probabilities: select the entries for a and o, then normalise each column."""
    if not q.any():
        return w.first[o.argmax()]
    joint = np.maximum(q @ w.W[a.argmax(), o.argmax()], 0)
    total = joint.sum(axis=0)
    return np.where(total > 1e-12, joint / np.maximum(total, 1e-12), 1 / len(joint)).reshape(-1)


def marked(update, w, q, a, o):
    """A filter of the last readings and of marks of those that are new; missing ones are NaN."""
    x, read = q[: -len(o)], ~np.isnan(o)
    last = np.where(read, o, q[-len(o) :])
    return np.concatenate((update(w, x, a, np.concatenate((last, read))), last))


def gaps(update, predict, w, q, a, o):
    """A filter that goes on while readings are missing (NaN): a Kalman filter around it completes them."""
    r, seen = len(w.A), np.flatnonzero(~np.isnan(o))
    x, begun, P = parted(w, q)
    mean, S = (predict(w, x, a), noise(w, x, a)) if begun else (w.first_mean, w.first_covariance)
    both = np.concatenate((np.eye(r), w.C))
    M = both @ P @ both.T
    M[r:, r:] += S
    std = np.sqrt(np.maximum(M.diagonal()[r:], 1e-12))[seen]
    V = M[r:, r:][np.ix_(seen, seen)] / np.outer(std, std) / (1 + 1e-5)
    np.fill_diagonal(V, 1)
    columns = M[:, r + seen] / std
    gain = np.linalg.solve(V, columns.T).T
    change = gain @ ((o - mean)[seen] / std)
    uncertain = np.concatenate((np.ones(r), np.isnan(o)))
    M = (M - gain @ columns.T) * np.outer(uncertain, uncertain)
    J = np.concatenate((w.A - w.B @ w.C, w.B) if begun else (0 * P, w.B_first), axis=1)
    most = 4 * np.sqrt(np.maximum(P.diagonal(), 0))
    x = x + w.trust * (w.T @ np.clip(change[:r], -most, most))
    P = J @ M @ J.T
    shrink = np.minimum(1, w.limit / np.sqrt(np.maximum(P.diagonal(), 1e-30)))
    P = (P + P.T) / 2 * np.outer(shrink, shrink)
    full = np.where(np.isnan(o), mean + change[r:], o)
    return np.concatenate((update(w, x, a, full), [1], P[np.tril_indices(r)]))


# Predictions of the next observation, and their covariance.
def linear(w, q, a):
    """Linear prediction of windows and recurrent units."""
    return np.concatenate((q, a)) @ w.pred_W + w.pred_b


def regression(w, q, a):
    """Prediction of direct inference."""
    z = np.concatenate((q[:-1], a)) * w.pred_factor + w.pred_shift
    bumps = np.exp(z @ w.pred_centres - z @ z / 2 - w.pred_half_squares)
    return w.pred_constant + z @ w.pred_W_linear + q[-1] * (z @ w.pred_W_young) + bumps @ w.pred_W_bumps


def noise(w, q, a):
    """Covariance of the error of a prediction."""
    z = np.clip((np.concatenate((q, a)) - w.noise_mean) @ w.noise_projection, -4, 4)
    v = np.exp(np.clip(np.concatenate(([1], z, z**2 - 1)) @ w.noise_W, -6, 6))
    return (w.noise_root * v) @ w.noise_root.T


def parted(w, q):
    """Return state, whether the episode has begun, and covariance of a filter in `gaps`."""
    r = len(w.A)
    n, P = len(q) - 1 - r * (r + 1) // 2, np.zeros((r, r))
    P[np.tril_indices(r)] = q[n + 1 :]
    return q[:n], q[n], P + np.tril(P, -1).T


def level(x, k):
    """Return −log P(χ² ≥ x) with k degrees of freedom."""
    h = x / 2
    if h > 30:
        return h - (k / 2 - 1) * math.log(h) + math.lgamma(k / 2)
    first = math.erfc(math.sqrt(h)) if k % 2 else 0
    return -math.log(first + math.exp(-h) * sum(h**i / math.gamma(i + 1) for i in np.arange(k % 2 / 2, k / 2)))


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
        self.beliefs = [(_update(kind), parts[f"belief{i}"]) for i, kind in enumerate(about["beliefs"])]
        self.predict = globals()[about["predicts"]] if about.get("predicts") else None
        self.layers = [parts[f"layer{i}"] for i in range(about["layers"])]

    def step(self, observation, state=None, rng=None):
        """Return the action for an observation, and the state for the next call. Without a state, start an episode."""
        u, (qs, a) = self.units, state or ([w.q0 for _, w in self.beliefs], self.units.null)
        o = np.asarray(observation, float)
        known = np.nan_to_num(o, posinf=np.inf, neginf=-np.inf) if self.about.get("gaps") else o
        if o.shape != u.mean.shape or not np.isfinite(known).all():
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

    def expect(self, state):
        """Return mean and standard deviation of the next observation, if the action of `step` is executed."""
        mean, covariance = self._forecast(state)
        return mean * self.units.scale + self.units.mean, np.sqrt(covariance.diagonal()) * self.units.scale

    def surprise(self, observation, state):
        """Return z-scores of an observation, and the p-value of all sensors, given the state before it."""
        mean, covariance = self._forecast(state)
        e = (np.asarray(observation, float) - self.units.mean) / self.units.scale - mean
        seen, std = np.flatnonzero(~np.isnan(e)), np.sqrt(covariance.diagonal())
        if not len(seen):
            return e, math.nan
        z, V = e[seen] / std[seen], (covariance / np.outer(std, std))[np.ix_(seen, seen)] / (1 + 1e-5)
        np.fill_diagonal(V, 1)
        L, w = level(z @ np.linalg.solve(V, z), len(seen)), self.beliefs[0][1]
        quantiles, logs = np.append(0, np.maximum.accumulate(w.surprises)), np.append(0, np.log(w.tails))
        return e / std, math.exp(np.interp(L, quantiles, logs) if quantiles[-1] >= L else logs[-1] * L / quantiles[-1])

    def _forecast(self, state):
        if self.predict is None:
            raise ValueError("expect: this policy was exported without a predictive distribution.")
        w, q, a = self.beliefs[0][1], state[0][0], state[1]
        x, _, P = parted(w, q) if self.about["gaps"] else (q, 1, None)
        covariance = noise(w, x, a) + (0 if P is None else w.C @ P @ w.C.T)
        return self.predict(w, x, a), covariance * np.outer(w.factors, w.factors)


def _update(kind):
    """Return the update of a kind of filter, such as "gru", "marked gru" or "gaps inference regression"."""
    around, *inner = (globals()[name] for name in kind.split())
    return partial(around, *inner) if inner else around


def load(path):
    """Load a policy that `rpsp export` wrote."""
    with np.load(path, allow_pickle=False) as file:
        about, names = json.loads(str(file["about"])), [name.split("/") for name in file.files if "/" in name]
        parts = {part: SimpleNamespace() for part, _ in names}
        for part, name in names:
            setattr(parts[part], name, file[f"{part}/{name}"].astype(float))
    return Policy(about, parts)
