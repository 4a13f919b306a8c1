"""A program as files for a device that has the NVIDIA driver and nothing else.

::

    plan.txt      sizes, kernels with their code for each architecture, inputs, outputs, launches
    weights.bin   the weights, as they lie in memory
    code.bin      machine code; equal pieces only once
    golden.bin    input and output bytes of each golden vector
    launcher.c    the program that runs them, to be compiled on, or for, the device

A record is a line of plan.txt, its fields parted by one space; ``a`` is the arena, ``w`` weights::

    edgefuse-cuda-plan 1
    arena BYTES / weights BYTES / code BYTES / golden BYTES
    vectors N / tolerance-millionths N
    kernel SYMBOL
    code KERNEL ARCHITECTURE OFFSET BYTES THREADS SHARED_BYTES
    input|output OFFSET BYTES DTYPE
    launch KERNEL BLOCKS ARGUMENTS (a|w OFFSET BYTES)...
    end LINES

The launcher believes none of it: every number is checked before the driver is called.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np

from edgefuse.cuda.architecture import ARCHITECTURES
from edgefuse.cuda.compile import Cubin, compiled, shortcomings, sources
from edgefuse.cuda.program import Program, Tensor
from edgefuse.cuda.run_numpy import to_held
from edgefuse.cuda.storage import Array
from edgefuse.cuda.weights import Weights
from edgefuse.errors import DataError, StageError, ToolError

VERSION = 1
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra")
_TIMEOUT_S = 120.0
_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Golden:
    """One golden vector: real numbers by tensor name."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def deploy(
    program: Program,
    weights: Weights,
    folder: Path,
    *,
    architectures: Sequence[int] = tuple(ARCHITECTURES),
    golden: Sequence[Golden] = (),
    tolerance: float = 0.0,
    cache: Path,
) -> dict[str, Any]:
    """Compile what is not compiled yet, and write the files; equal programs give equal bytes.

    Args:
        tolerance: largest difference over the largest magnitude, in steps of a millionth.
        cache: where compiled code is kept.

    Returns:
        JSON-able figures: code bytes in all and by architecture, kernels, launches, faults of code.

    Raises:
        StageError: an unknown architecture, or code that a GPU would refuse.
        ToolError: the compiler is missing or fails.
        DataError: a golden vector lacks a tensor.
    """
    made = sources(program)
    kernels = {source.name: source for source in made}
    order = {name: place for place, name in enumerate(kernels)}
    cubins = {
        name: [compiled(source, a, cache) for a in architectures]
        for name, source in kernels.items()
    }
    faults = [f for n, own in cubins.items() for c in own for f in shortcomings(kernels[n], c)]
    if fatal := [text for text in faults if " needs " in text]:
        raise StageError(fatal[0], hint="choose smaller tiles")
    pieces, places = _pieces([c for own in cubins.values() for c in own])
    vectors = b"".join(_vector(program, one) for one in golden)
    lines = [
        f"edgefuse-cuda-plan {VERSION}",
        f"arena {program.arena.arena_bytes}",
        f"weights {len(weights.data)}",
        f"code {len(pieces)}",
        f"golden {len(vectors)}",
        f"vectors {len(golden)}",
        f"tolerance-millionths {round(tolerance * 1e6)}",
    ]
    for name, own in cubins.items():
        lines.append(f"kernel {name}")
        for cubin in own:
            where = f"{places[cubin.data]} {len(cubin.data)}"
            lines.append(
                f"code {order[name]} {cubin.architecture} {where} {cubin.threads} "
                f"{cubin.facts.shared_bytes}"
            )
    for role, tensors in (("input", program.inputs), ("output", program.outputs)):
        for tensor in tensors:
            lines.append(f"{role} {_place(program, tensor)} {tensor.dtype}")
    for source in made:
        arguments = [_argument(program, program.tensor(name)) for name in source.arguments]
        head = f"launch {order[source.name]} {source.programs} {len(arguments)}"
        lines.append(" ".join([head, *arguments]))
    lines.append(f"end {len(lines) + 1}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.txt").write_text("\n".join(lines) + "\n", "ascii")
    (folder / "weights.bin").write_bytes(weights.data)
    (folder / "code.bin").write_bytes(pieces)
    (folder / "golden.bin").write_bytes(vectors)
    (folder / "launcher.c").write_bytes(launcher_source())
    by_architecture = {
        ARCHITECTURES[a].name: sum(own[i].facts.code_bytes for own in cubins.values())
        for i, a in enumerate(architectures)
    }
    return {
        "code_bytes": len(pieces),
        "code_bytes_by_architecture": by_architecture,
        "kernels": len(kernels),
        "launches": len(made),
        "faults": faults,
    }


def launcher_source() -> bytes:
    return (files("edgefuse.cuda.launcher") / "launcher.c").read_bytes()


def build_launcher(output: Path, compiler: str = "cc") -> None:
    """Compile the launcher with this machine's, or another, C compiler.

    Raises:
        ToolError: there is none, or it fails.
    """
    found = which(compiler)
    if found is None:
        raise ToolError(
            f"{compiler} not found", hint="install a C compiler: apt-get install gcc libc6-dev"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [found, *FLAGS, "-x", "c", "-o", str(output), "-", "-ldl", "-lm"]
    done = subprocess.run(
        command, input=launcher_source(), capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ToolError(f"{compiler} cannot build the launcher: {said[:300]}")


def check(launcher: Path, folder: Path) -> dict[str, Any]:
    """Let the launcher check the files; no driver is needed.

    Raises:
        StageError: they are damaged; in the launcher's words.
    """
    done = subprocess.run(
        [str(launcher), str(folder), "--check"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise StageError(
            done.stderr.strip().removeprefix("launcher: ") or "the launcher crashed",
            hint="write the files again",
            where=str(folder),
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _pieces(cubins: Sequence[Cubin]) -> tuple[bytes, dict[bytes, int]]:
    """All code in one block, and where each piece begins."""
    block = bytearray()
    places: dict[bytes, int] = {}
    for cubin in cubins:
        if cubin.data not in places:
            places[cubin.data] = len(block)
            block += cubin.data + bytes(-len(cubin.data) % _ALIGNMENT)
    return bytes(block), places


def _place(program: Program, tensor: Tensor) -> str:
    return f"{program.root(tensor.name).offset} {tensor.nbytes}"


def _argument(program: Program, tensor: Tensor) -> str:
    block = "w" if program.root(tensor.name).role == "weight" else "a"
    return f"{block} {_place(program, tensor)}"


def _vector(program: Program, golden: Golden) -> bytes:
    parts = []
    for tensors, values in (
        (program.inputs, golden.inputs),
        (program.outputs, golden.outputs),
    ):
        for tensor in tensors:
            given = values.get(tensor.name)
            if given is None or given.shape != tensor.shape:
                raise DataError(f"a golden vector has no {tensor.name!r} {list(tensor.shape)}")
            parts.append(np.ascontiguousarray(to_held(given, tensor)).tobytes())
    return b"".join(parts)
