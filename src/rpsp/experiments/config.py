"""Settings of the commands: frozen dataclasses, one docstring per field. Flags and configuration share these names."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import numbers
import operator
import sys
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rpsp.errors import UsageError
from rpsp.experiments.methods import METHODS, Method, MethodSettings


@dataclass(frozen=True)
class Sensors:
    """What the agent gets to see of an environment, and how badly."""

    observe: str | None = None
    """positions, all, or indices such as 0,1,2. The paper's four tasks know theirs; elsewhere everything is seen."""
    obs_noise: float = 0.0
    """Standard deviation of Gaussian noise on every reading."""
    relative_noise: float = 0.0
    """The same in units of each reading's own standard deviation under random actions."""
    obs_latency: int = 0
    """Steps by which readings come late."""
    act_latency: int = 0
    """Steps by which actions take effect late."""
    dropout: float = 0.0
    """Probability that a reading is lost and the last one repeats."""


@dataclass(frozen=True)
class FitConfig:
    """Fit a predictive-state model to an environment's exploration or to recorded episodes, and say how good it is."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV|DATA")]
    """A Gymnasium id (also module:Env-v0), an .npz recording, or minari:ID."""
    kind: Literal["inference", "kernel-bayes", "gru", "tabular"] = "inference"
    """inference (ours), kernel-bayes (the paper's), gru, or tabular (symbols)."""
    sensors: tyro.conf.OmitArgPrefixes[Sensors] = Sensors()
    samples: int = 10_000
    """Steps of exploration with random actions (environments only)."""
    seed: int = 0
    """Of exploration, features and splits."""
    past: int | None = None
    """Steps of history; the kind's default if not given."""
    future: int | None = None
    """Steps of future that a state predicts; the kind's default if not given."""
    dimension: int | None = None
    """Coordinates of the state; the kind's default if not given."""
    epochs: int | None = None
    """Epochs of refinement by backpropagation through time; the kind's default if not given."""
    out: str | None = None
    """The run directory; without it one is named under runs/."""
    inspect: bool = False
    """Draw the figures of `rpsp inspect` as well."""
    compilation_cache: bool = True
    """Keep compiled programs in ~/.cache/rpsp/xla for later commands."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class InspectConfig:
    """Draw what the belief of a fitted model knows: its forecasts, its errors, what its coordinates mean."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp fit`."""
    horizon: int = 10
    """Steps that the forecasts reach ahead."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


DEFAULTS = METHODS["rpsi-trpo"].settings()


@dataclass(frozen=True)
class TrainConfig:
    """Train an agent: explore, fit its belief, then act and update until the iterations are done."""

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = None
    """A Gymnasium id (also module:Env-v0); may stand in the configuration file instead."""
    method: str = "rpsi-trpo"
    """A row of `rpsp methods`, or your own as package.module:row."""
    sensors: tyro.conf.OmitArgPrefixes[Sensors] = Sensors()
    seed: int = 0
    """The root of all randomness."""
    seeds: int = 1
    """Train so many seeds, from `seed` on, one process a core, on a GPU as one program; each has a directory under --out."""
    iterations: int | None = None
    """Iterations of acting and updating; the paper's in its tasks, elsewhere 100, of as many steps in all where a
    method's are shorter; 300 off-policy."""
    samples: int | None = None
    """Environment steps an iteration, at least; the paper's in its tasks, elsewhere ten episodes' worth, 2000 to 10000;
    PPO at most 4000 and off-policy 1000, or one episode's worth."""
    exploration_episodes: int | None = None
    """Random episodes at the start; the paper's in its tasks."""
    exploration_samples: int | None = None
    """Or random steps at the start, at least; 20000 elsewhere, 10000 off-policy, though 10 to 100 episodes' worth."""
    max_episode_steps: int | None = None
    """When an episode is cut off; the paper's limit in its tasks, elsewhere the environment's own."""
    num_envs: int | None = None
    """Environments that are stepped together; unless given, what fills a batch with one full episode each, at most 100."""
    settings: tyro.conf.OmitArgPrefixes[MethodSettings] = DEFAULTS
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where updates are computed; acting is on the CPU. auto: a GPU, if there is one and the method's updates gain by it."""
    threads: int | None = None
    """Threads that step the physics; every core unless given."""
    step_timeout: float = 25.0
    """Seconds that environments may take over a step or a reset before they are given up as hanging; 0: any number."""
    out: str | None = None
    """The run directory; without it one is named under runs/."""
    config: str | None = None
    """A TOML file of these settings; flags go before it."""
    plugin: str | None = None
    """A module to import first (several: a,b): one that registers environments or makes classes readable."""
    tensorboard: bool = False
    """Write TensorBoard's files as well (extra `tensorboard`)."""
    compilation_cache: bool = True
    """Keep compiled programs in ~/.cache/rpsp/xla for later commands."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class ResumeConfig:
    """Go on with a run that was interrupted, bit for bit, from its last good checkpoint."""

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`; or several of the same task and length, which are then trained together."""
    iterations: int | None = None
    """Go on to so many iterations in all, instead of those that were asked for at first."""
    plugin: str | None = None
    """A module to import first (several: a,b): one that registers environments or makes classes readable."""
    compilation_cache: bool = True
    """Keep compiled programs in ~/.cache/rpsp/xla for later commands."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class EvalConfig:
    """Play episodes with a trained agent and say how well it does."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`."""
    episodes: int = 10
    """How many."""
    checkpoint: str = "last"
    """last, best, or a number of iterations."""
    stochastic: bool = False
    """Draw actions as in training instead of doing the most probable one."""
    seed: int = 0
    """Of the episodes: other than in training, whatever it is."""
    plugin: str | None = None
    """A module to import first (several: a,b): one that registers environments or makes classes readable."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class WatchConfig:
    """Render an episode of a trained agent beside what its belief predicts, as a video."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`."""
    checkpoint: str = "last"
    """last, best, or a number of iterations."""
    seed: int = 0
    """Of the episode."""
    steps: int = 500
    """At most so many steps are shown."""
    format: Literal["mp4", "gif"] = "mp4"
    """Of the video."""
    plugin: str | None = None
    """A module to import first (several: a,b): one that registers environments or makes classes readable."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class ExportConfig:
    """Write the acting policy for use without jax: its numbers, and a script that acts with numpy alone."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`."""
    checkpoint: str = "last"
    """last, best, or a number of iterations."""
    out: str | None = None
    """Where to; the run directory's export/ unless given."""
    onnx: bool = False
    """Also write policy.onnx, a graph of one step (extra `onnx`; not of kernel Bayes, which solves a linear system)."""
    plugin: str | None = None
    """A module to import first (several: a,b): one that registers environments or makes classes readable."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class SweepConfig:
    """Train every run of a sweep: what is missing and what was interrupted; what is finished is left alone."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A TOML file of tasks, methods, seeds and settings."""
    out: str | None = None
    """The directory of all runs; unless given, runs/ and the file's name."""
    dry_run: bool = False
    """Only say how many runs there are, and how long they will take."""
    jobs: int | None = None
    """Runs at a time; one a core unless given."""
    backend: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: a cluster that Ray was started on (extra `ray`)."""
    address: str | None = None
    """Of the Ray cluster, as in 10.0.0.1:6379; the one that this machine belongs to unless given."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class PaperConfig:
    """Do the paper's experiments, whole or in part; draw figures and tables of whatever is finished."""

    figures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")] = ()
    """By name, or all (the paper's own); without one they are listed: what is done, what is left, how long it will take."""
    seeds: int = 10
    """Of every method; the paper has 10."""
    scale: float = 1.0
    """The fraction of the paper's iterations to do; more can be done later. Marked on every figure."""
    select: bool = False
    """Run all candidates for a curve, as the paper does (d, step sizes, windows, units), and show the best."""
    draw: bool = False
    """Run nothing, only draw."""
    out: str = "runs/paper"
    """The directory of all runs; figures/ and tables/ go there too."""
    results: str | None = None
    """Keep a small file of every finished run in this directory, and draw from those; what is there is not done again."""
    page: str | None = None
    """Write a Markdown page of all results there are, with the verdict on every claim; its figures go beside it. Alone, with
    no experiment named, nothing is run. Results count that did what was asked of them, or --scale."""
    readme: str | None = None
    """With --page: show the four tasks at a glance in this file too, between <!-- glance --> and <!-- /glance -->."""
    list: bool = False
    """List the experiments, and do nothing else."""
    dry_run: bool = False
    """Only say how many runs there are, and how long they will take."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where updates are computed; on gpu all runs of a method on a task go together."""
    jobs: int | None = None
    """Runs at a time; one a core unless given."""
    backend: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: a cluster that Ray was started on (extra `ray`)."""
    address: str | None = None
    """Of the Ray cluster, as in 10.0.0.1:6379; the one that this machine belongs to unless given."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class MethodsConfig:
    """List the methods that can be trained."""

    json: bool = False
    """Print one JSON object as the last line."""


@dataclass(frozen=True)
class DoctorConfig:
    """Say what this machine has: versions, devices, rendering, extras."""

    json: bool = False
    """Print one JSON object as the last line."""


@dataclass(frozen=True)
class ReportConfig:
    """Write one HTML page about runs, finished or not: what they came to, curves, failures, settings, versions.

    Of one run, or of a few, it also shows what the belief expects.
    """

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directories, directories that hold them at any depth, as of a sweep, or result files."""
    out: str | None = None
    """The page; unless given, report.html in the run directory, or in the one that holds them all."""
    watch: bool = False
    """Write the page again and again while the runs go on, until all have ended; it loads itself again."""
    every: float = 5.0
    """Seconds between two writings, with --watch."""
    plugin: str | None = None
    """A module to import first (several: a,b): one that registers environments or makes classes readable."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class CompareConfig:
    """Compare methods by the results of their runs, task by task: tables, tests, figures. Runs may be unfinished."""

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directories, directories that hold them at any depth, or result files."""
    metric: Literal["auc", "final"] = "auc"
    """What is tested: the area under the curve, or the return of the last ten iterations."""
    against: str | None = None
    """The method that the others are tested against; unless given, the one of the largest area under the curve."""
    threshold: float | None = None
    """Say how many environment steps it takes to reach this mean return."""
    smooth: int = 1
    """Hold the mean over so many iterations against the threshold."""
    select: bool = False
    """Of the variants of a method keep the one of the largest area under the curve, as the paper does."""
    table: str | None = None
    """Write the comparison to this CSV file."""
    csv: str | None = None
    """Write every iteration of every run to this CSV file."""
    parquet: str | None = None
    """… to this Parquet file (extra `parquet`)."""
    figures: str | None = None
    """Draw figures, PNG and SVG, in this directory."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


# ---------------------------------------------------------------------------------------------------------------------
# From names and values to a configuration
# ---------------------------------------------------------------------------------------------------------------------


def configured(given: Mapping[str, Any], where: str = "") -> TrainConfig:
    """A configuration from flat names and values; what is not given is the method's default.

    `where` says in messages where the names come from, as in "hopper.toml: ".
    """
    given = {name.replace("-", "_"): value for name, value in given.items()}
    own, sensors, settings = (_hints(cls) for cls in (TrainConfig, Sensors, MethodSettings))
    known = {**own, **sensors, **settings}
    del known["sensors"], known["settings"]
    check_names(given, known, where)
    if not isinstance(observe := given.get("observe"), str | None):
        # Imported here because gymnasium and MuJoCo, which it needs, would slow every `--help` down.
        from rpsp.envs.make import observed_indices

        given["observe"] = ",".join(map(str, observed_indices(observe)))
    given = {name: _checked(f"{where}{name}", value, known[name]) for name, value in given.items()}
    method = find_method(given.get("method", TrainConfig.method))

    def part(hints: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name in hints}

    return TrainConfig(**part(own), sensors=Sensors(**part(sensors)), settings=method.settings(**part(settings)))


def setting_names() -> set[str]:
    """Every flat name that a configuration of `rpsp train` has."""
    return (field_names(TrainConfig) - {"sensors", "settings"}) | field_names(Sensors) | field_names(MethodSettings)


def check_names(given: Collection[str], known: Collection[str], where: str = "") -> None:
    """Every name is among those that are known; one that is not is answered with the nearest."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; `rpsp train --help` lists them all."
            raise UsageError(f"{where}{name}: there is no such setting{hint}")


MAX_TOML = 1 << 20  # bytes of a file of settings
MAX_FLOAT = sys.float_info.max  # beyond it there are only infinity and whole numbers


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        if (size := Path(path).stat().st_size) > MAX_TOML:
            raise UsageError(
                f"config: {str(path)!r} has {size} bytes, more than {MAX_TOML}; it is no file of settings."
            )
        with Path(path).open("rb") as file:
            return tomllib.loads(file.read(MAX_TOML).decode())
    except OSError as error:
        raise UsageError(f"config: {str(path)!r} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"config: {str(path)!r} is not TOML ({error}).") from error


def usual_samples(env: str | None, method: Method | None = None, limit: int = 1000) -> int:
    """Environment steps an iteration unless told: the paper's in its tasks, else what suits episodes of this length; of a
    method that learns best from fewer, those, or an episode's."""
    from rpsp.envs.tasks import TASKS

    task = TASKS.get(env or "")
    usual = task.batch_samples if task else max(limit, min(10_000, max(2_000, 10 * limit)))
    return usual if method is None or method.samples is None else max(limit, min(usual, method.samples))


def find_method(name: str) -> Method:
    """A row of the table by its name, or a user's own as `package.module:row`."""
    if ":" in name:
        return _import_method(name)
    if name not in METHODS:
        near = difflib.get_close_matches(name.lower(), METHODS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UsageError(
            f"method: {name!r} is not one of {', '.join(METHODS)}{hint}; your own is given as package.module:row."
        )
    return METHODS[name]


def _import_method(name: str) -> Method:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise UsageError(f"method: {name!r} cannot be imported ({error}); give package.module:row.") from error
    if not isinstance(found, Method):
        raise UsageError(f"method: {name!r} is a {type(found).__name__}, not an rpsp.experiments.methods.Method.")
    return dataclasses.replace(found, name=name)


def import_plugin(name: str | None) -> None:
    """Import a user's module, or several, as in "mine.tasks,mine.methods"."""
    for module in [] if name is None else name.split(","):
        try:
            importlib.import_module(module)
        except Exception as error:  # a user's module may raise anything
            raise UsageError(f"plugin: {module!r} cannot be imported ({error}); give a module's name.") from error


def named_modules(plugin: Any, method: Any, env: Any) -> list[str]:
    """The modules that these settings name: the plugins, and what stands before a method's or an environment's colon."""
    plugins = plugin.split(",") if isinstance(plugin, str) else []
    homes = [name.partition(":")[0] for name in (method, env) if isinstance(name, str) and ":" in name]
    return list(dict.fromkeys([*plugins, *homes]))


def plugin_flag(config: TrainConfig) -> list[str]:
    """What a command that goes on with a run must say: no module is imported because a file names it."""
    modules = named_modules(config.plugin, config.method, config.env)
    return ["--plugin", ",".join(modules)] if modules else []


def check_values(config: TrainConfig) -> None:
    """Every value fits its type: a flag may be nan, and a program may pass anything."""
    for part in (config, config.sensors, config.settings):
        for name, hint in _hints(type(part)).items():
            if name not in ("sensors", "settings"):
                _checked(name, getattr(part, name), hint)


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(cls).items() if name in field_names(cls)}


def field_names(cls: type) -> set[str]:
    return {f.name for f in dataclasses.fields(cls)}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """A value that fits a type, or one sentence that says why not."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _checked(name, value, arguments[0])
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and value in (None, "none"):  # TOML has no word for it
            return None
        return _checked(name, value, next(a for a in arguments if a is not type(None)))
    if origin is Literal:
        if value not in arguments:
            raise UsageError(f"{name}: {value!r} is not one of {', '.join(map(str, arguments))}.")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{name}: {value!r} is not a list of whole numbers.")
        return tuple(_checked(name, item, arguments[0]) for item in value)
    if hint is float:
        # numpy's own numbers are compared as Python's: a float32 would turn the bounds into infinities.
        plain = float(value) if isinstance(value, numbers.Real) and not isinstance(value, int) else value
        if isinstance(plain, int | float) and not isinstance(plain, bool) and -MAX_FLOAT <= plain <= MAX_FLOAT:
            return float(plain)
    elif hint is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):  # numpy's are such, too
            return operator.index(value)
    elif isinstance(value, hint):
        return value
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    raise UsageError(f"{name}: {value!r} is not {words.get(hint, hint)}.")
