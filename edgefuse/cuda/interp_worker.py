"""The child of :mod:`edgefuse.cuda.run_interp`: launches of a program, one after another."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.child import serve_all
from edgefuse.cuda.codegen.machine import INTERPRETER
from edgefuse.cuda.codegen.source import generate
from edgefuse.cuda.loading import load
from edgefuse.cuda.program import Program, from_text
from edgefuse.cuda.storage import HELD
from edgefuse.errors import ToolError

# Not zero, and no plausible number: a large negative float in every format.
_PATTERN = 0xF5


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One run; the outputs go to a file."""
    import torch

    folder = Path(job["folder"])
    program = from_text((folder / "program.json").read_text("utf-8"))
    data = np.frombuffer((folder / "weights.bin").read_bytes(), np.uint8)
    weights = torch.from_numpy(data.copy()) if data.size else torch.empty(0, dtype=torch.uint8)
    arena = torch.full((max(1, program.arena.arena_bytes),), _PATTERN, dtype=torch.uint8)
    views = {t.name: _view(program, t.name, weights, arena) for t in program.tensors}
    with np.load(folder / "inputs.npz") as given:
        for place, tensor in enumerate(program.inputs):
            held = np.ascontiguousarray(given[f"i{place}"]).view(np.uint8).reshape(-1)
            arena[tensor.offset : tensor.offset + tensor.nbytes] = torch.from_numpy(held.copy())
    kept: dict[str, np.ndarray[Any, Any]] = {}
    wanted = set(job["wanted"])
    loaded: dict[str, Any] = {}
    for launch in program.launches:
        source = generate(program, launch, INTERPRETER)
        function = loaded.get(source.name)
        if function is None:
            function = loaded[source.name] = load(source, folder / "kernels")
        began = time.monotonic()
        try:
            function[(source.programs,)](*(views[name] for name in source.arguments))
        except Exception as error:
            raise ToolError(
                f"Triton's interpreter failed: {str(error)[:300]}",
                hint=f"the generated kernel was {source.name}",
                where=launch.place,
            ) from error
        took = time.monotonic() - began
        print(f"{launch.name} {source.name} {source.programs} {took:.3f} s", file=sys.stderr)
        if launch.output in wanted:
            kept[launch.output] = _held(program, launch.output, arena)
    for name in job["wanted"]:
        kept.setdefault(name, _held(program, name, arena))
    numbered = {f"o{place}": kept[name] for place, name in enumerate(job["wanted"])}
    np.savez(folder / "outputs.npz", **numbered)
    return {"launches": len(program.launches)}


def _view(program: Program, name: str, weights: Any, arena: Any) -> Any:
    """A tensor's bytes as Triton takes them: flat, of its dtype."""
    import torch

    tensor, root = program.tensor(name), program.root(name)
    block = weights if root.role == "weight" else arena
    return block[root.offset : root.offset + root.nbytes].view(getattr(torch, tensor.dtype))


def _held(program: Program, name: str, arena: Any) -> np.ndarray[Any, Any]:
    tensor, root = program.tensor(name), program.root(name)
    piece = arena[root.offset : root.offset + root.nbytes].numpy().copy()
    shaped: np.ndarray[Any, Any] = piece.view(HELD[tensor.dtype]).reshape(tensor.shape)
    return shaped


if __name__ == "__main__":
    serve_all(work)
