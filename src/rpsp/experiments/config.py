"""Settings of all commands, as frozen dataclasses.

The field names are the names of the flags and of the entries in configuration files. The docstring of a field is its
help text. A line break in it is a line break in `--help`. The settings of a method or a belief are not listed here: they
are the fields of its parts (`rpsp.experiments.settings`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro


@dataclass(frozen=True)
class Sensors:
    """Which observations the agent gets, their noise and delay, the limit of its actions, and arguments of the task."""

    observe: str | None = None
    """What the agent sees: positions, all, or indices as 0,1,2. Default: positions on the paper's tasks, else all."""
    obs_noise: float = 0.0
    """Standard deviation of Gaussian noise added to every observation."""
    relative_noise: float = 0.0
    """Noise as a multiple of each observation's standard deviation under random actions. Excludes --obs-noise."""
    obs_latency: int | str = 0
    """Delay of observations, in steps. 0-3: a random delay for every observation."""
    act_latency: int = 0
    """Delay of actions, in steps."""
    dropout: float = 0.0
    """Probability that an observation is lost and the previous one is repeated."""
    outage: Annotated[str | None, tyro.conf.arg(metavar="P:L")] = None
    """Outages of single sensors: the probability per step that one begins, and its length in steps, as in 0.01:20.
    The sensor's last value is repeated."""
    sensor_rate: Annotated[int | str | None, tyro.conf.arg(metavar="N|I:N,...")] = None
    """Read sensors only every N steps: all of them (10), or some by index (0:10,3:2). Values are repeated in between."""
    missing: Literal["nan"] | None = None
    """nan: what is lost, silent, not due or late is marked as missing (NaN) instead of repeated, and the filter goes on
    without it. NaN in an environment's or a recording's observations then means that a reading is missing.
    Default: NaN is a fault. For logs with empty cells: nan."""
    action_limit: float | None = None
    """Clip actions to ± this value, in the environment's own units. The agent's [-1, 1] is then this smaller range."""
    env_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE [NAME=VALUE ...]")] = ()
    """Keyword arguments of the environment, as in `--env-args forward_reward_weight=10 healthy_reward=0`.
    In Python, a dict."""


@dataclass(frozen=True)
class Columns:
    """The columns of a log, a CSV or Parquet file with one row per step."""

    observations: Annotated[str | None, tyro.conf.arg(metavar="NAME,...")] = None
    """For logs: the columns that are sensors."""
    actions: Annotated[str | None, tyro.conf.arg(metavar="NAME,...")] = None
    """For logs: the columns that are commands, each given after the readings of its row."""
    episode: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """For logs: the column that says to which episode a row belongs. Default: one episode."""
    time: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """For logs: the column of times. A gap in time ends an episode."""


@dataclass(frozen=True)
class FitConfig:
    """Fit a predictive-state model to recorded episodes or to random exploration, and report its prediction errors."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV|DATA")]
    """A Gymnasium id (Env-v0 or module:Env-v0), an .npz file of episodes, minari:ID, or a log (.csv, .parquet)."""
    columns: tyro.conf.OmitArgPrefixes[Columns] = Columns()
    kind: str = "inference"
    """Kind of belief: inference (ours), kernel-bayes (the paper's), gru, or tabular (for discrete data).
    Your own as package.module:attribute. Its settings are flags: see `rpsp fit --kind KIND --help`."""
    sensors: tyro.conf.OmitArgPrefixes[Sensors] = Sensors()
    samples: int = 10_000
    """Length of the exploration with random actions, in steps. For environments only."""
    seed: int = 0
    """Seed of exploration, random features and the held-out split."""
    settings: tyro.conf.Suppress[Any] = None
    """The settings of the belief."""
    out: str | None = None
    """Run directory. Default: runs/SOURCE__fit-KIND__SEED__TIME."""
    inspect: bool = False
    """Also draw the figures of `rpsp inspect`."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that define your own belief, or register environments."""
    compilation_cache: bool = True
    """Cache compiled programs in ~/.cache/rpsp/xla for later commands."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class ForecastConfig:
    """Continue a log with a fitted model: a table of forecasts with bands, and a figure.

    If the last rows of an episode have commands but no readings, these rows are forecast. Otherwise its last rows are
    forecast from those before, and compared with what was read.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|FILE")]
    """A run directory of `rpsp fit`, or its model.safetensors."""
    log: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="LOG")]
    """A CSV or Parquet file."""
    columns: tyro.conf.OmitArgPrefixes[Columns] = Columns()
    horizon: int = 20
    """Number of steps to forecast, where the log has readings to its end."""
    level: float = 0.9
    """Share of readings that the bands contain."""
    out: str | None = None
    """The table, a .csv file; the figure is written beside it. Default: LOG-forecast.csv in the current directory."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that define your own belief."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class InspectConfig:
    """Draw figures of a fitted model: forecasts, prediction errors, and the meaning of the state's coordinates."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp fit`."""
    horizon: int = 10
    """Length of the forecasts, in steps."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that define your own belief."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class TrainConfig:
    """Train an agent: explore with random actions, fit a filter, then act and update for a number of iterations."""

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = None
    """A Gymnasium id (Env-v0 or module:Env-v0). Can be given in the --config file instead."""
    method: str = "auto"
    """A name from `rpsp methods`, or your own method as package.module:attribute.
    Default: rpsi-sac with pink noise for continuous actions and at most a million steps, otherwise rpsi-ppo."""
    sensors: tyro.conf.OmitArgPrefixes[Sensors] = Sensors()
    seed: int = 0
    """Seed of all random numbers."""
    seeds: int = 1
    """Number of seeds to train, starting at --seed. Each run gets its own directory under --out."""
    iterations: int | None = None
    """Number of iterations. Default: the paper's value on its tasks, otherwise 100 (SAC: 300).
    Methods with shorter iterations get proportionally more."""
    steps: int | None = None
    """Number of environment steps, exploration included, instead of --iterations.
    The run ends after the iteration that reaches it."""
    minutes: float | None = None
    """Time limit of the run in minutes, start-up included. The run ends after the iteration that reaches it.
    The number of iterations then depends on the machine; each of them is reproducible."""
    samples: int | None = None
    """Minimum number of environment steps per iteration. Must be at least one episode.
    Default: the paper's value on its tasks, otherwise ten episodes, but 2000 to 10000 steps.
    PPO: at most 4000. SAC: at most 1000."""
    exploration_episodes: int | None = None
    """Number of random episodes before training. Default: the paper's value on its tasks, except for SAC."""
    exploration_samples: int | None = None
    """Minimum number of random steps before training. Excludes --exploration-episodes.
    Default: 20000 (SAC: 10000), but between 10 and 100 episodes, and at most a fifth of --steps.
    On the paper's tasks only SAC uses it."""
    max_episode_steps: int | None = None
    """Maximum length of an episode, in steps. Default: the paper's value on its tasks, else the environment's limit."""
    num_envs: int | None = None
    """Number of environments that are stepped in parallel. Default: --samples / --max-episode-steps, at most 100."""
    settings: tyro.conf.Suppress[Any] = None
    """The settings of the method, as `Method.settings` returns them."""
    chosen: tyro.conf.Suppress[str] = ""
    """Why this method was chosen, if none was given."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of the updates. Acting always runs on the CPU. auto: a GPU if there is one and it is faster."""
    threads: int | None = None
    """Number of threads that step the physics. Default: one for each core."""
    step_timeout: float = 25.0
    """Time limit of one environment step or reset, in seconds. 0: no limit."""
    out: str | None = None
    """Run directory. Default: runs/ENV__METHOD__SEED__TIME."""
    config: str | None = None
    """TOML file of these settings. Flags take precedence over the file."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    eval_every: int | None = None
    """Number of iterations between evaluations on new episodes. The best checkpoint is then the best evaluated one.
    Default: no evaluations."""
    eval_episodes: int = 10
    """Number of episodes of an evaluation."""
    stop_at_return: float | None = None
    """Stop when the mean return of the last ten iterations reaches this value.
    With --eval-every: when the return of an evaluation does. Default: never."""
    max_hours: float | None = None
    """Stop after the iteration in which this time in hours is reached, whatever the budget. Default: no limit."""
    logger: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Where metrics are logged in addition to metrics.jsonl. Each needs the extra of its name."""
    tensorboard: bool = False
    """Same as --logger tensorboard."""
    compilation_cache: bool = True
    """Cache compiled programs in ~/.cache/rpsp/xla for later commands."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class ResumeConfig:
    """Resume a run from its last undamaged checkpoint. Results are bit-for-bit those of an uninterrupted run."""

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`. Several directories of the same task and length are trained together."""
    iterations: int | None = None
    """Total number of iterations, including those already done. Default: the budget given when the run was started."""
    steps: int | None = None
    """Total number of environment steps instead, including those already done and the exploration."""
    minutes: float | None = None
    """Total time limit in minutes, including the time already spent."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    compilation_cache: bool = True
    """Cache compiled programs in ~/.cache/rpsp/xla for later commands."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a trained agent: play episodes and report their returns."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|FILE")]
    """A run directory of `rpsp train`, or a file of `rpsp pack`."""
    episodes: int = 10
    """Number of episodes."""
    checkpoint: str = "last"
    """Checkpoint to load: last, best, or a number of iterations."""
    stochastic: bool = False
    """Sample actions as in training instead of taking the most probable action."""
    seed: int = 0
    """Seed of the episodes. They differ from the training episodes for every value."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class WatchConfig:
    """Render a video of an episode of a trained agent, together with the predictions of its filter."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`."""
    checkpoint: str = "last"
    """Checkpoint to load: last, best, or a number of iterations."""
    seed: int = 0
    """Seed of the episode."""
    steps: int = 500
    """Maximum length of the video, in steps."""
    format: Literal["mp4", "gif"] = "mp4"
    """Format of the video."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class ExportConfig:
    """Export a trained policy for use without jax: its weights, and a script that needs only numpy."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`."""
    checkpoint: str = "last"
    """Checkpoint to load: last, best, or a number of iterations."""
    out: str | None = None
    """Output directory. Default: export/ in the run directory."""
    onnx: bool = False
    """Also write policy.onnx, a graph of one step (extra `onnx`).
    Not available for kernel-Bayes filters, which solve a linear system."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class SweepConfig:
    """Train all runs of a sweep. Interrupted runs are resumed, finished runs are skipped."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TOML file of tasks, methods, seeds and settings."""
    out: str | None = None
    """Directory of all runs. Default: runs/NAME, after the name of the file."""
    dry_run: bool = False
    """Only print the number of runs and the expected duration."""
    jobs: int | None = None
    """Number of runs to train at the same time. Default: one for each core."""
    backend: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a running Ray cluster (extra `ray`)."""
    address: str | None = None
    """Address of the Ray cluster, such as 10.0.0.1:6379. Default: the cluster that this machine belongs to."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class PaperConfig:
    """Run the paper's experiments, and draw figures and tables of the finished runs."""

    figures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")] = ()
    """Names of experiments, or all (the paper's own). Default: list all experiments, their progress and time left."""
    seeds: int = 10
    """Number of seeds of every method. The paper uses 10."""
    scale: float = 1.0
    """Fraction of the paper's iterations to run, marked on every figure. A later run with a larger value continues."""
    select: bool = False
    """Run all candidates of a curve (dimensions, step sizes, windows, units) and show the best, as the paper does."""
    protocol: Literal["equal", "authors"] = "equal"
    """equal: finite memory, GRUs and RPSP-Alt are trained by TRPO.
    authors: the authors' optimisers and task settings. --page always shows both."""
    draw: bool = False
    """Only draw, run nothing."""
    out: str = "runs/paper"
    """Directory of all runs, with figures/ and tables/."""
    results: str | None = None
    """Directory of small result files. Finished runs are added, figures are drawn from it, runs in it are skipped."""
    page: str | None = None
    """Write a Markdown page of all results, with a verdict on every claim, and its figures next to it.
    Includes runs that finished their iterations, or --scale of the paper's. Without FIGURE, nothing is run."""
    readme: str | None = None
    """With --page: also write the overview of the four tasks into this file,
    between <!-- glance --> and <!-- /glance -->."""
    list: bool = False
    """Only list the experiments."""
    dry_run: bool = False
    """Only print the number of runs and the expected duration."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of the updates. gpu: all runs of a method on a task are trained together."""
    jobs: int | None = None
    """Number of runs to train at the same time. Default: one for each core."""
    backend: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a running Ray cluster (extra `ray`)."""
    address: str | None = None
    """Address of the Ray cluster, such as 10.0.0.1:6379. Default: the cluster that this machine belongs to."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class MethodsConfig:
    """List the methods that can be trained."""

    json: bool = False
    """Print the results as one JSON object on the last line."""


@dataclass(frozen=True)
class DoctorConfig:
    """Check this machine: versions, devices, rendering and optional packages."""

    json: bool = False
    """Print the results as one JSON object on the last line."""


@dataclass(frozen=True)
class ReportConfig:
    """Write an HTML report of runs, finished or not: results, learning curves, failures, settings and versions.

    For a single run or a few runs, it also shows the predictions of the filter.
    """

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directories, directories that contain them at any depth (such as a sweep), or result files."""
    out: str | None = None
    """Path of the page. Default: report.html in the run directory, or in the directory that contains all runs."""
    watch: bool = False
    """Update the page until all runs have ended. The page reloads itself."""
    every: float = 5.0
    """Time between two updates with --watch, in seconds."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class DiagnoseConfig:
    """Read the metrics of a run, finished or not, and name the first thing that is wrong, with the command to try next."""

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directories of `rpsp train`."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class CompareConfig:
    """Compare methods on each task by tables, statistical tests and figures. Runs may be unfinished."""

    directories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directories, directories that contain them at any depth, or result files."""
    metric: Literal["auc", "final"] = "auc"
    """Metric of the tests. auc: area under the learning curve. final: mean return of the last ten iterations."""
    against: str | None = None
    """Method that the others are tested against. Default: the method with the largest area under the curve."""
    threshold: float | None = None
    """Report the number of environment steps until the mean return reaches this value."""
    smooth: int = 1
    """Number of iterations to average over before comparing with --threshold."""
    select: bool = False
    """Keep only the variant of each method with the largest area under the curve, as the paper does."""
    table: str | None = None
    """Write the comparison to this CSV file."""
    csv: str | None = None
    """Write every iteration of every run to this CSV file."""
    parquet: str | None = None
    """Write every iteration of every run to this Parquet file (extra `parquet`)."""
    figures: str | None = None
    """Draw figures (PNG and SVG) in this directory."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""
