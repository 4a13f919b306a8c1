"""The golden vectors of a bundle, run where the bundle lies.

The reference kernels are bit-identical on every CPU, so on the device they must give the golden
outputs to the last bit: anything else is a damaged file, a broken machine or runtime. Where the
golden outputs come from one version's built-in kernels instead (the manifest says so), they may
depart by MOST_STEPS. The kernels that the target itself uses must take the model and run it; how
far they depart from the reference was judged by the accuracy gate, and is told, not judged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgefuse.devices.program import Board
from edgefuse.devices.transport import Transport, refuse, script
from edgefuse.errors import GateFailed, StageError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.target import Target

    Array = np.ndarray[Any, Any]

MOST_STEPS = 1
"""Of the last place, for golden outputs of built-in kernels."""
LIMIT = 1 << 28
_FEEDS = """
cd "$1" || exit 1
rm -rf "$2" && mkdir -p "$2" || exit 1
out=$2/feeds; shift 2
: >"$out" || exit 1
while [ $# -gt 0 ]; do tail -c "+$2" "$1" >>"$out" || exit 1; shift 2; done
"""


@dataclass(frozen=True)
class Golden:
    """The golden vectors of an unpacked bundle here.

    Attributes:
        model: the model's name in the bundle.
        kernels: whose outputs they are: reference or builtin.
        inputs: members of each vector in the order of the model's inputs.
        outputs: the expected outputs of each vector, in the order of the model's outputs.
    """

    model: str
    kernels: str
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[Array, ...], ...]


class Trial(Protocol):
    """Runs a release's model on its golden inputs: [vector][output]."""

    def __call__(self, folder: str, golden: Golden, kernels: str) -> list[list[Array]]: ...


def read_golden(folder: Path, manifest: Mapping[str, Any]) -> Golden:
    """Golden vectors of an unpacked bundle.

    Raises:
        StageError: there are none, or they do not fit its model.
    """
    import numpy as np

    from edgefuse.tflite.read import read_model

    try:
        golden = manifest["golden"]
        model = str(manifest["models"]["int8"])
        source = read_model(folder / model)
        ins = {index: name for name, index in source.signature_inputs}
        outs = {index: name for name, index in source.signature_outputs}
        inputs = [[row["inputs"][ins[i]] for i in source.inputs] for row in golden["vectors"]]
        outputs = [
            [np.load(folder / row["outputs"][outs[i]], allow_pickle=False) for i in source.outputs]
            for row in golden["vectors"]
        ]
        kernels = golden["kernels"]
    except (LookupError, TypeError, OSError, ValueError) as error:
        raise StageError(f"the bundle's golden vectors cannot be read: {error}") from error
    if not outputs or kernels not in ("reference", "builtin"):
        raise StageError("the bundle has no golden vectors", hint="build it again")
    return Golden(model, kernels, tuple(map(tuple, inputs)), tuple(map(tuple, outputs)))


def require_golden(trial: Trial, folder: str, golden: Golden, kernels: str, where: str) -> str:
    """Run them, and judge; a line that says how it went.

    Args:
        folder: the unpacked bundle, on the device.
        kernels: those of the target.

    Raises:
        GateFailed: an output departs.
        StageError: the runtime there refuses the model or fails.
    """
    allowed = 0 if golden.kernels == "reference" else MOST_STEPS
    exact = _departure(trial(folder, golden, golden.kernels), golden, where)
    if exact > allowed:
        raise GateFailed(
            f"a golden vector departs by {exact:g} with the {golden.kernels} kernels",
            hint="the device's runtime, memory or CPU is not sound: the old version stays",
            where=where,
        )
    count = len(golden.outputs)
    line = f"{count} golden vectors: {'bit-exact' if not exact else f'within {exact:g}'}"
    if kernels != golden.kernels:
        departs = _departure(trial(folder, golden, kernels), golden, where)
        line += f"; {kernels} kernels within {departs:g} of them"
    return line


def _departure(found: Sequence[Sequence[Array]], golden: Golden, where: str) -> float:
    import numpy as np

    most = 0.0
    for outputs, expected in zip(found, golden.outputs, strict=True):
        for output, wanted in zip(outputs, expected, strict=True):
            if output.shape != wanted.shape or output.dtype != wanted.dtype:
                raise GateFailed("a golden vector's output has another shape or type", where=where)
            if wanted.dtype.kind == "f" and not np.isfinite(output).all():
                raise GateFailed("a golden vector's output is not finite", where=where)
            if output.tobytes() != wanted.tobytes():
                away = np.abs(output.astype(np.float64) - wanted.astype(np.float64)).max()
                most = max(most, float(away) or 5e-324)
    return most


class HostTrial:
    """In this process, by the runtime that is installed beside edgefuse."""

    def __init__(self, target: Target) -> None:
        if target.runtime not in ("litert", "tflite_runtime") or target.emulator is not None:
            raise UsageError(
                f"target {target.name} is played, not a machine that bundles are put on",
                hint="push to the board itself, over ssh or adb",
            )
        self._target = target

    def __call__(self, folder: str, golden: Golden, kernels: str) -> list[list[Array]]:
        import numpy as np

        from edgefuse.tflite.runtime import open_model

        runtime: Any = self._target.runtime
        set_: Any = kernels
        model = open_model(Path(folder) / golden.model, runtime, self._target.threads, set_)
        source = model.source
        ins = {index: name for name, index in source.signature_inputs}
        outs = {index: name for name, index in source.signature_outputs}
        names = [ins[i] for i in source.inputs]
        found = []
        for row in golden.inputs:
            arrays = [np.load(Path(folder) / member, allow_pickle=False) for member in row]
            outputs = model.run(dict(zip(names, arrays, strict=True)))
            found.append([outputs[outs[i]] for i in source.outputs])
        return found


class BoardTrial:
    """On a device, by the program that was put there. Inputs are the release's own files."""

    def __init__(self, board: Board, transport: Transport, root: str, unpacked: Path) -> None:
        """``unpacked``: the same bundle here, for the lengths of headers."""
        self._board, self._transport, self._unpacked = board, transport, unpacked
        self._work = f"{root}/.trial"

    def __call__(self, folder: str, golden: Golden, kernels: str) -> list[list[Array]]:
        import numpy as np

        words = []
        for row in golden.inputs:
            for member in row:
                words += [member, str(_header_bytes(self._unpacked / member) + 1)]
        done = script(self._transport, _FEEDS, folder, self._work, *words)
        if done.code:
            refuse(done, "cannot prepare the golden vectors", self._transport.where)
        feeds, outputs = f"{self._work}/feeds", f"{self._work}/outputs"
        self._board.run([(f"{folder}/{golden.model}", feeds, outputs)], kernels=kernels)
        data = self._transport.read(outputs, LIMIT)
        self._transport.run(["rm", "-rf", self._work])
        expected = sum(wanted.nbytes for row in golden.outputs for wanted in row)
        if len(data) != expected:
            raise GateFailed(
                f"golden vectors gave {len(data)} bytes instead of {expected}",
                where=self._transport.where,
            )
        found, place = [], 0
        for row_ in golden.outputs:
            arrays = []
            for wanted in row_:
                piece = data[place : place + wanted.nbytes]
                arrays.append(np.frombuffer(piece, wanted.dtype).reshape(wanted.shape))
                place += wanted.nbytes
            found.append(arrays)
        return found


def _header_bytes(path: Path) -> int:
    """Bytes before the data of a .npy file of ours."""
    import numpy as np

    with path.open("rb") as stream:
        npy: Any = np.lib.format
        if npy.read_magic(stream) != (1, 0):
            raise StageError("is no golden vector of edgefuse", where=str(path))
        _, fortran, _ = npy.read_array_header_1_0(stream)
        if fortran:
            raise StageError("is no golden vector of edgefuse", where=str(path))
        return stream.tell()
