"""The kernel paths that this machine can play, and those that it cannot, with the reason.

A path is a runtime with a set of kernels: the interpreters beside edgefuse, each with its
reference, built-in and default kernels, and every target that is emulated or simulated. Boards
behind ssh or adb are played only when they are named: others may be using them.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgefuse.child import call
from edgefuse.devices.device import Place, Provenance, open_device

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.target import Target

    Array = np.ndarray[Any, Any]

WORKER = "edgefuse.devices.measure.kernel_worker"
TIMEOUT_S = 600.0
KERNELS = ("reference", "builtin", "default")
_LOCAL = {
    "litert": "ai-edge-litert",
    "tflite_runtime": "tflite-runtime",
    "tensorflow": "tensorflow",
}
_REMEDY = {
    "litert": "pip install ai-edge-litert",
    "tflite_runtime": 'pip install "edgefuse[legacy-runtime]"',
    "tensorflow": 'pip install "edgefuse[convert]"',
}
_SAID = {
    "reference": "reference kernels",
    "builtin": "built-in kernels, no delegate",
    "default": "default kernels",
}


class Player(Protocol):
    """What a path must offer; every :class:`~edgefuse.devices.device.Device` does."""

    @property
    def provenance(self) -> Provenance: ...

    def describe(self) -> str: ...

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]: ...


@dataclass(frozen=True)
class KernelPath:
    """One path.

    Attributes:
        name: ``litert-reference``, or a target's name.
        player: None when it cannot be played here.
        reason: why not, and the remedy.
    """

    name: str
    player: Player | None
    reason: str = ""


class LocalKernels:
    """An interpreter beside edgefuse, in a process of its own: its crash is a result, not ours."""

    provenance: Provenance = "measured"

    def __init__(self, runtime: str, kernels: str, place: Place) -> None:
        self._runtime, self._kernels, self._place = runtime, kernels, place
        self._runs = itertools.count()

    def describe(self) -> str:
        name = _LOCAL[self._runtime]
        machine = platform.machine()
        return f"{name} {metadata.version(name)}, {_SAID[self._kernels]}, {machine}"

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        import numpy as np

        stem = f"{self._runtime}-{self._kernels}-{next(self._runs)}"
        given = self._place.work / f"{stem}-feeds.npz"
        results = self._place.work / f"{stem}-results.npz"
        rows = list(feeds)
        arrays = {f"{k}/{name}": value for k, row in enumerate(rows) for name, value in row.items()}
        np.savez(given, **arrays)
        job = {
            "runtime": self._runtime,
            "kernels": self._kernels,
            "file": str(model.absolute()),
            "feeds": str(given.absolute()),
            "results": str(results.absolute()),
        }
        try:
            call(WORKER, job, self._place.log, TIMEOUT_S)
            made: list[dict[str, Array]] = [{} for _ in rows]
            with np.load(results) as held:
                for key in held.files:
                    sample, _, name = key.partition("/")
                    made[int(sample)][name] = held[key]
        finally:
            given.unlink(missing_ok=True)
            results.unlink(missing_ok=True)
        yield from made


def kernel_paths(
    targets: Sequence[Target], place: Place, named: Sequence[str] = ()
) -> list[KernelPath]:
    """Every path, playable or not, the reference kernels first.

    Args:
        targets: those that may be played.
        named: boards that may be reached.
    """
    paths = [_local(runtime, kernels, place) for runtime in _LOCAL for kernels in KERNELS]
    for target in targets:
        if target.device != "host":
            paths.append(_of_target(target, place, named))
    return paths


def _local(runtime: str, kernels: str, place: Place) -> KernelPath:
    name = f"{runtime.replace('_', '-')}-{kernels}"
    try:
        metadata.version(_LOCAL[runtime])
    except metadata.PackageNotFoundError:
        return KernelPath(name, None, f"not installed: {_REMEDY[runtime]}")
    return KernelPath(name, LocalKernels(runtime, kernels, place))


def _of_target(target: Target, place: Place, named: Sequence[str]) -> KernelPath:
    if target.device == "ethos_u":
        said = "no simulator: by its specification it is bit-exact with the reference kernels"
        return KernelPath(target.name, None, said)
    if target.device == "edgetpu":
        return KernelPath(target.name, None, "no simulator, and its arithmetic is not documented")
    if target.device == "cuda":
        return KernelPath(target.name, None, "it runs the fused graph, not the .tflite file")
    if target.device == "remote" and target.name not in named:
        return KernelPath(target.name, None, f"a board: name it with --path {target.name}")
    work = place.work / target.name
    work.mkdir(parents=True, exist_ok=True)
    return KernelPath(target.name, open_device(target, work, place.log))
