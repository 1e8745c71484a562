"""Files as a stranger would write them to run code, to fill the memory or to get out of a directory; and who opens them.

python hostile.py DIRECTORY     writes and opens them all; prints what came of each, and the memory that it took
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
import struct
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

import rpsp
from rpsp.errors import RpspError
from rpsp.experiments.agents import load as load_agent
from rpsp.experiments.checkpoint_files import COUNTERS, _manifest
from rpsp.experiments.checkpoints import FORMAT, digest
from rpsp.experiments.resolve import read_config
from rpsp.experiments.results import read_result
from rpsp.experiments.run_directory import RunDirectory

MARKER = "somebody was here"
TOUCH = f"open({MARKER!r}, 'w').close()"


class Payload:
    """What a pickle runs when it is loaded."""

    def __reduce__(self) -> Any:
        return exec, (TOUCH,)


PICKLE = pickle.dumps(Payload())
DEEP = "[" * 100_000


# ---------------------------------------------------------------------------------------------------------------------
# Safetensors
# ---------------------------------------------------------------------------------------------------------------------


def raw(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def tensors(header: dict[str, Any], body: bytes) -> bytes:
    return raw(json.dumps(header).encode(), body)


def edited(data: bytes, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]) -> bytes:
    """A file of ours with another description, and the checksum that belongs to it."""
    arrays = load(data)
    header = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["rpsp"])
    replaced = change(header, arrays)
    header["sha256"] = digest(arrays)
    return save(arrays, {"rpsp": json.dumps(header if replaced is None else replaced)})


def put(where: Any, path: str, value: Any) -> None:
    """Set what is at a path like "tree/tuple/0/class"."""
    *way, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    for part in way:
        where = where[part]
    where[last] = value


def setting(path: str, value: Any) -> Callable[[bytes], bytes]:
    return lambda data: edited(data, lambda header, arrays: put(header, path, value))


def reshaped(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        arrays[name] = np.ascontiguousarray(array.T[:-1]) if array.ndim == 2 else array


def repeated(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    arrays["much"] = np.zeros(1 << 20)
    header["tree"] = {"tuple": [{"array": "much", "jax": True}] * 100_000}


def described_deep(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    return DEEP


def nested_tuples(data: bytes) -> bytes:
    text = '{"tuple":[' * 50_000 + '{"value":1}' + "]}" * 50_000
    header = f'{{"format": {FORMAT}, "tree": {text}, "extra": {{}}, "sha256": "{digest({})}"}}'
    return raw(json.dumps({"__metadata__": {"rpsp": header}}).encode())


META = {"rpsp": json.dumps({"format": FORMAT, "tree": {"array": "x", "jax": True}, "extra": {}, "sha256": ""})}

MODELS: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda data: PICKLE,
    "a pickle in a zip": lambda data: zipped({"archive/data.pkl": PICKLE}),
    "a pickle in an .npy": lambda data: npy(np.array([Payload()], object)),
    "nothing": lambda data: b"",
    "a header of 2^64 - 1 bytes": lambda data: b"\xff" * 64,
    "a header of a terabyte": lambda data: raw(b"{}", length=1 << 40),
    "a header of 20 megabytes": lambda data: raw(b" " * (20 << 20) + b"{}"),
    "an array of 10^15 numbers": lambda data: tensors(
        {"__metadata__": META, "x": {"dtype": "F64", "shape": [10**15], "data_offsets": [0, 8 * 10**15]}}, b""
    ),
    "an array that is smaller than it says": lambda data: tensors(
        {"__metadata__": META, "x": {"dtype": "F64", "shape": [10**9], "data_offsets": [0, 8]}}, bytes(8)
    ),
    "a shape whose product overflows": lambda data: tensors(
        {"__metadata__": META, "x": {"dtype": "F64", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}, b""
    ),
    "arrays that overlap": lambda data: tensors(
        {
            "__metadata__": META,
            "x": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]},
            "y": {"dtype": "F64", "shape": [2], "data_offsets": [8, 24]},
        },
        bytes(24),
    ),
    "a header nested without end": lambda data: raw(DEEP.encode()),
    "a description nested without end": lambda data: edited(data, described_deep),
    "tuples nested 50 000 deep": nested_tuples,
    "one array a hundred thousand times": lambda data: edited(data, repeated),
    "a class of Python's": setting("tree/tuple/0/class", "Popen"),
    "a class by a path": setting("tree/tuple/0/class", "../../os.system"),
    "a function for a class": setting("tree/tuple/0/class", "__import__"),
    "an array by a path": setting("tree/tuple/0", {"array": "../../../etc/passwd", "jax": False}),
    "fields that do not exist": setting("tree/tuple/0/fields", {"__class__": {"value": 1}}),
    "a value that is none": setting("tree/tuple/0", {"value": {"a": 1}}),
    "a list for a tree": setting("tree", [1, 2, 3]),
    "no tree": setting("tree", None),
    "arrays that do not fit": lambda data: edited(data, reshaped),
    "a text for a filter": setting("tree/tuple/0", {"value": "filter"}),
    "a kind that is a module": setting("extra/kind", "stranger:row"),
    "a kind that is a list": setting("extra/kind", [["os"]]),
    "settings that do not exist": setting("extra/settings", {"__init__": 1}),
    "errors that are no table": setting("extra/errors", {"gru": "nan"}),
    "a format that is not a number": setting("format", float("nan")),
    "no description of its own": setting("extra", 3),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Recordings
# ---------------------------------------------------------------------------------------------------------------------


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def declared(shape: str, descr: str = "'<f8'") -> bytes:
    """The header of an .npy file and hardly anything after it."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(64)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def recording(**parts: Any) -> bytes:
    """A recording of two episodes, parts of it as they are given."""
    whole = {"observations": np.zeros((12, 2)), "actions": np.zeros((10, 1)), "lengths": np.array([5, 5])} | parts
    return zipped({f"{n}.npy": part if isinstance(part, bytes) else npy(part) for n, part in whole.items()})


RECORDINGS: dict[str, Callable[[], bytes]] = {
    "a pickle": lambda: PICKLE,
    "arrays of objects": lambda: recording(observations=np.array([Payload()] * 12, object)),
    "lengths of objects": lambda: recording(lengths=np.array([Payload()] * 2, object)),
    "a zip bomb": lambda: recording(observations=bytes(80 << 20)),
    "a zip bomb of many parts": lambda: zipped({f"{i}.npy": bytes(20 << 20) for i in range(5)}),
    "10^15 numbers": lambda: recording(observations=declared(f"({10**15}, 2)")),
    "a shape with code in it": lambda: recording(observations=declared(f"({TOUCH},)")),
    "a type with code in it": lambda: recording(observations=declared("(12, 2)", f"__import__('os') or {TOUCH}")),
    "a type of two gigabytes": lambda: recording(observations=declared("(12,)", "'V2147483647'")),
    "lengths that wrap around": lambda: recording(lengths=np.array([2**63, 2**63 - 1, 11, 0], np.uint64)),
    "lengths of fractions": lambda: recording(lengths=np.array([5.0, 5.0])),
    "a single number": lambda: recording(observations=np.array(3.0)),
    "texts": lambda: recording(observations=np.full((12, 2), "x")),
    "names that lead elsewhere": lambda: zipped({"../../evil.npy": npy(np.zeros(3)), "/etc/evil": b""}),
    "an .npy": lambda: npy(np.zeros((12, 2))),
    "an unknown compression": lambda: recording().replace(b"\x08\x00", b"\x63\x00"),
}


# ---------------------------------------------------------------------------------------------------------------------
# Run directories and result files
# ---------------------------------------------------------------------------------------------------------------------


def checkpoint(run: Path, state: Callable[[bytes], bytes]) -> None:
    """Put another state into the only checkpoint, with the manifest that belongs to it."""
    (place,) = (run / "checkpoints").iterdir()
    data = state((place / "state.safetensors").read_bytes())
    counters = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    (place / "state.safetensors").write_bytes(data)
    (place / "manifest.json").write_bytes(_manifest(data, counters))


STATES: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda data: PICKLE,
    "an iteration that is no number": setting("extra/iteration", float("nan")),
    "an iteration before the first": setting("extra/iteration", -1),
    "a giant iteration": setting("extra/iteration", 10**400),
    "samples in words": setting("extra/samples", "many"),
    "no counters": setting("extra", {}),
    "an agent alone": lambda data: edited(data, lambda h, a: put(h, "tree", h["tree"]["tuple"][0])),
    "a text for an agent": setting("tree/tuple/0", {"value": "agent"}),
    "a state of 10^12 numbers": setting("tree/tuple/0/fields/filter/fields/window", {"value": 10**12}),
    "a state of -1 numbers": setting("tree/tuple/0/fields/filter/fields/window", {"value": -1}),
    "a state of a text": setting("tree/tuple/0/fields/filter/fields/window", {"value": "2"}),
    "a policy that does not fit": lambda data: edited(data, reshaped),
    "a text for its episodes": setting("tree/tuple/2", {"value": "recent"}),
    "texts for its memory": setting("tree/tuple/3", {"tuple": [{"value": "momentum"}]}),
    "one array a hundred thousand times": lambda data: edited(data, repeated),
}

CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a plugin": lambda c: c | {"plugin": "stranger"},
    "a method in a module": lambda c: c | {"method": "stranger:row"},
    "an environment in a module": lambda c: c | {"env": "stranger:Env-v0"},
    "a plugin among the sensors": lambda c: c | {"sensors": c["sensors"] | {"plugin": "stranger"}},
    "a method among the settings": lambda c: c | {"settings": c["settings"] | {"method": "stranger:row"}},
    "an environment among the settings": lambda c: c | {"settings": c["settings"] | {"env": "stranger:Env-v0"}},
    "a list": lambda c: [c],
    "numbers that are none": lambda c: c | {"samples": float("nan"), "iterations": float("inf")},
    "a giant number": lambda c: c | {"discount": 10**400, "settings": c["settings"] | {"discount": 10**400}},
}

RESULTS: dict[str, Callable[[], str]] = {
    "nested without end": lambda: DEEP,
    "a list": lambda: "[1, 2]",
    "numbers that are none": lambda: json.dumps(RESULT | {"settings": SETTINGS | {"iterations": float("nan")}}),
    "giant numbers": lambda: json.dumps(RESULT | {"seconds": 10**400}),
    "curves of texts": lambda: json.dumps(RESULT | {"returns": ["a", "b"]}),
    "a method that is a table": lambda: json.dumps(RESULT | {"settings": SETTINGS | {"method": {"a": 1}}}),
}
SETTINGS = {"env": "CartPole-v1", "method": "fm2", "seed": 0, "iterations": 2}
RESULT = {
    "settings": SETTINGS, "versions": {}, "failure": "", "seconds": 1.0, "samples": [1, 1], "returns": [1, 2],
    "prediction_errors": [1, 1], "persistence_errors": [1, 1],
}  # fmt: skip


def sparse(path: Path) -> None:
    """Five gigabytes that take no room on the disk."""
    with path.open("wb") as file:
        file.truncate(5 << 30)


def attacks(model: bytes, run: Path) -> dict[str, Callable[[Path], Any]]:
    """Every hostile file by its name: what writes it under a directory, and opens it."""
    found: dict[str, Callable[[Path], Any]] = {}

    def file(kind: str, name: str, data: Callable[[], bytes], opened: Callable[[Path], Any], suffix: str) -> None:
        def attack(where: Path) -> Any:
            (where / f"file{suffix}").write_bytes(data())
            return opened(where / f"file{suffix}")

        found[f"{kind}: {name}"] = attack

    def directory(kind: str, name: str, change: Callable[[Path], Any], opened: Callable[[Path], Any]) -> None:
        def attack(where: Path) -> Any:
            shutil.copytree(run, where / "run")
            change(where / "run")
            return opened(where / "run")

        found[f"{kind}: {name}"] = attack

    for name, make in MODELS.items():
        file("model", name, lambda make=make: make(model), rpsp.PredictiveStateModel.load, ".safetensors")
    for name, make in RECORDINGS.items():
        file("recording", name, make, rpsp.load_episodes, ".npz")
    for name, make in RESULTS.items():
        file("result", name, lambda make=make: make().encode(), read_result, ".result.json")
    for name, make in STATES.items():
        directory("checkpoint", name, lambda run, make=make: checkpoint(run, make), load_agent)
    for name, change in CONFIGS.items():

        def configure(run: Path, change: Callable[[Any], Any] = change) -> None:
            content = json.loads((run / "config.json").read_text(encoding="utf-8"))
            (run / "config.json").write_text(json.dumps(change(content)), encoding="utf-8")

        directory("config", name, configure, read_config)
    (place,) = (run / "checkpoints").iterdir()
    inside = f"checkpoints/{place.name}"
    for name in ("config.json", "spaces.json", f"{inside}/state.safetensors", f"{inside}/manifest.json"):
        directory("sparse", name, lambda run, name=name: sparse(run / name), load_agent)
        directory("deep", name, lambda run, name=name: (run / name).write_text(DEEP, encoding="utf-8"), load_agent)
        directory("device", name, lambda run, name=name: zeros(run / name), load_agent)
    file("sparse", "recording", lambda: b"", lambda path: (sparse(path), rpsp.load_episodes(path)), ".npz")
    return found


def zeros(path: Path) -> None:
    """A link to a device that never ends."""
    path.unlink()
    path.symlink_to("/dev/zero")


def main() -> None:
    where = Path(sys.argv[1])
    os.chdir(where)
    sys.path.append(str(where))
    Path("stranger.py").write_text(TOUCH + "\n", encoding="utf-8")
    rng = np.random.default_rng(0)
    episodes = [(rng.normal(size=(31, 2)), rng.normal(size=(30, 1))) for _ in range(6)]
    rpsp.PredictiveStateModel("gru", units=4, epochs=0).fit(episodes).save("model.safetensors")
    tiny = {"samples": 60, "exploration_episodes": 4, "num_envs": 3, "max_episode_steps": 20}
    run = rpsp.train("CartPole-v1", "fm2", out="whole", iterations=0, verbose=False, **tiny).directory
    assert len(RunDirectory(run).numbers()) == 1 and set(COUNTERS) <= set(
        json.loads(next(run.glob("c*/*/m*")).read_text(encoding="utf-8"))
    )
    outcomes = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i, (name, attack) in enumerate(attacks(Path("model.safetensors").read_bytes(), run).items()):
        Path(str(i)).mkdir()
        try:
            outcomes[name] = f"accepted: {attack(Path(str(i)))}"
        except RpspError as error:
            outcomes[name] = [error.exit_code, str(error)]
        except BaseException:
            outcomes[name] = traceback.format_exc()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"outcomes": outcomes, "megabytes": grown, "code ran": Path(MARKER).exists()}))


if __name__ == "__main__":
    main()
