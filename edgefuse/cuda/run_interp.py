"""A program in Triton's interpreter: the very kernels of a GPU, on CPU memory, without a GPU.

Every tensor lies where the plan puts it, in one arena, so that a wrong plan is seen too. The
arena is filled with a pattern before each run: what is read before it is written shows.
Triton decides when it is imported whether it interprets, so this runs in a child process.

What differs from a GPU: tiles are larger, bfloat16 products are done in float32 (the interpreter's
are wrong), and sums are added up in another order.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from edgefuse.child import Conversation, conversing
from edgefuse.cuda.program import Program
from edgefuse.cuda.run_numpy import as_held, from_held
from edgefuse.cuda.storage import Array, decode
from edgefuse.cuda.weights import Weights
from edgefuse.errors import ToolError

WORKER = "edgefuse.cuda.interp_worker"
_TIMEOUT_S = 1800.0


class Interpreter:
    """A child that runs programs; made by :func:`interpreter`."""

    def __init__(self, child: Conversation, folder: Path) -> None:
        self._child, self._folder = child, folder

    def run(
        self,
        program: Program,
        weights: Weights,
        feed: Mapping[str, Array],
        *,
        keep: tuple[str, ...] = (),
        timeout_s: float = _TIMEOUT_S,
    ) -> dict[str, Array]:
        """Outputs of a program, and what is kept, as :class:`edgefuse.cuda.run_numpy.Runner` gives.

        Args:
            feed: real numbers by input name; integers are taken as they are.
            keep: further tensors to hand out, as they are right after they are written; decoded.

        Raises:
            DataError: an input is missing or has another shape.
            ToolError: a kernel fails; Triton is not installed.
        """
        (self._folder / "program.json").write_text(program.to_text(), "utf-8")
        (self._folder / "weights.bin").write_bytes(weights.data)
        held = {f"i{place}": as_held(t, feed) for place, t in enumerate(program.inputs)}
        np.savez(self._folder / "inputs.npz", **held)
        outputs = [tensor.name for tensor in program.outputs]
        wanted = [*dict.fromkeys([*outputs, *keep])]
        self._child.ask({"folder": str(self._folder), "wanted": wanted}, timeout_s)
        answer: dict[str, Array] = {}
        with np.load(self._folder / "outputs.npz") as made:
            for place, name in enumerate(wanted):
                tensor, held_values = program.tensor(name), made[f"o{place}"]
                is_output = tensor.role == "output"
                answer[name] = (
                    from_held(held_values, tensor)
                    if is_output
                    else decode(held_values, tensor.dtype)
                )
        return answer


@contextlib.contextmanager
def interpreter(log: Path) -> Iterator[Interpreter]:
    """Start the child; it serves any number of programs.

    Args:
        log: what it says is appended here.
    """
    require_triton()
    with tempfile.TemporaryDirectory(prefix="edgefuse-interp-") as scratch:
        folder = Path(scratch)
        settings = {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(folder / "triton")}
        with conversing(WORKER, log, environment=settings) as child:
            yield Interpreter(child, folder)


def require_triton() -> None:
    """Refuse at once where Triton is not installed, without importing it.

    Raises:
        ToolError: with the command that installs it.
    """
    from importlib.util import find_spec

    if find_spec("triton") is None or find_spec("torch") is None:
        raise ToolError(
            "Triton is not installed", hint="pip install -c constraints.txt 'edgefuse[cuda]'"
        )
