"""A program on an NVIDIA GPU: its launches captured once into a CUDA graph over one arena.

Replaying the graph costs one launch of the driver instead of one a kernel. Everything is compiled
while a program is bound: a run compiles nothing, whatever comes in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefuse.cuda.architecture import LEAST
from edgefuse.cuda.bound import Bound
from edgefuse.cuda.codegen.machine import GPU
from edgefuse.cuda.program import Program
from edgefuse.cuda.run_interp import require_triton
from edgefuse.cuda.run_numpy import as_held, from_held
from edgefuse.cuda.storage import Array
from edgefuse.cuda.weights import Weights
from edgefuse.errors import DataError, DeviceUnavailable

_WARM_UP = 3


def require_gpu() -> str:
    """The name of the GPU.

    Raises:
        DeviceUnavailable: there is none, or it is too old.
        ToolError: Triton or torch is not installed.
    """
    require_triton()
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            "no device: torch finds no NVIDIA GPU", hint="a torch built for CUDA, and a driver"
        )
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor < LEAST:
        raise DeviceUnavailable(
            f"{torch.cuda.get_device_name()} is sm_{major}{minor}: code is made from sm_{LEAST} on"
        )
    return str(torch.cuda.get_device_name())


class Captured:
    """A program captured on the current GPU.

    Args:
        folder: where generated sources are written.

    Raises:
        DeviceUnavailable: no GPU, or one without memory enough.
        ToolError: a kernel cannot be compiled or launched.
    """

    def __init__(self, program: Program, weights: Weights, folder: Path) -> None:
        require_gpu()
        import torch

        try:
            self._bound = Bound(program, weights, GPU, "cuda", folder)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self._bound.launch()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._bound.launch()
        except torch.cuda.OutOfMemoryError as error:
            needed = program.arena.arena_bytes + len(weights.data)
            raise DeviceUnavailable(
                f"out of memory on the GPU: the program needs {needed} bytes",
                hint="make the batch smaller",
            ) from error
        self._program, self._torch = program, torch

    def __call__(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs, real numbers, as :class:`edgefuse.cuda.run_numpy.Runner` gives them."""
        self._bound.fill({t.name: as_held(t, feed) for t in self._program.inputs})
        self._graph.replay()
        self._torch.cuda.synchronize()
        return {t.name: from_held(self._bound.held(t.name), t) for t in self._program.outputs}

    def replay(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """On tensors of the GPU; the results are views of the arena, good until the next replay.

        Raises:
            DataError: an input is missing, has another shape or dtype, or lies in pieces.
        """
        for tensor in self._program.inputs:
            given: Any = feed.get(tensor.name)
            shape = None if given is None else tuple(given.shape)
            if shape != tensor.shape:
                raise DataError(
                    f"input {tensor.name!r} has to be {list(tensor.shape)}, not {shape}"
                )
            if not given.is_contiguous():
                raise DataError(
                    f"input {tensor.name!r} is not contiguous", hint="call contiguous() on it"
                )
            self._bound.views[tensor.name].copy_(given.reshape(-1))
        self._graph.replay()
        return {t.name: self._bound.views[t.name].reshape(t.shape) for t in self._program.outputs}

    def times_ms(self, runs: int) -> list[float]:
        """Wall time of each of ``runs`` replays, the GPU waited for."""
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            self._graph.replay()
            self._torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e3)
        return times
