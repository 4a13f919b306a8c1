"""Int8 files of other producers, made once and kept by content.

Each lies in ``EDGEFUSE_CACHE/peers/<producer>-<digest>/`` as ``int8.tflite``, with ``made.json``
beside it. The digest is over the producer's version and arguments, the model's code and weights,
and the calibration samples with their preprocessing; so a file is made again only when one of
these changes. litert-torch has pins of its own and gets an environment of its own, also in there.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefuse.artifact import digest_bytes, digest_json
from edgefuse.data import SampleSet, open_samples
from edgefuse.fetch import Downloads
from edgefuse.job import make_job
from edgefuse.keys import version
from edgefuse.plan import Job
from edgefuse.recipe import Blob, Samples, Split, TorchModel
from edgefuse.store import default_root

HERE = Path(__file__).parent
LITERT = {"litert-torch": "0.10.0", "torch": "2.13.0", "ai-edge-quantizer": "0.10.0"}
ONNX2TF = ("-oiqt", "-qt", "per-channel", "-iqd", "int8", "-oqd", "int8", "-v", "error")
ONNX2TF_TOOLS = ("onnx2tf", "tensorflow", "onnxsim")
OPSET = 17
#: Pictures of each split that are for calibration; all others are judged.
CALIBRATED = 100


@dataclass(frozen=True)
class Source:
    """What a peer is given: a torch recipe's model and the calibration part of one split."""

    job: Job
    calibration: SampleSet

    @property
    def model(self) -> TorchModel:
        model = self.job.recipe.model.torch
        assert model is not None
        return model

    @property
    def key(self) -> dict[str, Any]:
        spec = importlib.util.find_spec(self.model.callable.partition(":")[0])
        assert spec is not None and spec.origin is not None
        return {
            "callable": self.model.callable,
            "arguments": self.model.arguments,
            "code": digest_bytes(Path(spec.origin).read_bytes()),
            "weights": self.weights.sha256,
            "calibration": digest_bytes(self.pictures.tobytes()),
        }

    @property
    def downloads(self) -> Downloads:
        return Downloads(default_root() / "downloads", self.job.base, say)

    @property
    def weights(self) -> Blob:
        weights = self.model.weights
        assert isinstance(weights, Blob)
        return weights

    def weights_file(self) -> Path:
        return self.downloads.get_all([self.weights])[0]

    @functools.cached_property
    def pictures(self) -> Any:
        """Normalised calibration pictures, float32 [N, H, W, 3]."""
        import numpy as np

        feeds = [s.feeds for s in self.calibration.samples(self.downloads)]
        rows = np.concatenate([next(iter(f.values())) for f in feeds]).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(rows, np.float32)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def source_of(recipe: Path, seed: int) -> Source:
    """The first pictures of the seeded shuffle of the folder that the recipe judges on."""
    job = make_job(recipe)
    judged = job.recipe.data.evaluation
    assert judged.folder is not None
    part = Split(seed=seed, first=CALIBRATED)
    calibration = open_samples(
        Samples(folder=judged.folder, split=part),
        preprocess=job.recipe.preprocess,
        inputs=job.recipe.model.inputs,
        base=job.base,
        memo=default_root() / "memo.json",
    )
    return Source(job, calibration)


@dataclass(frozen=True)
class Peer:
    """A producer: its name, what of it enters the key, and how it is run.

    Attributes:
        make: writes ``N.npy``'s int8 file as ``N.tflite`` for each source, in a folder of its own
            where the calibration files lie; returns the command for the record.
    """

    name: str
    key: Callable[[], dict[str, Any]]
    make: Callable[[Sequence[Source], Path], list[str]]

    def place(self, source: Source) -> Path:
        """Where the int8 file lies, or would lie."""
        digest = digest_json({**self.key(), **source.key})[:16]
        return default_root() / "peers" / f"{self.name}-{digest}" / "int8.tflite"

    def files(self, sources: Sequence[Source]) -> list[Path]:
        """The int8 file of each calibration set of one model; those that are not there are made,
        in one process that converts the model once."""
        missing = [source for source in sources if not self.place(source).is_file()]
        if missing:
            root = default_root() / "peers"
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root) as name:
                self._make(missing, Path(name))
        return [self.place(source) for source in sources]

    def _make(self, sources: Sequence[Source], work: Path) -> None:
        import numpy as np

        for index, source in enumerate(sources):
            np.save(work / f"{index}.npy", source.pictures)
        start = time.monotonic()
        command = self.make(sources, work)
        seconds = round(time.monotonic() - start, 1)
        for index, source in enumerate(sources):
            data = (work / f"{index}.tflite").read_bytes()
            made = {
                "command": command,
                "seconds": seconds,
                "calibration_sets": len(sources),
                "sha256": digest_bytes(data),
                "of": {**self.key(), **source.key},
            }
            kept = work / f"kept{index}"
            kept.mkdir()
            (kept / "int8.tflite").write_bytes(data)
            (kept / "made.json").write_text(json.dumps(made, indent=1) + "\n")
            folder = self.place(source).parent
            shutil.rmtree(folder, ignore_errors=True)
            kept.rename(folder)
        say(f"{self.name}: {len(sources)} int8 files in {seconds} s")


def run(command: list[str], folder: Path, log: Path) -> None:
    """Run with the programs of this environment on the path: onnx2tf calls onnxsim."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with log.open("wb") as stream:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PATH": path}, stdout=stream, stderr=stream
        )
    if done.returncode != 0:
        text = log.read_text("utf-8", "replace")
        raise SystemExit(f"{' '.join(command[:3])} ended {done.returncode}:\n{text[-2000:]}")


def export_plain(source: Source, path: Path) -> None:
    """The ONNX file as users make it: BatchNorm folded by the exporter, no pass of ours."""
    import torch

    model = source.model
    module_name, _, name = model.callable.partition(":")
    module = getattr(importlib.import_module(module_name), name)(**model.arguments)
    module.load_state_dict(torch.load(source.weights_file(), map_location="cpu", weights_only=True))
    inputs = source.job.recipe.model.inputs
    torch.onnx.export(
        module.eval(),
        tuple(torch.zeros(i.shape) for i in inputs),
        str(path),
        input_names=[i.name for i in inputs],
        output_names=list(source.job.recipe.model.outputs),
        opset_version=OPSET,
        dynamo=False,
    )


def onnx2tf_files(source: Source, work: Path, calibration: str) -> list[str]:
    """Put the peer's inputs into ``work``; returns the arguments of the command.

    The picture file is what it would download: it looks in its working folder first.
    """
    import numpy as np

    export_plain(source, work / "model.onnx")
    pictures = source.pictures
    ys = np.linspace(0, pictures.shape[1] - 1, 128).astype(int)
    small = pictures[:20, ys][:, :, ys]
    small = (small - small.min()) / np.ptp(small)
    np.save(work / "calibration_image_sample_data_20x128x128x3_float32.npy", small)
    data = ("-cind", input_name(source), calibration, "[[[[0,0,0]]]]", "[[[[1,1,1]]]]")
    return ["-i", "model.onnx", "-o", "out", *data, *ONNX2TF]


def input_name(source: Source) -> str:
    return source.job.recipe.model.inputs[0].name


def _by_onnx2tf(sources: Sequence[Source], work: Path) -> list[str]:
    arguments = onnx2tf_files(sources[0], work, "0.npy")
    job = {"arguments": arguments, "input": input_name(sources[0]), **_paths(sources, work)}
    (work / "job.json").write_text(json.dumps(job))
    worker = str(HERE / "onnx2tf_worker.py")
    run([sys.executable, worker, str(work / "job.json")], work, work / "log")
    if not (work / "0.tflite").is_file():
        raise SystemExit(f"onnx2tf wrote no int8 file:\n{(work / 'log').read_text()[-2000:]}")
    return ["onnx2tf", *arguments]


def _paths(sources: Sequence[Source], work: Path) -> dict[str, list[str]]:
    numbers = range(len(sources))
    return {
        "calibrations": [str(work / f"{index}.npy") for index in numbers],
        "outs": [str(work / f"{index}.tflite") for index in numbers],
    }


def litert_python() -> Path:
    """The interpreter of litert-torch's own environment, made when it is not there."""
    wanted = [f"{name}=={version}" for name, version in LITERT.items()]
    folder = default_root() / "peers" / f"litert-venv-{digest_json(wanted)[:8]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").is_file():
        say(f"installing {', '.join(wanted)} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted], check=True, stderr=subprocess.DEVNULL)
        (folder / "complete").write_text("\n".join(wanted) + "\n")
    return python


def _by_litert(sources: Sequence[Source], work: Path) -> list[str]:
    model = sources[0].model
    job = {
        "callable": model.callable,
        "arguments": model.arguments,
        "weights": str(sources[0].weights_file()),
        "path": [str(HERE.parents[2]), str(sources[0].job.base)],
        **_paths(sources, work),
    }
    (work / "job.json").write_text(json.dumps(job))
    worker = str(HERE / "litert_worker.py")
    run([str(litert_python()), worker, str(work / "job.json")], work, work / "log")
    return ["litert_torch.convert", "quantizer.calibrate", "recipe.static_wi8_ai8()"]


PEERS = (
    Peer(
        "onnx2tf",
        lambda: {"onnx2tf": [*map(version, ONNX2TF_TOOLS), *ONNX2TF, OPSET]},
        _by_onnx2tf,
    ),
    Peer("litert-torch", lambda: {"litert": LITERT}, _by_litert),
)
