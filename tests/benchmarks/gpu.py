"""Everything that needs a GPU, in one run of at most five minutes, without a network.

usage: python tests/benchmarks/gpu.py --prepare FOLDER          on any machine: programs and weights
       python tests/benchmarks/gpu.py --programs FOLDER         on the machine with the GPU
       python tests/benchmarks/gpu.py --programs FOLDER --dry --architecture 90
                                                                without one: compile, count

1. every kernel of the tests against its NumPy reference, in fp32, fp16, bf16 and int8;
2. every program captured into a CUDA graph over one arena, its outputs against torch in fp32;
3. times at batch 1 and 64 beside eager, channels-last and torch.compile (max-autotune), memory,
   achieved bytes a second and the share of the floor.

Results go to tests/benchmarks/gpu_<device>.json. What there was no time for is said to be
missing. Ends with 1 when a kernel or a program is wrong, with 4 when there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gpu_programs import fused_file, lowered, module, picture

from edgefuse.cuda import parcel
from edgefuse.cuda.compile import compiled, shortcomings, sources
from edgefuse.cuda.program import Program
from edgefuse.cuda.run_gpu import Captured, require_gpu
from edgefuse.cuda.run_numpy import Runner
from edgefuse.cuda.storage import Precision
from edgefuse.cuda.weights import Weights
from edgefuse.errors import EdgefuseError

MODELS = ("mobilenet_v2", "resnet50", "vit_tiny")
BATCHES = (1, 64)
LIMIT_S = 280.0
RUNS = 50
BYTES_PER_S = {"H200": 4.3e12}
TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 2e-2, "int8": 0.0}


def prepare(folder: Path) -> None:
    """Programs of all models and batches, and the torch weights they were made of."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        net = module(name)
        torch.save(net.state_dict(), folder / f"{name}.pt")
        made = []
        for batch in BATCHES:  # Exports of some networks hold their batch.
            proto = fused_file(name, net, folder / "net.onnx", batch)
            made.append(lowered(name, proto, batch, "fp16"))
        (folder / "net.onnx").unlink()
        parcel.write(made, folder / f"{name}.tar")
        for program, _ in made:
            print(f"{name} {program.bucket}: {counted(program)}", flush=True)


def counted(program: Program) -> dict[str, Any]:
    """What is known of a program without running it."""
    return {
        "launches": len(program.launches),
        "bytes_moved": program.bytes_moved,
        "floor_bytes": program.floor_bytes,
        "arena_bytes": program.arena.arena_bytes,
        "arena_bound_bytes": program.arena.bound_bytes,
        "weights_bytes": program.weights_bytes,
        "flops": program.flops,
    }


def dry(folder: Path, architecture: int, cache: Path) -> int:
    """Compile all that a run would, and count."""
    wrong = 0
    for name in MODELS:
        for program, _ in parcel.read(folder / f"{name}.tar"):
            print(f"{name} {program.bucket}: {counted(program)}", flush=True)
            for source in {s.name: s for s in sources(program)}.values():
                for text in shortcomings(source, compiled(source, architecture, cache)):
                    print(f"  {text}", flush=True)
                    wrong += " needs " in text
    return 1 if wrong else 0


def kernels(scratch: Path) -> list[dict[str, Any]]:
    """Every kernel's largest difference from its reference, over the largest magnitude."""
    from cuda.kernels.cases import FLOATS, INTEGERS
    from cuda.kernels.single import case

    rows = []
    for precision, tolerance in TOLERANCES.items():
        for kernel in INTEGERS if precision == "int8" else FLOATS:
            built = case(kernel, precision)
            made = Captured(built.program, built.weights, scratch)(built.inputs)["y"]
            wanted = Runner(built.program, built.weights)(built.inputs)["y"]
            apart = float(np.max(np.abs(made - wanted)) / max(float(np.max(np.abs(wanted))), 1e-30))
            rows.append({
                "kernel": kernel.name, "case": kernel.label, "precision": precision,
                "largest_difference": apart, "passed": bool(apart <= tolerance),
            })  # fmt: skip
    return rows


def timed_ms(call: Callable[[], Any]) -> float:
    """The median wall time of a call, the GPU waited for."""
    import torch

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)


def measured(
    name: str, program: Program, weights: Weights, folder: Path, scratch: Path
) -> dict[str, Any]:
    """One program on the GPU: right or wrong, how fast, how much memory."""
    import torch

    entry, shape = picture(name)
    batch = program.inputs[0].shape[0]
    feed = torch.randn(
        batch, *shape, device="cuda", generator=torch.Generator("cuda").manual_seed(3)
    )
    net = module(name)
    net.load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True))
    net = net.cuda()
    with torch.inference_mode():
        wanted = net(feed).float().cpu().numpy()
    del net
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    captured = Captured(program, weights, scratch)
    ready_s = time.perf_counter() - began
    (made,) = captured.replay({entry: feed.to(torch.float16)}).values()
    apart = float(np.max(np.abs(made.float().cpu().numpy() - wanted)) / np.max(np.abs(wanted)))
    p50_ms = median(captured.times_ms(RUNS))
    row = {
        **counted(program), "model": name, "batch": batch, "ready_s": ready_s,
        "largest_difference": apart, "passed": bool(apart <= TOLERANCES["fp16"]),
        "p50_ms": p50_ms, "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "bytes_per_s": program.bytes_moved / p50_ms * 1e3,
    }  # fmt: skip
    for device, bytes_per_s in BYTES_PER_S.items():
        if device in torch.cuda.get_device_name():
            row["share_of_floor"] = program.floor_bytes / bytes_per_s * 1e3 / p50_ms
    return row


def peers(name: str, batch: int, left_s: Callable[[], float], *, compiling: bool) -> dict[str, Any]:
    """Torch's own times in fp16: eager and channels-last, or compiled."""
    import torch

    net = module(name).cuda().half()
    _, shape = picture(name)
    feed = torch.randn(batch, *shape, device="cuda", dtype=torch.float16)
    rows: dict[str, Any] = {}
    with torch.inference_mode():
        if not compiling:
            rows["eager_ms"] = timed_ms(lambda: net(feed))
        net = net.to(memory_format=torch.channels_last)
        feed = feed.to(memory_format=torch.channels_last)
        if not compiling:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            rows["channels_last_ms"] = timed_ms(lambda: net(feed))
            rows["channels_last_peak_bytes"] = torch.cuda.max_memory_allocated() - before
        elif left_s() > 60:
            fast = torch.compile(net, mode="max-autotune")
            rows["compiled_ms"] = timed_ms(lambda: fast(feed))
            torch._dynamo.reset()
        else:
            rows["compiled_ms"] = None
            rows["missing"] = "torch.compile: there was no time left"
    return rows


def run(folder: Path) -> int:
    ends = time.monotonic() + LIMIT_S
    device = require_gpu()
    left_s = lambda: ends - time.monotonic()  # noqa: E731
    path = Path(__file__).with_name(f"gpu_{re.sub(r'[^a-z0-9]+', '_', device.lower())}.json")
    told: dict[str, Any] = {"device": device, "kernels": [], "programs": []}
    with tempfile.TemporaryDirectory() as scratch:
        told["kernels"] = kernels(Path(scratch))
        for name in MODELS:
            for program, weights in parcel.read(folder / f"{name}.tar"):
                row = measured(name, program, weights, folder, Path(scratch))
                row |= peers(name, row["batch"], left_s, compiling=False)
                told["programs"].append(row)
                print(json.dumps(row), flush=True)
                path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", "utf-8")
        for row in told["programs"]:
            row |= peers(row["model"], row["batch"], left_s, compiling=True)
            print(row["model"], row["batch"], row["p50_ms"], row["compiled_ms"], flush=True)
            path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", "utf-8")
    wrong = [row for row in (*told["kernels"], *told["programs"]) if not row["passed"]]
    for row in wrong:
        print(f"wrong: {row}", file=sys.stderr)
    print(f"{len(told['kernels'])} kernels, {len(wrong)} wrong: {path}")
    return 1 if wrong else 0


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--prepare", type=Path)
    words.add_argument("--programs", type=Path, default=Path("build/gpu"))
    words.add_argument("--dry", action="store_true")
    words.add_argument("--architecture", type=int, default=90)
    words.add_argument("--cache", type=Path, default=Path("build/cubins"))
    given = words.parse_args()
    try:
        if given.prepare:
            prepare(given.prepare)
            return 0
        if given.dry:
            return dry(given.programs, given.architecture, given.cache)
        return run(given.programs)
    except EdgefuseError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
