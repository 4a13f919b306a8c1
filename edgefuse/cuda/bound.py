"""A program bound to memory of a device: one arena, its weights, its kernels ready to launch.

What the interpreter and a GPU have in common; only the device, and the sizes of tiles, differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.cuda.codegen.machine import Machine
from edgefuse.cuda.codegen.source import Source, generate
from edgefuse.cuda.loading import load
from edgefuse.cuda.program import Launch, Program
from edgefuse.cuda.storage import HELD, Array
from edgefuse.cuda.weights import Weights
from edgefuse.errors import ToolError

# No plausible number: a large negative float in every format.
_PATTERN = 0xF5


class Bound:
    """One program in memory.

    Args:
        device: as torch names it.
        folder: where generated sources are written.
    """

    def __init__(
        self, program: Program, weights: Weights, machine: Machine, device: str, folder: Path
    ) -> None:
        import torch

        data = np.frombuffer(weights.data, np.uint8)
        self.program, self._torch = program, torch
        self._weights = torch.from_numpy(data.copy()).to(device)
        size = max(1, program.arena.arena_bytes)
        self.arena = torch.full((size,), _PATTERN, dtype=torch.uint8, device=device)
        self.views = {tensor.name: self._view(tensor.name) for tensor in program.tensors}
        loaded: dict[str, Any] = {}
        self._ready: list[tuple[Launch, Source, Any]] = []
        for launch in program.launches:
            source = generate(program, launch, machine)
            if source.name not in loaded:
                loaded[source.name] = load(source, folder)
            self._ready.append((launch, source, loaded[source.name]))

    def fill(self, held: Mapping[str, Array]) -> None:
        """Write the inputs, as they are held, over the pattern that fills the arena."""
        self.arena.fill_(_PATTERN)
        for tensor in self.program.inputs:
            flat = np.ascontiguousarray(held[tensor.name]).view(np.uint8).reshape(-1)
            part = self.arena[tensor.offset : tensor.offset + tensor.nbytes]
            part.copy_(self._torch.from_numpy(flat.copy()))

    def launch(self, after: Callable[[Launch], None] | None = None) -> None:
        """All launches, in order.

        Args:
            after: called after each.

        Raises:
            ToolError: a kernel fails; with the launch and its torch module.
        """
        for launch, source, function in self._ready:
            try:
                function[(source.programs,)](
                    *(self.views[name] for name in source.arguments),
                    num_warps=source.warps,
                    num_stages=source.stages,
                    enable_fp_fusion=not source.exact,
                )
            except Exception as error:
                raise ToolError(
                    f"kernel {source.name} failed: {str(error)[-300:]}", where=launch.place
                ) from error
            if after is not None:
                after(launch)

    def held(self, name: str) -> Array:
        """A tensor's bytes as they are now."""
        tensor = self.program.tensor(name)
        piece = self._bytes(name).cpu().numpy().copy()
        shaped: Array = piece.view(HELD[tensor.dtype]).reshape(tensor.shape)
        return shaped

    def _bytes(self, name: str) -> Any:
        root = self.program.root(name)
        block = self._weights if root.role == "weight" else self.arena
        return block[root.offset : root.offset + root.nbytes]

    def _view(self, name: str) -> Any:
        return self._bytes(name).view(getattr(self._torch, self.program.tensor(name).dtype))
