"""A microcontroller: tflite-micro's interpreter, planner and reference kernels on this machine.

Outputs are those of tflite-micro's own kernels, arena figures those of its own allocator; vendors'
kernels (CMSIS-NN) are bit-exact with them by their makers' word, which nobody checks here.

The arena is what the allocator reports, and then tried: with that many bytes the model runs, with
1% less it must not. Pointers are 64 bits wide here: a 32-bit microcontroller needs somewhat less
for the interpreter's structures and the same for activations.

Cost: none. tflite-micro's reference kernels on a desktop CPU say nothing about a microcontroller,
and there is no simulator of one here, so :meth:`TfliteMicro.cost` answers Inconclusive.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.devices.device import Cost, Place, Provenance, device
from edgefuse.devices.script import Finished, run_script
from edgefuse.devices.setup.pins import TFLITE_MICRO
from edgefuse.devices.setup.venv import interpreter, make_environment
from edgefuse.errors import Inconclusive, StageError, ToolError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Target
    from edgefuse.tflite.read import TfliteModel

    Array = np.ndarray[Any, Any]

WORKER = "edgefuse.devices.tflite_micro_worker"
TIMEOUT_S = 600.0
_SAMPLES_A_PROCESS = 32
_STEP = 16  # The arena's alignment, in bytes.
_SPARE_BYTES = 16 << 20
_TOO_SMALL = ("Failed to allocate", "Failed to resize buffer", "is too small", "Arena size")
_UNKNOWN = re.compile(r"Failed to get registration from op code (\w+)")
_TOTAL = re.compile(r"Arena allocation total (\d+) bytes")
_HEAD = re.compile(r"Arena allocation head (\d+) bytes")


def prepare(target: Target, folder: Path) -> Iterator[str]:
    """tflite-micro in a private environment."""
    yield from make_environment(TFLITE_MICRO, folder)


def needs(target: Target, folder: Path) -> dict[str, bool]:
    return {TFLITE_MICRO.versions: TFLITE_MICRO.folder(folder).is_dir()}


@device(prepare=prepare, needs=needs)
class TfliteMicro:
    provenance: Provenance = "measured"

    def __init__(self, target: Target, place: Place) -> None:
        self._target = target
        self._place = place
        self._runs = itertools.count()

    def describe(self) -> str:
        return f"tflite-micro {TFLITE_MICRO.pins[0].version}, reference kernels"

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        from edgefuse.tflite.read import read_model

        source = read_model(model)
        names = [name for name, _ in source.signature_outputs]
        for results in self._batches(model, source, feeds):
            for row in results:
                places = (source.outputs.index(i) for _, i in source.signature_outputs)
                yield dict(zip(names, (row[str(place)] for place in places)))

    def cost(
        self,
        models: Sequence[Path],
        feeds: Sequence[Mapping[str, Array]],
        *,
        processes: int,
        rounds: int,
    ) -> Cost:
        raise Inconclusive(
            f"{self._target.name}: nothing here tells how long a microcontroller takes: "
            "tflite-micro runs, but on this machine's CPU",
            hint=f"give it none (gates.targets.{self._target.name}.latency: null), or measure on "
            "the board",
        )

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        """What the allocator reports, after it was tried: 1% less must fail.

        Raises:
            ToolError: the report does not hold.
        """
        from edgefuse.devices.measure.arena import Arena
        from edgefuse.devices.measure.bench_worker import random_feeds
        from edgefuse.tflite.read import read_model, signature_of

        source = read_model(model)
        feed = random_feeds(signature_of(source), 0)
        answer, finished = self._generous(model, source, [feed])
        found = _TOTAL.search(finished.words)
        if found is None:
            raise ToolError("tflite-micro did not report its arena", where=str(self._place.log))
        total = self._least(model, source, feed, int(found[1]))
        head = _HEAD.search(finished.words)
        return (
            Arena(
                measured_bytes=total,
                lower_bound_bytes=least_bytes(source),
                peak_rss_growth_bytes=answer["peak_rss_growth_bytes"],
                runtime=f"{self.describe()}, 64-bit pointers",
                head_bytes=None if head is None else int(head[1]),
            ),
            "measured",
        )

    def runs_in(self, model: Path, arena_bytes: int) -> bool:
        """Whether the model runs in an arena of that many bytes."""
        from edgefuse.devices.measure.bench_worker import random_feeds
        from edgefuse.tflite.read import read_model, signature_of

        source = read_model(model)
        feed = random_feeds(signature_of(source), 0)
        return self._run(model, source, [feed], arena_bytes)[0] is not None

    def _least(
        self, model: Path, source: TfliteModel, feed: Mapping[str, Array], reported: int
    ) -> int:
        """The least arena that runs: the reported one, or in steps of its alignment beside it."""

        def runs(size: int) -> bool:
            return self._run(model, source, [feed], size)[0] is not None

        low, high = 0, reported
        while not runs(high):
            low, high = high, high + max(_STEP, reported // 100)
            if high > reported * 1.1 + 64 * _STEP:
                raise ToolError(
                    f"tflite-micro reports an arena of {reported} bytes and does not run in it",
                    where=str(self._place.log),
                )
        below = reported * 99 // 100
        if low == 0 and not runs(below):
            return reported
        low = low or below if not runs(below) else 0
        while high - low > _STEP:
            middle = (low + high) // 2 // _STEP * _STEP
            if middle <= low:
                break
            low, high = (low, middle) if runs(middle) else (middle, high)
        return high

    def _batches(
        self,
        model: Path,
        source: TfliteModel,
        feeds: Iterable[Mapping[str, Array]],
    ) -> Iterator[list[dict[str, Array]]]:
        """Results of the feeds, a process for every few of them."""
        waiting = iter(feeds)
        while batch := list(itertools.islice(waiting, _SAMPLES_A_PROCESS)):
            yield self._generous(model, source, batch)[0]["rows"]

    def _generous(
        self,
        model: Path,
        source: TfliteModel,
        feeds: Sequence[Mapping[str, Array]],
    ) -> tuple[dict[str, Any], Finished]:
        """Run with more memory than it can need.

        Raises:
            StageError: tflite-micro refuses the model.
        """
        size = 2 * least_bytes(source) + len(source.data) // 4 + _SPARE_BYTES
        for times in (1, 8):
            # The allocator's report is exact for multiples of its alignment only.
            room = times * size // _STEP * _STEP
            answer, finished = self._run(model, source, feeds, room)
            if answer is not None:
                return answer, finished
            if not any(text in finished.words for text in _TOO_SMALL):
                break
        raise _refusal(source, finished, model)

    def _run(
        self,
        model: Path,
        source: TfliteModel,
        feeds: Sequence[Mapping[str, Array]],
        arena_bytes: int,
    ) -> tuple[dict[str, Any] | None, Finished]:
        """One process; None when the model did not run in it."""
        import numpy as np

        from edgefuse.tflite.read import signature_of
        from edgefuse.tflite.runtime import to_input

        python = interpreter(TFLITE_MICRO, self._place.prepared, self._target.name)
        worker = importlib.util.find_spec(WORKER)
        if worker is None or worker.origin is None:
            raise ToolError(f"{WORKER} is missing", hint="install edgefuse again")
        specs = {spec.name: spec for spec in signature_of(source).inputs}
        place = {i: k for k, i in enumerate(source.inputs)}
        arrays = {
            f"{sample}/{place[index]}": to_input(feed[name], specs[name], str(model))
            for sample, feed in enumerate(feeds)
            for name, index in source.signature_inputs
        }
        folder = self._place.work / f"tflm-{next(self._runs)}"
        folder.mkdir(parents=True)
        paths = {name: folder / name for name in ("feeds.npz", "results.npz", "answer.json")}
        np.savez(paths["feeds.npz"], **arrays)
        job = {
            "file": str(model.absolute()),
            "arena_bytes": arena_bytes,
            "outputs": len(source.outputs),
            "feeds": str(paths["feeds.npz"].absolute()),
            "results": str(paths["results.npz"].absolute()),
            "answer": str(paths["answer.json"].absolute()),
        }
        finished = run_script(
            [python, "-I", worker.origin], self._place.log, timeout_s=TIMEOUT_S, job=job
        )
        answer: dict[str, Any] | None = None
        if finished.code == 0:
            answer = json.loads(paths["answer.json"].read_text("utf-8"))
            rows: list[dict[str, Array]] = [{} for _ in feeds]
            with np.load(paths["results.npz"]) as held:
                for key in held.files:
                    sample, _, name = key.partition("/")
                    rows[int(sample)][name] = held[key]
            answer["rows"] = rows
        for path in paths.values():
            path.unlink(missing_ok=True)
        folder.rmdir()
        return answer, finished


def least_bytes(source: TfliteModel) -> int:
    """The most bytes of activations alive at once, as tflite-micro plans them.

    Unlike LiteRT it overwrites model inputs after their last use, aligns to 16 bytes and computes
    nothing in place, so the bound of :mod:`edgefuse.devices.measure.arena` is none here.
    """
    from edgefuse.devices.measure.arena import arena_tensors

    end = len(source.operators)
    sizes = {t.index: -(-t.nbytes // _STEP) * _STEP for t in arena_tensors(source)}
    first = dict.fromkeys(sizes, end)
    last = dict.fromkeys(sizes, -1)
    for step, op in enumerate(source.operators):
        for index in (*op.inputs, *op.outputs):
            if index in sizes:
                first[index], last[index] = min(first[index], step), max(last[index], step)
    for index in source.inputs:
        first[index] = 0
    for index in source.outputs:
        last[index] = end
    alive = (sum(n for i, n in sizes.items() if first[i] <= k <= last[i]) for k in range(end))
    return max(alive, default=0)


def _refusal(source: TfliteModel, finished: Finished, model: Path) -> StageError:
    """What tflite-micro has against the model, the operators by name where it names one."""
    unknown = set(_UNKNOWN.findall(finished.words))
    labels = [op.label for op in source.operators if op.code in unknown]
    if unknown:
        named = ", ".join(labels or sorted(unknown))
        return StageError(
            f"tflite-micro has no kernel for {named}",
            hint="replace the operator before conversion, or let the board's firmware register it",
            where=str(model),
        )
    native = finished.words.split("Traceback")[0]
    told = [line.strip() for line in native.splitlines() if line.strip()]
    end = f" (signal {-finished.code})" if finished.code < 0 else ""
    said = "; ".join(told[:3]) or finished.last_words
    return StageError(f"tflite-micro cannot run the model{end}: {said}", where=str(model))
