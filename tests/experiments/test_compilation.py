"""The persistent compilation cache: it is used, changes no result, stays bounded, and leaves other settings alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rpsp
from rpsp.cli import main
from rpsp.experiments import compilation
from rpsp.experiments.compilation import cache_directory, compilation_cached
from rpsp.experiments.config import TrainConfig


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, with the cache on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(compilation.VARIABLE)
    return tmp_path / "home"


@pytest.fixture
def events() -> Iterator[list[str]]:
    """What jax says about its cache: hits and misses."""
    heard: list[str] = []

    def listen(event: str, **_: Any) -> None:
        heard.append(event.rpartition("/")[2])

    jax.monitoring.register_event_listener(listen)
    yield heard
    jax.monitoring.unregister_event_listener(listen)


def compiled(number: float) -> float:
    """Compile a program anew and run it."""
    return float(jax.jit(lambda x: x * number + 1)(2.0))


def entries(home: Path) -> list[Path]:
    return sorted(home.rglob("*-cache"))


def test_a_cached_program_gives_the_same_model(home: Path, tmp_path: Path, events: list[str], capfd: Any) -> None:
    rng = np.random.default_rng(0)
    episodes = [(rng.normal(size=(31, 1)).cumsum(axis=0), rng.normal(size=(30, 1))) for _ in range(6)]
    models = []
    for _ in range(2):
        jax.clear_caches()
        events.clear()
        model = rpsp.PredictiveStateModel(past=3, bumps=10, rounds=1).fit(episodes)
        hits, misses = (events.count(f"cache_{what}") for what in ("hits", "misses"))
        path = tmp_path / f"{len(models)}.safetensors"
        model.save(path)
        models.append(path.read_bytes())
        assert misses > 5 and hits < misses if len(models) == 1 else hits > 5 and misses == 0
    assert models[0] == models[1]
    assert len(entries(home)) > 5 and capfd.readouterr() == ("", "")
    assert jax.config.jax_compilation_cache_dir is None, "jax's settings are restored"


def test_it_can_be_turned_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compilation_cached(False), compilation_cached():  # the outer call decides
        assert compiled(3.25) == 7.5
    assert not entries(home)
    monkeypatch.setenv(compilation.VARIABLE, "OFF")
    with compilation_cached():
        compiled(3.25)
    assert not entries(home)
    monkeypatch.delenv(compilation.VARIABLE)
    with compilation_cached():
        compiled(3.25)
    assert entries(home)


def test_the_flag_turns_it_off(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Asked(Exception):
        pass

    def ask(wanted: bool) -> None:
        asked.append(wanted)
        raise Asked

    monkeypatch.setattr("rpsp.experiments.runs.compilation_cached", ask)
    for flags in ([], ["--no-compilation-cache"]):
        with pytest.raises(Asked):
            main(["train", "CartPole-v1", "--out", str(tmp_path / "run"), *flags])
    assert asked == [True, False] and TrainConfig.compilation_cache


def test_a_users_own_cache_is_respected(home: Path, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    try:
        with compilation_cached():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    assert not home.exists()


def test_a_directory_that_cannot_be_used_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = cache_directory()
    assert directory is not None and directory.stat().st_mode & 0o077 == 0
    directory.chmod(0o777)  # anybody could put programs there
    assert cache_directory() is None
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # no directory can be made below a file
    with compilation_cached():
        assert compiled(4.5) == 10.0 and jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not allowed by the XDG specification
    monkeypatch.setattr(Path, "home", lambda: home)
    directory = cache_directory()
    assert directory is not None and directory.is_relative_to(home / ".cache")


def test_machines_of_another_kind_have_a_directory_of_their_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = "processor : 0\nmodel name : Some CPU\nflags : sse avx\n"
    kinds = [info, info + info.replace(": 0", ": 1"), info.replace("avx", "avx avx2"), info.replace("Some", "Other")]
    found = []
    for kind in kinds:
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, kind=kind: kind)
        found.append(cache_directory())
    assert found[0] == found[1] and len(set(found)) == 3


def test_it_is_bounded_and_keeps_what_was_used_last(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = cache_directory()
    assert directory is not None
    for age in range(5):
        (directory / f"{age}-cache").write_bytes(bytes(1000))
        os.utime(directory / f"{age}-cache", (1e9 - age, 1e9 - age))
    monkeypatch.setattr(compilation, "MAX_BYTES", 2500)
    with compilation_cached():
        pass
    assert [path.name for path in entries(home)] == ["0-cache", "1-cache"]


def test_a_damaged_entry_is_compiled_again_in_silence(home: Path, recwarn: pytest.WarningsRecorder) -> None:
    with compilation_cached():
        compiled(5.5)
    for path in entries(home):
        path.write_bytes(path.read_bytes()[:20])
    jax.clear_caches()
    with compilation_cached():
        assert compiled(5.5) == 12.0
    assert not recwarn.list
