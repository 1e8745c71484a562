"""Settings of `rpsp pack`, `push`, `pull` and `serve`. `rpsp.experiments.config` has those of other commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class PackConfig:
    """Pack the agent of a run into one file with a model card, to share it. `rpsp.load` and `rpsp eval` read it."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp train`."""
    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    """The file to write. Default: the name of the run directory with the suffix .rpsp, in the current directory."""
    checkpoint: str = "last"
    """Checkpoint to pack: last, best, or a number of iterations."""
    episodes: int = 20
    """Number of new episodes for the return in the card. 0: the agent is not evaluated."""
    licence: str = "unspecified"
    """The licence under which the agent is shared, such as cc-by-4.0."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class PushConfig:
    """Upload a packed agent and its model card to the Hugging Face hub (extra `hub`). Log in with `hf auth login` first."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A file of `rpsp pack`."""
    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]
    """The repository. It is created if it does not exist."""
    private: bool = False
    """Make a new repository private."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class PullConfig:
    """Download a packed agent from the Hugging Face hub (extra `hub`), and check it."""

    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]
    """The repository."""
    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    """The file to write. Default: NAME.rpsp in the current directory."""
    revision: str | None = None
    """A branch, a tag or a commit. Default: the newest."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""


@dataclass(frozen=True)
class ServeConfig:
    """Serve a trained agent by HTTP and WebSocket, for controllers that are not Python. Ends with Ctrl-C.

    At an address that other machines can reach, requests need a token: the value of RPSP_TOKEN, or a random one that is
    printed. The service does not encrypt; put it behind a proxy that does.
    """

    agent: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|DIR")]
    """A file of `rpsp pack`, or a run directory of `rpsp train`."""
    checkpoint: str = "last"
    """Checkpoint to load: last, best, or a number of iterations."""
    host: str = "127.0.0.1"
    """Address to listen at. Default: only this machine can connect."""
    port: int = 8765
    """Port to listen at. 0: any free one."""
    sessions: int = 256
    """Maximum number of sessions at the same time."""
    rate: float = 2000.0
    """Maximum number of requests of a connection per second."""
    idle: float = 600.0
    """Seconds after which an idle connection is closed, and an unused session gives way to a new one."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or classes that checkpoints contain."""
    json: bool = False
    """Print the address, and the token if it was made, as one JSON object when the service is ready."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""
