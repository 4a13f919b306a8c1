"""The fused graph as a GPU program: in NumPy on this CPU, or on this machine's GPU.

A model here is the archive of stage ``lower`` (:mod:`edgefuse.cuda.parcel`), not a .tflite file;
feeds are the fused graph's own inputs, as real numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.devices.device import Cost, Place, Provenance, device
from edgefuse.errors import Inconclusive

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Gpu, Target

    Array = np.ndarray[Any, Any]


def needs(target: Target, prepared: Path) -> Mapping[str, bool]:
    from importlib.util import find_spec

    return {"triton (edgefuse[cuda])": find_spec("triton") is not None}


@device(needs=needs)
class Cuda:
    def __init__(self, target: Target, place: Place) -> None:
        assert target.gpu is not None
        self._name = target.name
        self._gpu: Gpu = target.gpu
        self._place = place

    @property
    def provenance(self) -> Provenance:
        return "measured" if self._gpu.runs == "local" else "estimated"

    def describe(self) -> str:
        if self._gpu.runs == "interpreter":
            return "NumPy references of the GPU kernels"
        if self._gpu.runs == "local":
            from edgefuse.cuda.run_gpu import require_gpu

            return require_gpu()
        raise self._nowhere()

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        from edgefuse.cuda.parcel import read

        program, weights = read(model)[0]
        if self._gpu.runs == "nowhere":
            raise self._nowhere()
        runner: Any
        if self._gpu.runs == "local":
            from edgefuse.cuda.run_gpu import Captured

            runner = Captured(program, weights, self._place.work / "sources")
        else:
            from edgefuse.cuda.run_numpy import Runner

            runner = Runner(program, weights)
        for feed in feeds:
            yield runner(feed)

    def cost(
        self,
        models: Sequence[Path],
        feeds: Sequence[Mapping[str, Array]],
        *,
        processes: int,
        rounds: int,
    ) -> Cost:
        if self._gpu.runs != "local":
            raise self._nowhere()
        from edgefuse.cuda.parcel import read
        from edgefuse.cuda.run_gpu import Captured

        captured = []
        for place, (model, feed) in enumerate(zip(models, feeds, strict=True)):
            runner = Captured(*read(model)[0], self._place.work / f"sources{place}")
            runner(feed)
            captured.append(runner)
        # Blocks of rounds take turns in one process: a GPU's clock drifts for all files.
        series = [[r.times_ms(rounds) for r in captured] for _ in range(processes)]
        rows = tuple(tuple(tuple(one[k]) for one in series) for k in range(len(captured)))
        return Cost("ms", "measured", rows, conditions={"gpu": self.describe(), "process": 1})

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        from edgefuse.cuda.parcel import read
        from edgefuse.devices.measure.arena import Arena

        program, _ = read(model)[0]
        planned = program.arena
        found = Arena(
            planned.arena_bytes, planned.bound_bytes, 0, "edgefuse's plan, allocated whole"
        )
        return found, "measured" if self._gpu.runs == "local" else "estimated"

    def _nowhere(self) -> Inconclusive:
        return Inconclusive(
            f"target {self._name}: no device: nothing here runs its programs",
            hint="run on a machine with an NVIDIA GPU (--target cuda-local), or give the gate null "
            f"for this target: gates.targets.{self._name}",
        )
