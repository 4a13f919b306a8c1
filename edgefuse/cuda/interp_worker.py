"""The child of :mod:`edgefuse.cuda.run_interp`: launches of a program, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.child import serve_all
from edgefuse.cuda.bound import Bound
from edgefuse.cuda.codegen.machine import INTERPRETER
from edgefuse.cuda.program import Launch, from_text
from edgefuse.cuda.weights import Weights


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One run; the outputs go to a file."""
    folder = Path(job["folder"])
    program = from_text((folder / "program.json").read_text("utf-8"))
    weights = Weights((folder / "weights.bin").read_bytes())
    bound = Bound(program, weights, INTERPRETER, "cpu", folder / "kernels")
    with np.load(folder / "inputs.npz") as given:
        bound.fill({t.name: given[f"i{place}"] for place, t in enumerate(program.inputs)})
    kept: dict[str, np.ndarray[Any, Any]] = {}
    wanted: list[str] = job["wanted"]

    def after(launch: Launch) -> None:
        if launch.output in wanted:
            kept[launch.output] = bound.held(launch.output)

    bound.launch(after)
    for name in wanted:
        kept.setdefault(name, bound.held(name))
    numbered = {f"o{place}": kept[name] for place, name in enumerate(wanted)}
    np.savez(folder / "outputs.npz", **numbered)
    return {"launches": len(program.launches)}


if __name__ == "__main__":
    serve_all(work)
