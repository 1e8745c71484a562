"""Fixtures that several tests of the lab share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tasks import Drift


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory, an environment that counts from 0, and the signal handlers as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BREAK_AFTER", raising=False)
    monkeypatch.setattr(Drift, "steps", 0)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory in which processes share compiled programs."""
    return tmp_path_factory.mktemp("compiled")
