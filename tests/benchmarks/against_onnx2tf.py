"""Wall time against ``onnx2tf -oiqt``: the same ONNX file, the same 100 pictures, in turn.

usage: python tests/benchmarks/against_onnx2tf.py [--rounds 3] [--recipe configs/mobilenet.yaml]

Each round runs, as whole processes on this machine:
    peer      onnx2tf -oiqt, as its users run it, offline
    convert   edgefuse run --until quantize, export and fuse cached: ONNX to int8
              (convert, calibrate, quantize)
    whole     edgefuse run with an empty artifact store, downloads cached: export to report,
              all gates
and prints the median of each with its range, and the ratios to the peer, round by round. The
figures are written to against_onnx2tf.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def edgefuse(cache: Path, *words: str) -> float:
    """Wall seconds of one edgefuse command, which must end 0."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "edgefuse.cli", *words],
        env={**os.environ, "EDGEFUSE_CACHE": str(cache)},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def prepare(recipe: Path, cache: Path, out: Path, folder: Path) -> list[str]:
    """Fill the download cache and write what the peer reads; returns the peer's command."""
    import numpy as np

    from edgefuse.data import open_samples
    from edgefuse.fetch import Downloads
    from edgefuse.graph.group import inline_groups
    from edgefuse.job import make_job

    edgefuse(cache, "run", str(recipe), "--until", "fuse", "--out", str(out))
    os.environ["EDGEFUSE_CACHE"] = str(cache)
    job = make_job(recipe)
    contract = job.recipe.preprocess
    assert contract is not None
    inline_groups(out / f"{job.recipe.name}_fused.onnx", folder / "model.onnx")
    downloads = Downloads(cache / "downloads", job.base, print)
    mean, std = (np.float32(v)[None, :, None, None] for v in (contract.mean, contract.std))
    samples = open_samples(
        job.recipe.data.calibration,
        preprocess=contract,
        inputs=job.recipe.model.inputs,
        base=job.base,
    )
    feeds = [next(iter(s.feeds.values())) for s in samples.samples(downloads)]
    plain = (np.concatenate(feeds) * std + mean).transpose(0, 2, 3, 1).astype(np.float32)
    np.save(folder / "calibration.npy", plain)
    ys = np.linspace(0, plain.shape[1] - 1, 128).astype(int)
    small = np.clip(plain[:20, ys][:, :, ys], 0, 1)
    np.save(folder / "calibration_image_sample_data_20x128x128x3_float32.npy", small)
    numbers = [",".join(map(str, values)) for values in (contract.mean, contract.std)]
    return [
        *(str(BIN / "onnx2tf"), "-i", "model.onnx", "-o", "out", "-oiqt", "-qt", "per-channel"),
        *("-cind", job.recipe.model.inputs[0].name, "calibration.npy"),
        *(f"[[[[{n}]]]]" for n in numbers),
        *("-iqd", "int8", "-oqd", "int8", "-v", "error"),
    ]


def run_peer(command: list[str], folder: Path) -> float:
    """Wall seconds of the peer, which must write its int8 file."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        private = Path(name)
        for file in folder.iterdir():
            shutil.copy(file, private)
        start = time.perf_counter()
        subprocess.run(
            command,
            cwd=private,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - start
        if not (private / "out" / "model_full_integer_quant.tflite").is_file():
            raise SystemExit("onnx2tf wrote no int8 file")
        return seconds


def empty_store(cache: Path, *stages: str) -> None:
    """Forget results, of all stages or of some; downloads stay."""
    if not stages:
        shutil.rmtree(cache / "objects", ignore_errors=True)
        shutil.rmtree(cache / "entries", ignore_errors=True)
    for stage in stages:
        shutil.rmtree(cache / "entries" / stage, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipe", type=Path, default=Path("configs/mobilenet.yaml"))
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"peer": [], "convert": [], "whole": []}
    with tempfile.TemporaryDirectory() as name:
        cache, out, folder = (Path(name) / n for n in ("cache", "out", "peer"))
        folder.mkdir()
        recipe = str(arguments.recipe)
        command = prepare(arguments.recipe, cache, out, folder)
        edgefuse(cache, "run", recipe, "--out", str(out))
        for index in range(arguments.rounds):
            times["peer"].append(run_peer(command, folder))
            empty_store(cache, "convert", "quantize")
            times["convert"].append(
                edgefuse(cache, "run", recipe, "--until", "quantize", "--out", str(out))
            )
            empty_store(cache)
            times["whole"].append(edgefuse(cache, "run", recipe, "--out", str(out)))
            shown = ", ".join(f"{k} {v[-1]:.1f} s" for k, v in times.items())
            print(f"round {index + 1}: {shown}", flush=True)
    report(times, arguments.recipe)


def report(times: dict[str, list[float]], recipe: Path) -> None:
    from edgefuse.devices.measure.fingerprint import cpu_model
    from edgefuse.keys import versions

    document: dict[str, Any] = {
        "command": f"python tests/benchmarks/against_onnx2tf.py --recipe {recipe}",
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "versions": versions(("onnx2tf", "tensorflow", "torch", "ai-edge-litert")),
        "seconds": {k: [round(s, 2) for s in v] for k, v in times.items()},
        "ratios": {
            name: [round(a / b, 4) for a, b in zip(times[name], times["peer"])]
            for name in ("convert", "whole")
        },
    }
    for name, seconds in times.items():
        print(f"{name:<8} median {statistics.median(seconds):7.2f} s  "
              f"({min(seconds):.2f} to {max(seconds):.2f}, n = {len(seconds)})")  # fmt: skip
    for name, ratios in document["ratios"].items():
        print(f"{name}/peer  median ratio {statistics.median(ratios):.3f}  "
              f"({min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip
    path = HERE / "against_onnx2tf.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
