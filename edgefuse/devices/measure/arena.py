"""How much memory a model's activations need on the built-in kernels.

``measured``: the bytes from the first to the last byte of the interpreter's arena, read off the
addresses of its tensors after one invoke, with the optimised kernels and no delegate. It holds
every activation and the scratch tensors that kernels place in the arena (im2col). It does not hold
weights, the interpreter's own structures, small persistent and heap tensors (resolved axes,
variables), nor XNNPACK's workspace, which replaces the arena when that delegate runs.

``lower_bound``: the most bytes of the file's own activations that are alive at once, each rounded
up to 64 bytes (the arena's alignment). Model inputs are alive throughout, as the interpreter
preserves them; outputs from their making to the end. An operator that the runtime may compute in
place (reshapes, element-wise sums) is not charged twice. No planner can go below it without
reordering or splitting operators; scratch is not in it.

``peak_rss_growth``: growth of resident memory from before loading to the peak, in a fresh process.
It holds everything and depends on the allocator: reported, never judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.child import call
from edgefuse.errors import ToolError
from edgefuse.tflite.read import Operator, Tensor, TfliteModel

if TYPE_CHECKING:
    from edgefuse.tflite.runtime import Runtime

WORKER = "edgefuse.devices.measure.arena_worker"
ALIGNMENT = 64
_IN_PLACE = frozenset(
    {
        *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST", "DYNAMIC_UPDATE_SLICE"),
        *("ADD", "SUB", "MUL", "DIV"),
    }
)


@dataclass(frozen=True)
class Arena:
    """Bytes; see the module's docstring for what each holds.

    Attributes:
        head_bytes: of ``measured_bytes`` the activations and scratch, where the arena also holds
            the interpreter's structures and the runtime tells; else None.
    """

    measured_bytes: int
    lower_bound_bytes: int
    peak_rss_growth_bytes: int
    runtime: str
    head_bytes: int | None = None


def align(size: int) -> int:
    """``size`` rounded up to the arena's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arena_tensors(model: TfliteModel) -> tuple[Tensor, ...]:
    """The file's tensors that live in the arena: no constants, variables or strings."""
    touched = {i for op in model.operators for i in (*op.inputs, *op.outputs)}
    touched |= {*model.inputs, *model.outputs}
    return tuple(
        t
        for t in model.tensors
        if t.index in touched and not t.is_constant and not t.is_variable and t.nbytes
    )


def lower_bound_bytes(model: TfliteModel) -> int:
    """The most bytes alive at once, in the file's operator order."""
    end = len(model.operators)
    last = {t.index: -1 for t in arena_tensors(model)}
    first = dict.fromkeys(last, end)
    for step, op in enumerate(model.operators):
        for index in op.inputs:
            if index in last:
                last[index] = step
        for index in op.outputs:
            if index in last:
                first[index] = min(first[index], step)
                last[index] = max(last[index], step)
    for index in model.inputs:
        if index in last:
            first[index], last[index] = 0, end
    for index in model.outputs:
        if index in last:
            last[index] = end
    sizes = {index: align(model.tensors[index].nbytes) for index in last}
    peak = sum(sizes[index] for index in model.inputs if index in sizes)
    for step, op in enumerate(model.operators):
        alive = sum(size for i, size in sizes.items() if first[i] <= step <= last[i])
        peak = max(peak, alive - _shared(model, op, step, last, sizes))
    return peak


def _shared(
    model: TfliteModel, op: Operator, step: int, last: dict[int, int], sizes: dict[int, int]
) -> int:
    """Bytes that an operator computed in place does not need twice.

    Reshapes share even when the input lives on; sums only when it dies here.
    """
    if op.code not in _IN_PLACE or op.outputs[0] not in sizes:
        return 0
    output = model.tensors[op.outputs[0]]
    lives_on = op.code in ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST")
    for index in op.inputs:
        same = index in sizes and model.tensors[index].nbytes == output.nbytes
        if same and (lives_on or last[index] == step):
            return sizes[index]
    return 0


def span_bytes(blocks: dict[int, tuple[int, int]], scratch: list[tuple[int, int]]) -> int:
    """Bytes from the first to the last byte of the arena.

    Args:
        blocks: address and size of the file's own activations, by tensor.
        scratch: the same of the kernels' scratch tensors; those that do not touch the arena
            (they lie in other heap blocks) are left out.

    Raises:
        ToolError: when there are no blocks, or they are too far apart for one arena.
    """
    if not blocks:
        raise ToolError("the interpreter shows no activation tensors")
    low = min(address for address, _ in blocks.values())
    high = max(address + size for address, size in blocks.values())
    limit = sum(align(size) for size in [s for _, s in blocks.values()] + [s for _, s in scratch])
    if high - low > limit:
        raise ToolError("the activation tensors do not lie in one arena")
    changed = True
    while changed:
        changed = False
        for address, size in scratch:
            if (address - low) % ALIGNMENT:
                continue
            above = high < address + size and address <= align(high - low) + low
            below = address < low and address + align(size) >= low
            if above or below:
                low, high, changed = min(low, address), max(high, address + size), True
    return high - low


def measure_arena(
    path: Path, *, log: Path, runtime: Runtime = "litert", timeout_s: float = 120.0
) -> Arena:
    """Measure a file in a fresh process.

    Args:
        log: the worker's standard error is appended here.

    Raises:
        ToolError: the worker failed, or the runtime is missing.
        SourceError: the file is damaged.
    """
    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.runtime import runtime_version

    bound = lower_bound_bytes(read_model(path))
    version = runtime_version(runtime)
    answer = call(WORKER, {"file": str(path), "runtime": runtime}, log, timeout_s)
    return Arena(
        measured_bytes=answer["measured_bytes"],
        lower_bound_bytes=bound,
        peak_rss_growth_bytes=answer["peak_rss_growth_bytes"],
        runtime=version,
    )
