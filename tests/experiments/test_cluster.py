"""Sweeps on a real Ray cluster of two nodes that this test starts and stops; one of them is killed in mid-run."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import cli, contents, trained
from processes import PATH, TINY, checkpoints, metrics

from rpsp.errors import RpspError
from rpsp.experiments.cluster import Parcel, pack, unpack
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.sweeps import Sweep, prepare, standing

pytest.importorskip("ray", reason="the extra `ray` is not installed")

ITERATIONS = 150
FILE = f"""
tasks = ["tasks:Drift-v0"]
methods = ["fm2"]
seeds = 2
iterations = {ITERATIONS}
samples = {TINY["samples"]}
exploration_episodes = {TINY["exploration_episodes"]}
num_envs = {TINY["num_envs"]}
"""
IP = "127.0.0.2"  # Ray replaces 127.0.0.1 by an address that others could reach


def compiled(folder: Path) -> dict[str, str]:
    """Let processes share what they compile, as a user may on nodes."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


class Node:
    """A node of a Ray cluster, in a process group, a working directory and a temporary directory of its own."""

    def __init__(self, folder: Path, *arguments: str):
        self.folder = folder
        folder.mkdir()
        command = [Path(sys.executable).with_name("ray"), "start", f"--node-ip-address={IP}", "--num-cpus=1", "--block"]
        command += ["--object-store-memory=100000000", "--disable-usage-stats", *arguments]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | compiled(folder.parent) | {"PYTHONPATH": PATH, "TMPDIR": str(folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def at_work(self) -> bool:
        """Whether a run has come to a checkpoint here."""
        return any(self.folder.glob("rpsp-run-*/run/checkpoints/0*"))

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[str, Node, Node]]:
    """The cluster's address and its two nodes. Only who has the token may use it."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with closing(socket.socket()) as free:
        free.bind((IP, 0))
        port = free.getsockname()[1]
    # A socket's path may not be long, and pytest's directories are.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:
        head = Node(tmp_path / "head", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}")
        other = None
        try:
            wait_for(lambda: "Ray runtime started" in (head.folder / "log").read_text(encoding="utf-8"))
            other = Node(tmp_path / "other", f"--address={IP}:{port}")
            wait_for(lambda: "Ray runtime started" in (tmp_path / "other" / "log").read_text(encoding="utf-8"))
            yield f"{IP}:{port}", head, other
        finally:
            for node in (other, head):
                if node is not None:
                    node.stop()


def wait_for(condition: Any, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


DRIVER = """
from rpsp.experiments import cluster
cluster.EVERY = 0.0
from rpsp.cli import main
main()
"""


@pytest.mark.slow
def test_a_node_dies_and_its_run_goes_on_elsewhere(nodes: tuple[str, Node, Node], tmp_path: Path) -> None:
    address, _, other = nodes
    (tmp_path / "mine.toml").write_text(FILE, encoding="utf-8")
    jobs = prepare(Sweep.read(tmp_path / "mine.toml"), tmp_path / "out")
    command = ["sweep", "mine.toml", "--out", str(tmp_path / "out"), "--backend", "ray", "--address", address, "--json"]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        wait_for(lambda: driver.poll() is not None or all(standing(job).done > 10 for job in jobs))
        assert driver.poll() is None, driver.communicate()
        assert other.at_work() and not any(standing(job).finished for job in jobs)
        other.kill()
        before = {job.name: lines(job.directory) for job in jobs}
        printed, error = driver.communicate(timeout=120)
    finally:
        driver.kill()
    assert driver.returncode == 0 and "2 cores" in printed, error
    assert json.loads(printed.splitlines()[-1])["finished"] == 2
    for job in jobs:
        whole = trained(tmp_path / f"alone{job.config.seed}", ITERATIONS, seed=job.config.seed)
        assert metrics(job.directory) == metrics(whole.directory)
        assert checkpoints(job.directory) == checkpoints(whole.directory)
        results = json.loads((job.directory / "results.json").read_text(encoding="utf-8"))
        assert results["final_return"] == whole.results["final_return"] and results["directory"] == str(job.directory)
        # Timings and all: what had been sent was not computed again.
        assert lines(job.directory)[: len(before[job.name]) - 2] == before[job.name][:-2]
    assert not any((tmp_path / "head").glob("rpsp-run-*")), "a node keeps nothing"


def lines(directory: Path) -> list[str]:
    return (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_parcel_brings_a_directory_to_where_the_sender_is(tmp_path: Path) -> None:
    here, there, sent = tmp_path / "here", tmp_path / "there", {}
    trained(here, 2)
    unpack(there, pack(here, sent))
    assert contents(there).keys() == {name.replace(str(here), str(there)) for name in contents(here)}
    before = checkpoints(there)
    assert cli("resume", str(here), "--iterations", "6", "--quiet") == 0
    parcel = pack(here, sent)
    assert not before.keys() & parcel.files.keys() and "versions.json" not in parcel.files, "what was sent is not again"
    half = {name: data for name, data in parcel.files.items() if name != "checkpoints/000005/manifest.json"}
    unpack(there, parcel._replace(files=half))
    assert RunDirectory(there).numbers() == [n for n in RunDirectory(here).numbers() if n != 5]
    unpack(there, parcel)
    assert checkpoints(there) == checkpoints(here) and metrics(there) == metrics(here)
    assert pack(here, sent).files == {}


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray notes the cluster of this machine
    (tmp_path / "mine.toml").write_text('tasks = ["tasks:Drift-v0"]\nmethods = ["fm2"]\n', encoding="utf-8")
    for flags, words in (([], "on this machine"), (["--address", f"{IP}:1"], f"at '{IP}:1'")):
        assert cli("sweep", "mine.toml", "--backend", "ray", *flags) == 2
        error = capsys.readouterr().err
        assert f"address: no Ray cluster answers {words}" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("../stolen", "checkpoints/../../stolen", "/tmp/stolen"):
        with pytest.raises(RpspError, match="outside"):
            unpack(tmp_path / "run", Parcel({"metrics.jsonl": b"", name: b"x"}, []))
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and not (tmp_path / "stolen").exists()
