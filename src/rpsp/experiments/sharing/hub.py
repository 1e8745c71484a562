"""Share packed agents on the Hugging Face hub: `rpsp push` and `rpsp pull` (extra `hub`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rpsp.data.files import write_bytes
from rpsp.errors import RpspError, StorageError, UsageError
from rpsp.experiments.archives import MAX_SIZE
from rpsp.experiments.files import Say
from rpsp.experiments.packs import CARD, CURVE, SUFFIX, Pack, read_pack

NAME = f"agent{SUFFIX}"
"""The name of the pack in a repository of the hub."""
REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


class HubError(RpspError):
    """The hub cannot be reached, or refuses a request."""


def push(file: Path, repository: str, *, private: bool = False, say: Say = lambda line: None) -> dict[str, Any]:
    """Upload a pack, its card and its curve to a repository of the hub. The repository is created if it does not exist.

    The key is that of `hf auth login` or of HF_TOKEN, the server that of HF_ENDPOINT.

    Args:
        file: a file that `rpsp pack` wrote. It is checked first.
        repository: USER/NAME.
        private: whether a new repository is private.
        say: called with messages.

    Returns:
        The repository, its address, and the commit.

    Raises:
        UsageError: if the extra is not installed, or the name of the repository is invalid.
        HubError: if the hub cannot be reached, or refuses.
        FileFormatError: if the file is damaged.
    """
    hub = _hub(repository)
    content = read_pack(file)
    files = {NAME: file.read_bytes(), CARD: _card(content)} | ({CURVE: content.curve} if content.curve else {})
    say(f"uploading {', '.join(files)} to {repository}")
    try:
        api = hub.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        operations = [hub.CommitOperationAdd(name, data) for name, data in files.items()]
        message = f"{content.facts.get('method')} on {content.facts.get('task')}"
        commit = api.create_commit(repository, operations, commit_message=message[:200])
    except Exception as error:  # of the client, and of the libraries that it uses
        raise _refused("push", repository, error) from error
    return {"repository": repository, "url": f"{api.endpoint}/{repository}", "commit": commit.oid}


def pull(
    repository: str, file: Path | None = None, revision: str | None = None, say: Say = lambda line: None
) -> dict[str, Any]:
    """Download a pack from a repository of the hub, and check it.

    Args:
        repository: USER/NAME.
        file: where it is written. Default: NAME.rpsp in the current directory.
        revision: a branch, a tag or a commit. Default: the newest.
        say: called with messages.

    Returns:
        The path of the file, and what its card says.

    Raises:
        UsageError: if the extra is not installed, or the name of the repository is invalid.
        HubError: if the hub cannot be reached, or has no such pack.
        FileFormatError: if the file is damaged, or no pack. It is not kept.
        StorageError: if the file exists already.
    """
    hub = _hub(repository)
    path = Path(repository.rpartition("/")[2] + SUFFIX) if file is None else file
    if path.exists():
        raise StorageError(f"{path}: already exists; choose another path or remove it.")
    say(f"downloading {NAME} from {repository}")
    try:
        address = hub.hf_hub_url(repository, NAME, revision=revision)
        if ((size := hub.get_hf_file_metadata(address).size) or 0) > MAX_SIZE:
            raise UsageError(
                f"repository: {NAME} in {repository} has {size} bytes, more than {MAX_SIZE}; not downloaded."
            )
        fetched = Path(hub.hf_hub_download(repository, NAME, revision=revision))
    except UsageError:
        raise
    except Exception as error:  # of the client, and of the libraries that it uses
        raise _refused("pull", repository, error) from error
    facts = read_pack(fetched).facts
    write_bytes(path, fetched.read_bytes())
    return {**facts, "repository": repository, "file": str(path)}


def _hub(repository: str) -> Any:
    """Return the client, or raise `UsageError`."""
    if not REPOSITORY.fullmatch(repository):
        raise UsageError(f"repository: {repository!r} is not the name of a repository; give USER/NAME.")
    try:
        import huggingface_hub  # optional extra # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("hub: huggingface_hub is not installed; run `pip install rpsp[hub]`.") from error
    return huggingface_hub


def _refused(what: str, repository: str, error: Exception) -> HubError:
    why = " ".join(str(error).split())[:300] or type(error).__name__
    return HubError(
        f"{what}: {repository} ({type(error).__name__}: {why}); check its name, the connection, and `hf auth login`."
    )


def _card(content: Pack) -> bytes:
    """Return the card, with the name that the pack has on the hub."""
    name = str(content.facts.get("file", NAME))
    return content.card.replace(f'"{name}"', f'"{NAME}"').encode()
