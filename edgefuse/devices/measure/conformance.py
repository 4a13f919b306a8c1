"""Do all kernels compute the same numbers? Golden vectors on every kernel path, compared.

Problem: int8 outputs differ by a step or more between runtimes, CPUs and delegates, and a gate on
one of them says nothing about another. Golden are the reference kernels, which are bit-identical
on every CPU that was tried. Each path's outputs are compared with theirs:

    n = max |q - q_golden|   in steps of the output (LSB); bit-exact when n = 0.

Where a path departs, a copy of the file in which every operator's result is an output shows the
first operator, in the file's order, whose result differs. That works for any path, delegates and
emulators too, without a switch for keeping tensors. A delegate may compute differently when more
of its results are asked for: when the copy's own outputs are not the original's, it is said.

Scope: files with one subgraph. Left alone: which path is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.devices.measure.kernel_paths import KernelPath, Player
from edgefuse.errors import DeviceUnavailable, EdgefuseError, Inconclusive, StageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import TfliteModel

    Array = np.ndarray[Any, Any]

GOLDEN_PATHS = ("litert-reference", "litert-builtin")
Label = Literal["bit-exact", "within", "different", "not played", "failed"]
Outputs = dict[str, "Array"]


@dataclass(frozen=True)
class Difference:
    """How far two tensors are apart.

    Attributes:
        largest: in steps for integers, else absolute; infinite where shapes, types or NaN differ.
        share: of the values that differ, 0 to 1.
        unit: of ``largest``: LSB or absolute.
    """

    largest: float
    share: float
    unit: Literal["LSB", "absolute"]


@dataclass(frozen=True)
class Departure:
    """The first operator whose result differs; ``note``: what makes that uncertain."""

    operator: str
    tensor: str
    largest: float
    share: float
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Conformance:
    """What became of one path.

    Attributes:
        label: ``within``: by at most ``max_lsb`` steps.
        vectors: golden vectors that differ.
        reason: why it was not played, or how it failed; else where the search for a departure
            ended without one.
    """

    path: str
    what: str
    provenance: str
    label: Label
    largest: float = 0.0
    share: float = 0.0
    unit: str = "LSB"
    vectors: int = 0
    departure: Departure | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The label in words."""
        if self.label == "within":
            return f"within {self.largest:.0f} LSB"
        return self.label


def difference(found: Array, golden: Array) -> Difference:
    """Compare one tensor with the golden one, bit by bit for floats."""
    import numpy as np

    if found.shape != golden.shape or found.dtype != golden.dtype:
        return Difference(float("inf"), 1.0, "LSB" if golden.dtype.kind in "iu" else "absolute")
    if golden.size == 0:
        return Difference(0.0, 0.0, "LSB")
    if golden.dtype.kind in "iub":
        steps = np.abs(found.astype(np.int64) - golden.astype(np.int64))
        return Difference(float(steps.max()), float((steps > 0).mean()), "LSB")
    other = ~((found == golden) | (np.isnan(found) & np.isnan(golden)))
    gap = np.abs(found[other].astype(np.float64) - golden[other].astype(np.float64))
    largest = float(np.nan_to_num(gap, nan=np.inf).max()) if gap.size else 0.0
    return Difference(largest, float(other.mean()), "absolute")


def apart(found: Mapping[str, Array], golden: Mapping[str, Array]) -> Difference:
    """The largest difference over all outputs."""
    missing = Difference(float("inf"), 1.0, "LSB")
    all_of_them = [
        difference(found[name], value) if name in found else missing
        for name, value in golden.items()
    ]
    return max(all_of_them, key=_severity)


def _severity(gap: Difference) -> tuple[bool, float, float]:
    """Any difference of floats outweighs steps of integers: only the latter may be tolerated."""
    return gap.unit == "absolute" and gap.share > 0, gap.largest, gap.share


def revealed(data: bytes) -> bytes:
    """The same file with every operator's result among its outputs, named ``tINDEX``."""
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import parse_model
    from edgefuse.tflite.signature import with_signature

    model = parse_model(data)
    shown = [i for op in model.operators for i in op.outputs if model.tensors[i].nbytes]
    edit = Edit(data)
    edit.graph.outputs = shown
    return with_signature(
        edit.packed(), dict(model.signature_inputs), {f"t{index}": index for index in shown}
    )


class Reference:
    """The golden outputs, and the golden result of every operator.

    Args:
        player: the reference kernels.
        given: outputs of the same kernels that were stored with the vectors; else they are run.
    """

    def __init__(
        self,
        model: Path,
        feeds: Sequence[Mapping[str, Array]],
        player: Player,
        work: Path,
        given: Sequence[Outputs] | None = None,
    ) -> None:
        self.model, self.feeds, self._player = model, feeds, player
        self.outputs = list(given) if given else list(player.outputs(model, feeds))
        self.copy = work / "revealed.tflite"
        self._inner: dict[int, Outputs] = {}

    def inner(self, vector: int) -> Outputs:
        """The result of every operator on one vector."""
        if not self.copy.exists():
            self.copy.write_bytes(revealed(self.model.read_bytes()))
        if vector not in self._inner:
            (self._inner[vector],) = self._player.outputs(self.copy, [self.feeds[vector]])
        return self._inner[vector]


def conform(
    path: KernelPath, reference: Reference, source: TfliteModel, max_lsb: int
) -> Conformance:
    """Play the golden vectors on one path. Never raises for what the path does."""
    if path.player is None:
        return Conformance(path.name, "", "", "not played", reason=path.reason)
    begin = time.monotonic()
    what, provenance = path.name, path.player.provenance
    try:
        what = path.player.describe()
        outputs = list(path.player.outputs(reference.model, reference.feeds))
        if len(outputs) != len(reference.outputs):
            raise StageError(f"{len(outputs)} results for {len(reference.outputs)} vectors")
    except (DeviceUnavailable, Inconclusive) as error:
        said = f"{error.message}: {error.hint}" if error.hint else error.message
        return Conformance(path.name, what, provenance, "not played", reason=said)
    except EdgefuseError as error:
        return Conformance(path.name, what, provenance, "failed", reason=error.message)
    gaps = [apart(found, golden) for found, golden in zip(outputs, reference.outputs)]
    worst = max(gaps, key=_severity)
    off = [k for k, gap in enumerate(gaps) if gap.share > 0]
    departure, reason = None, ""
    label: Label = "bit-exact"
    if off:
        near = worst.unit == "LSB" and worst.largest <= max_lsb
        label = "within" if near else "different"
        departure, reason = _departure(path.player, reference, source, off[0], outputs[off[0]])
    return Conformance(
        path.name,
        what,
        provenance,
        label,
        worst.largest,
        worst.share,
        worst.unit,
        len(off),
        departure,
        reason,
        round(time.monotonic() - begin, 2),
    )


def _departure(
    player: Player, reference: Reference, source: TfliteModel, vector: int, outputs: Outputs
) -> tuple[Departure | None, str]:
    """The first operator that departs on a vector, or why none is named."""
    try:
        golden = reference.inner(vector)
        (found,) = player.outputs(reference.copy, [reference.feeds[vector]])
    except EdgefuseError as error:
        return None, f"with every result shown it does not run: {error.message}"
    same = all(
        difference(found[f"t{index}"], outputs[name]).share == 0
        for name, index in source.signature_outputs
        if f"t{index}" in found
    )
    note = "" if same else "with every result shown it computes other outputs"
    for op in source.operators:
        for index in op.outputs:
            name = f"t{index}"
            if name in golden and (gap := difference(found[name], golden[name])).share > 0:
                tensor = source.tensors[index].name
                return Departure(op.label, tensor, gap.largest, gap.share, gap.unit, note), ""
    return None, "no operator departs when every result is shown"


def examine(
    model: Path,
    feeds: Sequence[Mapping[str, Array]],
    paths: Sequence[KernelPath],
    work: Path,
    *,
    golden: Sequence[Outputs] | None = None,
    golden_kernels: str = "reference",
    max_lsb: int = 16,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Play every path; plain JSON.

    Args:
        golden: stored outputs of ``golden_kernels``, one a feed; else they are made here.

    Raises:
        StageError: neither the reference nor the built-in kernels run the model.
        DeviceUnavailable: they are not installed.
    """
    from edgefuse.tflite.read import read_model

    source = read_model(model)
    wanted = f"litert-{golden_kernels}"
    reference, name = _reference(model, feeds, paths, work, golden, wanted)
    rows = []
    for path in paths:
        progress(path.name)
        rows.append(conform(path, reference, source, max_lsb))
    return {
        "model": model.name,
        "golden": {
            "kernels": name,
            "stored": golden is not None,
            "vectors": len(feeds),
        },
        "max_lsb": max_lsb,
        "paths": [_plain({**asdict(row), "text": row.text}) for row in rows],
        "played": sum(row.label not in ("not played", "failed") for row in rows),
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: a distance between what cannot be compared is null."""
    for held in (row, row["departure"]):
        if held is not None and held["largest"] == float("inf"):
            held["largest"] = None
    return row


def _reference(
    model: Path,
    feeds: Sequence[Mapping[str, Array]],
    paths: Sequence[KernelPath],
    work: Path,
    golden: Sequence[Outputs] | None,
    wanted: str,
) -> tuple[Reference, str]:
    """The golden outputs, by the built-in kernels where the reference ones lack an operator."""
    from edgefuse.tflite.runtime import missing_kernel

    players = {path.name: path.player for path in paths}
    for name in (wanted, *(other for other in GOLDEN_PATHS if other != wanted)):
        player = players.get(name)
        if player is None:
            continue
        try:
            return Reference(model, feeds, player, work, golden if name == wanted else None), name
        except StageError as error:
            if not missing_kernel(error):
                raise
    raise DeviceUnavailable(
        "LiteRT's kernels are not installed: there is no golden", hint="pip install ai-edge-litert"
    )
