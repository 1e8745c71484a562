"""Row 7: what a user may mistype or mangle. Exit 2 or 3, a line or a few that name the field and the value, no traceback."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from amounts import amount, report
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import TINY

import rpsp
from rpsp.cli import main
from rpsp.experiments.configure import setting_names
from rpsp.experiments.resolve import AMOUNTS

WHOLE = "seed", "seeds", "iterations", "samples", "num-envs", "threads", "window", "units", "passes", "past", "future"
REAL = "discount", "max-kl", "damping", "learning-rate", "obs-noise", "dropout", "clip", "gae", "refit-kl"
CHOICES = {
    "--device": ("train", "CartPole-v1", "auto"),
    "--kind": ("fit", "CartPole-v1", "gru"),
    "--metric": ("compare", "RUN", "auc"),
    "--format": ("watch", "RUN", "gif"),
    "--backend": ("sweep", "FILE", "local"),
}
BAD_WHOLE = "many", "1.5", "", "0x10", "1e3", "ten", "nan", "--", "１é", "None1", "true", "[3]", "3,4", "9" * 5000
BAD_REAL = "much", "", "1,5", "0.1.2", "true", "1e", "--", "½½", "[]", "nan", "inf", "-inf"
TOML_VALUES = st.sampled_from(["[[1], [2]]", "{a = 1}", '["x"]', "1979-05-27", "[nan]", "{}", "[{}]"])


class Mistake(NamedTuple):
    """A command with something wrong in it, what must be in a file first, and what must be said."""

    arguments: list[str]
    files: dict[str, bytes]
    words: list[str]


@st.composite
def flags(draw: Any) -> Mistake:
    """A flag that is none, or one with a value that it cannot have."""
    kind = draw(st.sampled_from(["unknown", "whole", "real", "choice", "word"]))
    if kind == "unknown":
        flag = "--" + draw(st.from_regex(r"[a-z]{3,12}(-[a-z]{2,8})?z", fullmatch=True))
        return Mistake([draw(st.sampled_from(["train", "fit", "eval"])), "CartPole-v1", flag, "3"], {}, [flag])
    if kind == "word":
        command = draw(st.from_regex(r"[a-z]{3,10}zz", fullmatch=True))
        return Mistake([command], {}, [command, "train"])
    if kind == "choice":
        flag = draw(st.sampled_from(list(CHOICES)))
        command, target, allowed = CHOICES[flag]
        value = draw(st.from_regex(r"[a-z]{2,12}q", fullmatch=True))
        return Mistake([command, target, flag, value], {}, [flag, value, allowed])
    names, bad = (WHOLE, BAD_WHOLE) if kind == "whole" else (REAL, BAD_REAL)
    name, value = draw(st.sampled_from(names)), draw(st.sampled_from(bad))
    return Mistake(["train", "CartPole-v1", f"--{name}={value}", "--method", "fm2"], {}, [name.split("-")[0]])


@st.composite
def settings_files(draw: Any) -> Mistake:
    """A file of settings that is not TOML, names what does not exist, or gives what does a value of another type."""
    kind = draw(st.sampled_from(["rubbish", "unknown", "type"]))
    command = draw(st.sampled_from([["train", "--config", "mine.toml"], ["sweep", "mine.toml"]]))
    if kind == "rubbish":
        rubbish = b"\x00" + draw(st.binary(max_size=60))
        return Mistake(command, {"mine.toml": rubbish}, ["mine.toml", "not TOML"])
    name = draw(st.sampled_from(sorted(setting_names() - {"seeds", "json", "quiet", "out", "config"})))
    if kind == "unknown":
        name += "x"
    text = f"{name} = {draw(TOML_VALUES) if kind == 'type' else 3}\n"
    if command[0] == "sweep":
        text = f'tasks = ["CartPole-v1"]\nmethods = ["fm2"]\n{text}' if name not in ("env", "method") else text
    return Mistake(command, {"mine.toml": text.encode()}, ["mine.toml", name if command[0] == "train" else ""])


@st.composite
def run_directories(draw: Any) -> Mistake:
    """A run directory one of whose files is cut, replaced, or says something else."""
    command = draw(st.sampled_from(["resume", "eval", "export", "watch"]))
    file = draw(st.sampled_from(["config.json", "config.json", "spaces.json"]))
    if file == "spaces.json" and command in ("resume", "watch"):
        command = "eval"
    text = DONE[file]
    kind = draw(st.sampled_from(["cut", "rubbish", "missing", "type"]))
    if kind == "cut":
        data = text[: draw(st.integers(0, len(text) - 3))]
    elif kind == "rubbish":
        data = draw(st.sampled_from([b"null", b"3", b"[]", b'"x"', b"[" * 100_000, b"{", b"\xff\xfe"]) | st.binary())
    else:
        content = json.loads(text)
        required = (
            ["observation", "action"]
            if file == "spaces.json"
            else ["env", "method", "plugin", *AMOUNTS, "exploration_episodes"]
        )
        if kind == "missing":
            del content[draw(st.sampled_from(required))]
        else:
            keys = required if file == "spaces.json" else [k for k in content if k not in ("sensors", "settings")]
            content[draw(st.sampled_from(keys))] = draw(st.sampled_from([[], [{}], {"a": 1}, [[3]]]))
        data = json.dumps(content).encode()
    return Mistake([command, "run"], {f"run/{file}": data}, [f"run/{file}"])


@st.composite
def others(draw: Any) -> Mistake:
    """Recordings, result files and models that are none."""
    data = b"\x00" + draw(st.binary(max_size=300))
    kind = draw(st.sampled_from(["fit", "inspect", "compare", "report", "nowhere"]))
    if kind == "fit":
        return Mistake(["fit", "mine.npz"], {"mine.npz": data}, ["mine.npz"])
    if kind == "inspect":
        return Mistake(["inspect", "fitted"], {"fitted/model.safetensors": data}, ["model.safetensors"])
    if kind == "nowhere":
        command = draw(st.sampled_from(["resume", "eval", "watch", "export", "inspect", "compare", "report"]))
        return Mistake([command, "nowhere"], {}, ["nowhere"])
    return Mistake([kind, "mine.result.json"], {"mine.result.json": data}, ["mine.result.json"])


DONE: dict[str, bytes] = {}
"""The files of a run that is whole."""
seen: list[int] = []


@pytest.fixture(scope="module", autouse=True)
def _done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run to mangle, in the directory in which all commands are given."""
    where = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        rpsp.train("CartPole-v1", "fm2", out="run", iterations=1, verbose=False, max_episode_steps=20, **TINY)
        DONE.update({name: Path("run", name).read_bytes() for name in ("config.json", "spaces.json")})
        yield where
    report(7, f"{len(seen)} malformed configs, flags and files: exit 2 or 3, at most {max(seen)} line(s), no traceback")


@settings(max_examples=amount(40, 300))
@given(mistake=flags() | settings_files() | run_directories() | others())
def test_a_mistake_is_a_few_lines(mistake: Mistake) -> None:
    for name, data in mistake.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(data)
    try:
        with redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as exit:
            main(mistake.arguments)
    finally:
        for name in mistake.files:
            Path(name).unlink()
        for name, data in DONE.items():
            Path("run", name).write_bytes(data)
        shutil.rmtree("runs", ignore_errors=True)
    error = said.getvalue()
    assert exit.value.code in (2, 3), error
    lines = error.splitlines()
    assert 1 <= len(lines) <= 5 and "Traceback" not in error, error
    assert all(word.replace("-", "_") in error.replace("-", "_") for word in mistake.words), (mistake.words, error)
    seen.append(len(lines))
