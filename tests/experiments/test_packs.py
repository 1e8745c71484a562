"""A packed agent is the agent; a hostile file is refused; the hub gets and gives what was packed."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import cli, contents, trained
from hostile import DEEP, PICKLE, edited, put
from hub import TOKEN, Hub, hub_on_loopback

import rpsp
from rpsp.errors import FileFormatError, StorageError, UsageError
from rpsp.experiments import archives
from rpsp.experiments.packs import read_pack
from rpsp.experiments.sharing.packing import pack

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("packs") / "run", 3).directory


@pytest.fixture(scope="module")
def packed(run: Path) -> Path:
    return Path(pack(run, run.parent / "agent.rpsp", episodes=3, licence="cc-by-4.0")["file"])


def test_a_packed_agent_acts_as_that_of_its_run(run: Path, packed: Path) -> None:
    one, other = rpsp.load(run), rpsp.load(packed)
    assert (other.checkpoint, other.seed, other.spaces) == (3, 0, one.spaces)
    rng, states = np.random.default_rng(0), [None, None]
    for deterministic in (True, False, True):
        observation = rng.normal(size=one.spaces["observation"].shape)
        answers = [
            a.predict(observation, s, s is None, deterministic) for a, s in zip((one, other), states, strict=True)
        ]
        np.testing.assert_array_equal(answers[0][0], answers[1][0])  # one compiled program
        states = [state for _, state in answers]
    np.testing.assert_array_equal(one.evaluate(3).returns, other.evaluate(3).returns)
    assert rpsp.load(packed, 3).checkpoint == rpsp.load(packed, "best").checkpoint == 3
    with pytest.raises(UsageError, match="checkpoint: 2 is not 3, the only one in"):
        rpsp.load(packed, 2)


def test_commands_read_and_write_packs(run: Path, tmp_path: Path, capsys: Any) -> None:
    before = contents(run)
    assert cli("pack", str(run), "--episodes", "4", "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == "run.rpsp" and (tmp_path / "run.rpsp").stat().st_size == found["bytes"]
    assert cli("eval", "run.rpsp", "--episodes", "4", "--json", "--quiet") == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["mean_return"] == pytest.approx(found["evaluation"]["mean"])
    half = 3.182446 * np.std(evaluated["returns"], ddof=1) / 2  # t of three degrees of freedom, 95 %
    assert found["evaluation"]["high"] - found["evaluation"]["mean"] == pytest.approx(half, rel=1e-4, abs=1e-9)
    assert contents(run) == before
    assert cli("pack", str(run), "--quiet") == 5
    assert "run.rpsp: already exists" in capsys.readouterr().err
    for flag, message in (
        ("--episodes=1", "episodes: 1 is neither 0"),
        ("--licence=a\nb", "is not the name of a licence"),
    ):
        assert cli("pack", str(run), "other.rpsp", flag) == 2
        assert message in capsys.readouterr().err


def test_the_card_says_what_was_trained_and_nothing_of_the_machine(run: Path, packed: Path) -> None:
    content = read_pack(packed)
    for words in ("fm2", "tasks:Drift-v0", "95 % interval of the mean", "cc-by-4.0", "persistence", "seed 0"):
        assert words in content.card
    assert content.curve is not None and content.curve.startswith(b"\x89PNG")
    assert content.config.out is None and str(run.parent).encode() not in packed.read_bytes()
    front = content.card.split("---")[1]
    assert 'license: "cc-by-4.0"' in front and "value: " in front
    bare = pack(run, run.parent / "bare.rpsp", episodes=0)
    assert "evaluation" not in bare and "not evaluated" in read_pack(Path(bare["file"])).card


def test_the_same_contents_are_the_same_bytes(run: Path, packed: Path) -> None:
    again = pack(run, packed.with_name("agent2.rpsp"), episodes=3, licence="cc-by-4.0")
    one, other = (zipfile.ZipFile(path).read("agent.safetensors") for path in (packed, Path(again["file"])))
    assert one == other
    with pytest.raises(StorageError, match="already exists"):
        pack(run, packed, episodes=0)


# ---------------------------------------------------------------------------------------------------------------------
# Hostile files
# ---------------------------------------------------------------------------------------------------------------------


def entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "manifest.json"}


def zipped(files: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def changed(name: str, data: bytes | Callable[[bytes], bytes]) -> Callable[[bytes, Path], None]:
    """An archive of ours with another entry, and the checksum that belongs to it."""

    def write(whole: bytes, path: Path) -> None:
        files = entries(whole)
        files[name] = data if isinstance(data, bytes) else data(files[name])
        archives.write_archive(path, files, 1)

    return write


def raw(change: Callable[[bytes], bytes]) -> Callable[[bytes, Path], None]:
    return lambda whole, path: path.write_bytes(change(whole)) and None


def without_manifest(whole: bytes) -> bytes:
    return zipped(entries(whole))


def repeated(whole: bytes) -> bytes:
    buffer = io.BytesIO(whole)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("README.md", "another")
    return buffer.getvalue()


def flipped(whole: bytes) -> bytes:
    at = len(whole) // 2
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def inconsistent(agent: bytes) -> bytes:
    """Weights of another shape, with the checksum that belongs to them."""

    def change(header: Any, arrays: dict[str, np.ndarray]) -> None:
        name = next(name for name in arrays if name.endswith("weight"))
        arrays[name] = np.zeros((3, 7), np.float32)

    return edited(agent, change)


def unknown_class(agent: bytes) -> bytes:
    return edited(agent, lambda header, arrays: put(header, "tree/tuple/0/class", "Popen"))


def with_setting(name: str, value: Any) -> Callable[[bytes], bytes]:
    return lambda config: json.dumps({**json.loads(config), name: value}).encode()


HOSTILE = {
    "no zip": raw(lambda whole: b"hello"),
    "a pickle": raw(lambda whole: PICKLE),
    "a pickle as agent": changed("agent.safetensors", PICKLE),
    "cut": raw(lambda whole: whole[: len(whole) // 2]),
    "a bit flipped": raw(flipped),
    "a comment at the end": raw(lambda whole: whole[:-2] + struct.pack("<H", 5) + b"hello"),
    "no manifest": raw(without_manifest),
    "deflated": raw(lambda whole: zipped({**entries(whole), "manifest.json": b" " * 10**6}, zipfile.ZIP_DEFLATED)),
    "another path": changed("../../escaped", b"x"),
    "a program": changed("run.py", b"import os"),
    "twice": raw(repeated),
    "too many entries": raw(lambda whole: zipped({str(i): b"" for i in range(2000)})),
    "deep JSON": changed("spaces.json", DEEP.encode()),
    "no object": changed("facts.json", b"[]"),
    "no spaces": changed("spaces.json", b"{}"),
    "other shapes": changed("agent.safetensors", inconsistent),
    "another class": changed("agent.safetensors", unknown_class),
    "another method": changed("config.json", with_setting("method", "no-such")),
    "no number of environments": changed("config.json", with_setting("num_envs", "many")),
    "text that is none": changed("README.md", b"\xff\xfe"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence(what: str, packed: Path, tmp_path: Path) -> None:
    HOSTILE[what](packed.read_bytes(), path := tmp_path / "hostile.rpsp")
    with pytest.raises(FileFormatError) as caught:
        rpsp.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hostile.rpsp"]


def test_a_pack_cannot_make_rpsp_import_a_module(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("open('imported', 'w')")
    changed("config.json", with_setting("env", "evil:Task-v0"))(packed.read_bytes(), path := tmp_path / "evil.rpsp")
    with pytest.raises(UsageError, match="names 'evil', which is not imported without permission"):
        rpsp.load(path)
    assert not (tmp_path / "imported").exists()


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.rpsp").open("wb") as file:
        file.truncate(archives.MAX_SIZE + 1)
    with pytest.raises(FileFormatError, match="is not an rpsp file; not read"):
        rpsp.load(tmp_path / "large.rpsp")


# ---------------------------------------------------------------------------------------------------------------------
# The hub
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    with hub_on_loopback() as server:
        yield server


def on_hub(hub: Hub, tmp_path: Path, *arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Run a command whose hub is the stand-in. The client reads its settings when it is imported: hence a process."""
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    env |= {"PYTHONPATH": ":".join(filter(None, sys.path)), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "rpsp", *arguments, "--plugin=tasks"] if arguments[0] == "eval" else None
    command = command or [sys.executable, "-c", f"import tasks; from rpsp.cli import main; main({list(arguments)!r})"]
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, encoding="utf8", timeout=120)


@pytest.mark.slow
def test_what_is_pushed_can_be_pulled(hub: Hub, packed: Path, tmp_path: Path) -> None:
    done = on_hub(hub, tmp_path, "push", str(packed), "me/walker", "--private")
    assert done.returncode == 0, done.stderr
    assert set(hub.files["me/walker"]) == {"agent.rpsp", "README.md", "curve.png"} and hub.private["me/walker"]
    assert b'rpsp.load("agent.rpsp")' in hub.files["me/walker"]["README.md"]
    done = on_hub(hub, tmp_path, "pull", "me/walker", "--json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "walker.rpsp").read_bytes() == packed.read_bytes()
    hub.files["me/walker"]["agent.rpsp"] = HOSTILE_BYTES
    done = on_hub(hub, tmp_path, "pull", "me/walker", "damaged.rpsp")
    assert done.returncode == 3 and not (tmp_path / "damaged.rpsp").exists(), done.stderr


HOSTILE_BYTES = zipped({"run.py": b"import os"})


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_sentence(hub: Hub, packed: Path, tmp_path: Path) -> None:
    done = on_hub(hub, tmp_path, "push", str(packed), "me/walker", token="hf_other")
    assert done.returncode == 1 and "rpsp: push: me/walker (" in done.stderr and "hf auth login" in done.stderr
    assert "Traceback" not in done.stderr and "hf_other" not in done.stderr
    done = on_hub(hub, tmp_path, "pull", "me/nobody")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr


def test_names_that_are_none_and_missing_extras_are_refused(packed: Path, monkeypatch: Any, capsys: Any) -> None:
    assert cli("push", str(packed), "no-user") == 2
    assert "repository: 'no-user' is not the name of a repository; give USER/NAME." in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert cli("pull", "me/walker") == 2
    assert "huggingface_hub is not installed; run `pip install rpsp[hub]`" in capsys.readouterr().err
