"""This machine: LiteRT or tflite-runtime in this process, latency in fresh ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgefuse.devices.device import Cost, Place, Provenance, device

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Target
    from edgefuse.tflite.runtime import Runtime

    Array = np.ndarray[Any, Any]


@device()
class Host:
    provenance: Provenance = "measured"

    def __init__(self, target: Target, place: Place) -> None:
        self._target = target
        self._place = place
        self._runtime = cast("Runtime", target.runtime)

    def describe(self) -> str:
        from edgefuse.tflite.runtime import runtime_version

        return runtime_version(self._runtime)

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        from edgefuse.tflite.runtime import open_model

        opened = open_model(model, self._runtime, self._target.threads, self._target.kernels)
        for feed in feeds:
            yield opened.run(feed)

    def cost(
        self,
        models: Sequence[Path],
        feeds: Sequence[Mapping[str, Array]],
        *,
        processes: int,
        rounds: int,
    ) -> Cost:
        import numpy as np

        from edgefuse.devices.measure.bench import time_files
        from edgefuse.devices.measure.fingerprint import has_int8_dot_product

        kept = []
        for number, feed in enumerate(feeds):
            kept.append(self._place.work / f"feed{number}.npz")
            np.savez(kept[-1], **feed)
        timed = time_files(
            models,
            log=self._place.log,
            runtime=self._runtime,
            kernels=self._target.kernels,
            threads=self._target.threads,
            processes=processes,
            rounds=rounds,
            feeds=kept,
        )
        conditions = {**asdict(timed.conditions), "int8_dot_product": has_int8_dot_product()}
        return Cost("ms", "measured", timed.times_ms, conditions=conditions)

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        from edgefuse.devices.measure.arena import measure_arena

        return measure_arena(model, log=self._place.log, runtime=self._runtime), "measured"
