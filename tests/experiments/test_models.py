"""PredictiveStateModel: shapes and meaning of what it returns, its scores, its files, and every mistake a user can make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from benchmarks.systems import controlled_hmm, linear_gaussian, simulate_hmm, simulate_linear_gaussian
from hostile import edited, put
from hypothesis import given, settings
from hypothesis import strategies as st

from rpsp import PredictiveStateModel
from rpsp.errors import FileFormatError, StorageError, UsageError
from rpsp.filters.base import AbstractFilter
from rpsp.filters.belief import Belief
from rpsp.filters.inference import Inference
from rpsp.filters.memory import FiniteMemory, observation_window

KINDS = {
    "inference": {"bumps": 30, "rounds": 2},
    "kernel-bayes": {"dimension": 6, "frequencies": 40, "history_dimension": 20, "epochs": 1},
    "gru": {"units": 8, "epochs": 2},
}


FIXTURES = Path(__file__).parents[1] / "fixtures"


@dataclass(frozen=True)
class Needy(Belief):
    """A user's own belief, with a setting without a default."""

    rate: float
    window: int = 1
    function: Callable[[float], float] = abs

    def fit(self, batch, held_out, *, key) -> AbstractFilter:
        return observation_window(self.window, batch.observations.shape[-1], batch.actions.shape[-1])


def _episodes(count=20, steps=40, obs=2, act=1, seed=0):
    system = linear_gaussian(3, obs, act, np.random.default_rng(7))
    recorded = simulate_linear_gaussian(system, count, steps, np.random.default_rng(seed))
    return [(5 + 2 * e.observations, e.actions) for e in recorded]


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return PredictiveStateModel(request.param, **KINDS[request.param]).fit(_episodes())


def test_shapes_are_those_promised(model):
    observations, actions = _episodes(1, 17, seed=3)[0]
    assert model.filter(observations, actions).shape[0] == 18
    for horizon in (1, 4, 17):
        assert model.predict(observations, actions, horizon).shape == (17 - horizon + 1, horizon, 2)


def test_entry_t_knows_nothing_after_t(model):
    """Entry [t, j] may use observations[: t + 1] and actions[: t + j + 1], and nothing else."""
    observations, actions = _episodes(1, 20, seed=4)[0]
    whole, states = model.predict(observations, actions, 3), model.filter(observations, actions)
    changed_observations, changed_actions = observations.copy(), actions.copy()
    changed_observations[11:] += 100.0
    changed_actions[13:] -= 50.0
    again = model.predict(changed_observations, changed_actions, 3)
    np.testing.assert_array_equal(again[:11], whole[:11])  # entry 10 knows observation 10 and actions up to 12
    assert not np.allclose(again[11], whole[11])
    np.testing.assert_array_equal(model.filter(changed_observations, changed_actions)[:11], states[:11])


def test_forecast_goes_on_where_predict_ends(model):
    observations, actions = _episodes(1, 20, seed=4)[0]
    inside = model.predict(observations, actions, 5)
    for t in (0, 7, 15):  # with t = 0 the history is the reset observation alone
        ahead = model.forecast(observations[: t + 1], actions[:t], actions[t : t + 5])
        np.testing.assert_allclose(ahead, inside[t], rtol=1e-4, atol=1e-4)
    beyond = model.forecast(observations, actions, np.ones((40, 1)))
    assert beyond.shape == (40, 2) and np.isfinite(beyond).all()
    np.testing.assert_allclose(model.forecast(observations, actions, np.ones((3, 1))), beyond[:3], rtol=1e-4, atol=1e-4)
    assert not np.allclose(model.forecast(observations, actions, -np.ones((3, 1))), beyond[:3], atol=1e-2)


def test_errors_are_in_order(model):
    assert list(model.errors) == [model.kind, "linear AR(10)", "persistence", "mean"]
    assert all(len(values) == 10 and np.isfinite(values).all() for values in model.errors.values())
    assert model.errors["mean"][0] == pytest.approx(1.0, abs=0.1)


def test_save_and_load_give_the_same_numbers(model, tmp_path):
    observations, actions = _episodes(1, 20, seed=5)[0]
    model.save(tmp_path / "model.safetensors")
    again = PredictiveStateModel.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(observations, actions, 5), model.predict(observations, actions, 5))
    assert again.errors == model.errors and again.belief == model.belief and again.kind == model.kind
    with pytest.raises(StorageError, match=r"already exists"):
        model.save(tmp_path / "model.safetensors")
    model.save(tmp_path / "model.safetensors", overwrite=True)


@pytest.mark.parametrize("kind", ["inference", "kernel-bayes", "gru", "tabular"])
def test_models_of_version_0_4_0_are_read(kind):
    """`fixtures/models_of_0_4_0` was written by commit ee8e522, with what these models predicted there."""
    model = PredictiveStateModel.load(FIXTURES / "models_of_0_4_0" / f"{kind}.safetensors")
    with np.load(FIXTURES / "models_of_0_4_0" / "predicted.npz") as there:
        observations, actions, predicted = (there[f"{kind}/{n}"] for n in ("observations", "actions", "predicted"))
    np.testing.assert_allclose(model.predict(observations, actions, 3), predicted, rtol=1e-4, atol=1e-4)
    given = {"inference": ("past", 3), "kernel-bayes": ("epochs", 1), "gru": ("units", 4), "tabular": ("max_rank", 3)}
    name, value = given[kind]
    assert model.kind == kind and getattr(model.belief, name) == value


def test_a_belief_of_ones_own(tmp_path):
    """Its settings by name or in an instance; saved and loaded. What a file could not tell is refused when it is saved."""
    path = tmp_path / "model.safetensors"

    @dataclass(frozen=True)
    class Averaging(Needy):
        rate: float = 0.5

    with pytest.raises(
        UsageError, match=r"^setting: 'windw' is not one of rate, window \(did you mean 'window'\?\)\.$"
    ):
        PredictiveStateModel(Averaging(), windw=2)
    observations, actions = _episodes(1, 20, seed=5)[0]
    for model in (
        PredictiveStateModel(Averaging(rate=0.1), window=2),
        PredictiveStateModel("averaging", rate=0.1, window=2),
    ):
        model.fit(_episodes()).save(path, overwrite=True)
        again = PredictiveStateModel.load(path)
        assert again.belief == model.belief == Averaging(0.1, 2)
        np.testing.assert_array_equal(again.predict(observations, actions), model.predict(observations, actions))
    with pytest.raises(UsageError, match=r"^function: is not its default, and files contain only settings that"):
        PredictiveStateModel(Averaging(function=float)).fit(_episodes()).save(path, overwrite=True)

    path.write_bytes(edited(path.read_bytes(), lambda header, _: put(header, "extra/kind", "stranger")))
    with pytest.raises(
        FileFormatError, match=r"\(kind: 'stranger' is not known; import the module that defines it first\)"
    ):
        PredictiveStateModel.load(path)

    @dataclass(frozen=True)
    class Other(Averaging):
        kind = "inference"

    assert type(PredictiveStateModel("inference").belief) is Inference, "the library's own come first"
    with pytest.raises(UsageError, match=r"^kind: 'inference' is also the kind of another class than .*Other"):
        PredictiveStateModel(Other()).fit(_episodes()).save(path, overwrite=True)


def test_score_is_scikit_learns_r2():
    """Against sklearn.metrics.r2_score's definition, written out."""
    model = PredictiveStateModel(bumps=30, rounds=2).fit(_episodes())
    held = _episodes(10, seed=9)
    truth = np.concatenate([o[1:] for o, _ in held])
    predicted = np.concatenate([model.predict(o, a)[:, 0] for o, a in held])
    residual, total = ((truth - predicted) ** 2).sum(axis=0), ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    assert model.score(held) == pytest.approx(np.mean(1 - residual / total), abs=1e-4)


def test_same_seed_same_model():
    first, second = (PredictiveStateModel(bumps=30, rounds=1, seed=4).fit(_episodes()) for _ in range(2))
    observations, actions = _episodes(1, seed=1)[0]
    np.testing.assert_array_equal(first.predict(observations, actions), second.predict(observations, actions))


def test_refit_keeps_the_coordinates():
    model = PredictiveStateModel(bumps=30, rounds=2).fit(_episodes())
    before, observations, actions = model.fitted, *_episodes(1, 60, seed=5)[0]
    states = model.filter(observations, actions)
    model.refit(_episodes(40, seed=1))
    np.testing.assert_array_equal(model.fitted.P, before.P)
    np.testing.assert_array_equal(model.fitted.mean_future, before.mean_future)
    again = model.filter(observations, actions)
    assert again.shape == states.shape and not np.array_equal(again, states)
    assert np.corrcoef(states[5:, 0], again[5:, 0])[0, 1] > 0.98
    with pytest.raises(UsageError, match="cannot keep its coordinates"):
        PredictiveStateModel("gru", units=4, epochs=1).fit(_episodes()).refit(_episodes())


def test_tabular_predicts_distributions_over_symbols():
    rng = np.random.default_rng(0)
    episodes = simulate_hmm(controlled_hmm(2, 3, 2, rng), 80, 30, rng)
    model = PredictiveStateModel("tabular").fit(episodes)
    predicted = model.predict(episodes[0].observations, episodes[0].actions, 4)
    np.testing.assert_allclose(predicted.sum(axis=-1), 1.0, atol=1e-4)
    ahead = model.forecast(episodes[0].observations[:11], episodes[0].actions[:10], episodes[0].actions[10:14])
    np.testing.assert_allclose(ahead, predicted[10], atol=1e-4)
    with pytest.raises(UsageError, match=r"symbol 7 was not seen"):
        model.predict(np.array([0, 7, 1]), np.array([0, 1]))
    many = [(np.arange(60), np.arange(59) % 20)] * 2
    with pytest.raises(UsageError, match=r"future: 60 symbols and 20 actions over 2 steps"):
        PredictiveStateModel("tabular").fit(many)
    with pytest.raises(UsageError, match=r"number the symbols from 0"):
        PredictiveStateModel("tabular").fit([(np.array([0.5, 1.0]), np.array([0.0]))])


@given(
    obs=st.integers(1, 4),
    act=st.integers(1, 3),
    steps=st.integers(6, 15),
    count=st.integers(1, 5),
    scale=st.integers(-6, 6),
)
@settings(max_examples=5)
def test_any_shape_and_any_units(obs, act, steps, count, scale):
    rng = np.random.default_rng(0)
    unit = 10.0**scale
    episodes = [(unit * rng.standard_normal((steps + 1, obs)).cumsum(axis=0), rng.standard_normal((steps, act)))
                for _ in range(count)]  # fmt: skip
    model = PredictiveStateModel(bumps=10, rounds=1).fit(episodes)
    predicted = model.predict(*episodes[0])
    assert predicted.shape == (steps, 1, obs) and np.isfinite(predicted).all()


def test_sensors_that_never_change_are_harmless():
    episodes = [(np.concatenate([o, np.full_like(o, 3.0)], axis=1), np.zeros_like(a)) for o, a in _episodes()]
    model = PredictiveStateModel(bumps=30, rounds=1).fit(episodes)
    predicted = model.predict(*episodes[0])
    assert np.isfinite(predicted).all()
    np.testing.assert_allclose(predicted[..., 2:], 3.0, atol=1e-3)
    still = [(np.full((20, 1), 2.0), np.zeros((19, 1)))] * 3
    np.testing.assert_allclose(PredictiveStateModel(bumps=5, rounds=1).fit(still).predict(*still[0]), 2.0, atol=1e-3)


BAD_EPISODES = {
    "empty list": ([], "the list is empty"),
    "not a pair": ([np.zeros((5, 2))], r"episodes\[0\]: expected a pair"),
    "lengths": ([(np.zeros((5, 2)), np.zeros((5, 1)))], "one more observation than actions"),
    "mixed sizes": (
        [(np.zeros((9, 2)), np.zeros((8, 1))), (np.zeros((9, 3)), np.zeros((8, 1)))],
        r"episodes\[1\].observations: has 3 columns where episodes\[0\] has 2",
    ),
    "nan": ([(np.array([[0.0], [np.nan], [1.0]]), np.zeros((2, 1)))], r"observations\[1, 0\]: is nan"),
    "inf": ([(np.zeros((3, 1)), np.array([[0.0], [np.inf]]))], r"actions\[1, 0\]: is inf"),
    "too short": ([(np.zeros((4, 1)), np.zeros((3, 1)))], "the longest has 3 steps, and a future of 5 needs 6"),
    "strings": ([(np.array([["a"], ["b"]]), np.zeros((1, 1)))], "give real numbers"),
    "images": ([(np.zeros((3, 4, 4)), np.zeros((2, 1)))], "flatten images"),
    "huge": ([(np.zeros((9, 10_000)), np.zeros((8, 1)))], "10000 dimensions over a past of 10"),
}


@pytest.mark.parametrize("case", BAD_EPISODES)
def test_bad_episodes_get_one_clear_sentence(case):
    episodes, words = BAD_EPISODES[case]
    with pytest.raises(UsageError, match=words) as caught:
        PredictiveStateModel().fit(episodes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PredictiveStateModel("inferense"), r"kind: 'inferense' .* .did you mean 'inference'"),
        (lambda: PredictiveStateModel(futur=3), r"setting: 'futur' .* .did you mean 'future'"),
        (lambda: PredictiveStateModel(past=0), "^past: 0 must be at least 1."),
        (lambda: PredictiveStateModel(past=2.5), "past: 2.5"),
        (lambda: PredictiveStateModel(ridge=-1.0), "^ridge: -1.0 must be at least 0."),
        (lambda: PredictiveStateModel(held_out=1.0), "held_out: 1.0"),
        (lambda: PredictiveStateModel(held_out=True), "held_out: True is not a fraction"),
        (lambda: PredictiveStateModel(past=True), "past: True is not a whole number"),
        (lambda: PredictiveStateModel(past=np.float64(3)), r"past: .*3\.0.* is not a whole number"),
        (lambda: PredictiveStateModel(ridge="1"), "^ridge: '1' is not a finite number"),
        (lambda: PredictiveStateModel(ridge=np.float32("nan")), "^ridge: .*nan.* is not a finite number"),
        (lambda: PredictiveStateModel(only_reliable=3), "^only_reliable: 3 is not true or false"),
        (lambda: PredictiveStateModel(bends=[1.0, "a"]), r"^bends: \[1.0, 'a'\] is not a list of finite numbers"),
        (lambda: PredictiveStateModel(bends=[1.0, -1.0]), "^bends: .* must be at least 0."),
        (lambda: PredictiveStateModel(bends=()), "^bends: .* is empty; give at least one ridge"),
        (lambda: PredictiveStateModel(dimension=10**6), "^dimension: 1000000 is more than the maximum, 10000."),
        (lambda: PredictiveStateModel(Needy(0.5, 2.5)), r"^Needy.window: 2\.5 is not a whole number"),  # pyright: ignore
        (lambda: Inference(ridge=float("nan")), "^ridge: nan must be at least 0."),
        (lambda: PredictiveStateModel("kernel-bayes", state_dimension=0), "^state_dimension: 0 must be at least 1."),
        (lambda: PredictiveStateModel("kernel-bayes", percentile=101), "^percentile: 101.0 must be between 0 and 100."),
        (lambda: PredictiveStateModel("tabular", smoothing=-1), "^smoothing: -1.0 must be at least 0."),
        (lambda: PredictiveStateModel("gru", epochs=-1), "^epochs: -1 must be at least 0."),
        (lambda: PredictiveStateModel(epochs=1), "^setting: 'epochs' is not one of past, future, "),
        (lambda: PredictiveStateModel(3), r"^kind: 3 is not one of .*inference"),  # pyright: ignore
        (lambda: PredictiveStateModel("test_models:KINDS"), "^kind: 'test_models:KINDS' is a dict, not an rpsp.Belief"),
        (lambda: PredictiveStateModel("needy"), "^kind: 'needy' cannot be made without settings .*'rate'"),
        (lambda: PredictiveStateModel().predict(np.zeros((3, 1)), np.zeros((2, 1))), "not fitted yet"),
    ],
)
def test_bad_settings_get_one_clear_sentence(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_settings_may_be_numbers_of_numpy(tmp_path):
    plain = PredictiveStateModel(past=4, bumps=10, rounds=1, ridge=0.5, bends=(1e9, 0.5), held_out=0.25)
    numpys = PredictiveStateModel(
        past=np.int64(4),
        bumps=np.uint8(10),
        rounds=np.array(1),
        ridge=np.float32(0.5),
        bends=np.array([1e9, 0.5], np.float32),
        held_out=np.float32(0.25),
        slack=jax.numpy.float32(25.0),
        dimension=jax.numpy.int32(30),
        only_reliable=np.True_,
    )
    assert numpys.belief == plain.belief and numpys.held_out == 0.25
    itself = PredictiveStateModel(Needy(np.float32(0.5), np.int64(4))).belief  # pyright: ignore[reportArgumentType]
    assert itself == Needy(0.5, 4) and {type(x) for x in (itself.rate, itself.window)} == {int, float}
    numpys.fit(_episodes()).save(tmp_path / "model.safetensors")  # JSON has no numbers of numpy
    assert PredictiveStateModel.load(tmp_path / "model.safetensors").belief == plain.belief
    assert numpys.predict(*_episodes(1, 8)[0], horizon=np.int64(3)).shape == (6, 3, 2)


def test_bad_questions_to_a_fitted_model():
    model = PredictiveStateModel(bumps=10, rounds=1).fit(_episodes())
    observations, actions = _episodes(1, 8)[0]
    with pytest.raises(UsageError, match=r"horizon: 9 is more than the 8 actions of the episode"):
        model.predict(observations, actions, 9)
    with pytest.raises(UsageError, match=r"observations: has 1 columns, but the model was fitted to 2"):
        model.filter(observations[:, :1], actions)
    with pytest.raises(
        UsageError, match=r"5 observations and 8 actions .* forecast\(observations, actions\[:4\], actio"
    ):
        model.predict(observations[:5], actions)
    with pytest.raises(UsageError, match=r"future_actions: is empty; give one action"):
        model.forecast(observations, actions, [])
    with pytest.raises(UsageError, match=r"future_actions: has 3 columns, but the model was fitted to 1"):
        model.forecast(observations, actions, np.zeros((2, 3)))
    with pytest.raises(UsageError, match=r"9 observations and 7 actions .* the reset observation comes first"):
        model.forecast(observations, actions[:7], actions[7:])
    with pytest.raises(UsageError, match=r"future_actions\[1, 0\]: is nan"):
        model.forecast(observations, actions, [0.0, np.nan])


def test_bad_files(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(FileFormatError, match=r"no such file"):
        PredictiveStateModel.load(path)
    for content in (b"", b"hello", b"\x80\x04K\x01.", (2**62).to_bytes(8, "little") + b"{}", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"not an rpsp model file"):
            PredictiveStateModel.load(path)
    PredictiveStateModel(bumps=10, rounds=1).fit(_episodes()).save(path, overwrite=True)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(len(whole) // 2, len(whole), 20):  # the second half is all arrays
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"damaged|not an rpsp model"):
            PredictiveStateModel.load(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(FileFormatError):
        PredictiveStateModel.load(path)


def test_bands_and_samples_belong_to_the_predictions(model):
    observations, actions = _episodes(1, 30, seed=3)[0]
    predicted, std = model.predict(observations, actions, 4, return_std=True)
    np.testing.assert_allclose(predicted, model.predict(observations, actions, 4), rtol=1e-3, atol=1e-3)  # two programs
    covariance = model.predict(observations, actions, 4, return_cov=True)[1]
    assert std.shape == predicted.shape == (27, 4, 2) and covariance.shape == (27, 4, 2, 2)
    np.testing.assert_allclose(std**2, np.diagonal(covariance, axis1=2, axis2=3), rtol=1e-6)
    narrow, wide = (model.predict_interval(observations, actions, 4, level) for level in (0.5, 0.9))
    assert (wide[0] < narrow[0]).all() and (narrow[0] < predicted).all() and (narrow[1] < wide[1]).all()
    assert model.sample(observations, actions, 4, 3).shape == (3, 27, 4, 2)
    mean, spread = model.forecast(observations, actions[:30], actions[:5], return_std=True)
    low, high = model.forecast_interval(observations, actions, actions[:5], 0.9)
    assert spread.shape == (5, 2) and (low < mean).all() and (mean < high).all()
    # Observations are twice as wide as those of the system, so that densities are a quarter.
    assert -6 < model.log_likelihood(_episodes(3, seed=4)) < -2
    for level in (0, 1, 1.5, "much", float("nan")):
        with pytest.raises(UsageError, match=r"level: .* is not between 0 and 1"):
            model.predict_interval(observations, actions, 1, level)
    with pytest.raises(UsageError, match="either return_std or return_cov"):
        model.predict(observations, actions, return_std=True, return_cov=True)


def test_readings_may_be_missing(tmp_path):
    rng = np.random.default_rng(0)
    gaps = [(np.where(rng.random(o.shape) < 0.3, np.nan, o), a) for o, a in _episodes()]
    with pytest.raises(UsageError, match="missing='nan'"):
        PredictiveStateModel(FiniteMemory(2)).fit(gaps)
    model = PredictiveStateModel(FiniteMemory(2), missing="nan").fit(gaps)
    observations, actions = (x.copy() for x in _episodes(1, 30, seed=3)[0])
    before = model.predict(observations, actions, return_std=True)[1]
    observations[10:14] = np.nan  # every reading of four steps
    after = model.predict(observations, actions, return_std=True)[1]
    np.testing.assert_allclose(after[:10], before[:10], rtol=1e-4)
    assert (after[13] > before[13]).all()
    assert np.isfinite(model.filter(observations, actions)).all()
    assert np.isfinite(model.score(gaps)) and np.isfinite(model.log_likelihood(gaps))
    model.save(tmp_path / "gaps.safetensors")
    again = PredictiveStateModel.load(tmp_path / "gaps.safetensors")
    np.testing.assert_array_equal(again.predict(observations, actions), model.predict(observations, actions))
    never = [(np.where([True, False], np.nan, o), a) for o, a in gaps]
    with pytest.raises(UsageError, match="column 0 is missing"):
        PredictiveStateModel(FiniteMemory(2), missing="nan").fit(never)
    with pytest.raises(UsageError, match="missing: 'zero' is not known"):
        PredictiveStateModel(missing="zero")
