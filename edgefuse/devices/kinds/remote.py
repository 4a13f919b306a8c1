"""A board behind ssh or adb: the runner there, under the installation's lock.

What a push runs golden vectors with (:mod:`edgefuse.devices.program`) runs the gates' models too,
in the folder ``.gate`` of the installation. Results and times are the board's own: ``measured``.
The lock is held while models run, so that no push disturbs a measurement; what else the board does
is told in ``conditions``: load, governor and temperatures before and after, where they can be read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import digest_file
from edgefuse.devices.device import Cost, Place, Provenance, device
from edgefuse.devices.measure.fingerprint import INT8_DOT
from edgefuse.devices.program import Board, program_of
from edgefuse.devices.push.device_lock import GUARD, locked
from edgefuse.devices.push.installation import Installation
from edgefuse.devices.runner_client import Completed, Runner
from edgefuse.devices.setup.board import board_files, make_board_files
from edgefuse.devices.setup.wheels import LITERT_AARCH64
from edgefuse.devices.transport import open_transport, place_of, put, refuse, script
from edgefuse.errors import DeviceUnavailable

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Target

    Array = np.ndarray[Any, Any]

WAIT_S = 60.0
_FEEDS_A_START = 64
_TIMEOUT_S = 3600.0
_LIMIT = 1 << 30
_FOLDER = GUARD + "mkdir -p .gate && cd .gate && rm -f outputs*.raw"
_RUN = 'cd "$1" || exit 3; shift; exec "$@"'
_FACTS = """
c=/sys/devices/system/cpu/cpu0/cpufreq
[ -r $c/scaling_governor ] && echo "governor $(cat $c/scaling_governor)"
[ -r $c/scaling_cur_freq ] && echo "frequency_khz $(cat $c/scaling_cur_freq)"
for z in /sys/class/thermal/thermal_zone*/temp; do [ -r "$z" ] && echo "heat $(cat "$z")"; done
[ -r /proc/loadavg ] && read -r load rest </proc/loadavg && echo "load $load"
[ -r /proc/cpuinfo ] && while IFS= read -r line; do
    case $line in model\\ name*|Hardware*|Model*|Features*|flags*) echo "cpu $line";; esac
done </proc/cpuinfo
exit 0
"""
_VERSION = "from importlib.metadata import version; import sys; print(version(sys.argv[1]))"


def prepare(target: Target, prepared: Path) -> Iterator[str]:
    """The runner and its runtime, where the board's own Python does not run the models."""
    if target.python is None:
        yield from make_board_files(target, prepared)


def needs(target: Target, prepared: Path) -> dict[str, bool]:
    if target.python is not None:
        return {}
    try:
        board_files(target, prepared)
    except DeviceUnavailable:
        return {"the runner, its runtime and, for adb, their C library": False}
    return {"the runner, its runtime and, for adb, their C library": True}


@device(prepare=prepare, needs=needs)
class Remote:
    provenance: Provenance = "measured"

    def __init__(self, target: Target, place: Place) -> None:
        self._target = target
        self._place = place
        self._calls = itertools.count()
        self._transport = open_transport(target)
        self._described = ""

    def describe(self) -> str:
        if not self._described:
            facts = self._facts()
            self._described = f"{self._runtime()} on {facts['cpu'] or self._target.architecture}"
        return self._described

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        remaining = iter(feeds)
        while taken := list(itertools.islice(remaining, _FEEDS_A_START)):
            yield from self._runner().outputs(model, taken, self._folder())

    def cost(
        self,
        models: Sequence[Path],
        feeds: Sequence[Mapping[str, Array]],
        *,
        processes: int,
        rounds: int,
    ) -> Cost:
        """Every process invokes the files in turn, the order reversed from round to round."""
        before = self._facts()
        forth = list(range(len(models)))
        order = [k for n in range(rounds) for k in (forth if n % 2 == 0 else forth[::-1])]
        rows: list[list[tuple[float, ...]]] = [[] for _ in models]
        for _ in range(processes):
            answer = self._runner().invoke(models, feeds, self._folder(), order=order, warmup=3)
            for k, row in enumerate(rows):
                mine = [ns for ns, which in zip(answer.times_ns, order, strict=True) if which == k]
                row.append(tuple(ns / 1e6 for ns in mine))
        after = self._facts()
        conditions = {
            "runtime": self._runtime(),
            "kernels": self._target.kernels,
            "threads": self._target.threads,
            "cpu": before["cpu"],
            "int8_dot_product": before["int8_dot_product"],
            "governor": before["governor"],
            "frequency_khz": [before["frequency_khz"], after["frequency_khz"]],
            "temperatures_c": [before["temperatures_c"], after["temperatures_c"]],
            "load": [before["load"], after["load"]],
            "processes": processes,
            "rounds": rounds,
        }
        return Cost("ms", "measured", tuple(map(tuple, rows)), conditions=conditions)

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        """As on this machine, with the board's built-in kernels and their scratch."""
        from edgefuse.devices.measure.arena import (
            Arena,
            arena_tensors,
            lower_bound_bytes,
            span_bytes,
        )
        from edgefuse.devices.measure.bench_worker import random_feeds
        from edgefuse.tflite.read import read_model, signature_of

        source = read_model(model)
        feed = random_feeds(signature_of(source), 0)
        runner = replace(self._runner(), kernels="builtin")
        answer = runner.invoke([model], [feed], self._folder(), order=[0], flags=["--tensors"])
        places = [(int(a), int(b)) for a, b in answer.models[0]["tensors"]]
        own = {t.index: places[t.index] for t in arena_tensors(source) if places[t.index][0]}
        scratch = [place for place in places[len(source.tensors) :] if all(place)]
        measured = span_bytes(own, scratch)
        peak = answer.peak_rss_bytes
        return Arena(measured, lower_bound_bytes(source), peak, self._runtime()), "measured"

    def _folder(self) -> Path:
        """A new folder for one start."""
        return self._place.work / f"remote{next(self._calls)}"

    def _runtime(self) -> str:
        if self._target.python is None:
            return f"{LITERT_AARCH64.package} {LITERT_AARCH64.version}"
        name = "ai-edge-litert" if self._target.runtime == "litert" else "tflite-runtime"
        done = self._transport.run([self._target.python, "-c", _VERSION, name])
        if done.code:
            raise DeviceUnavailable(
                f"{self._target.python} there has no {name}",
                hint=f"install it there: pip install {name}",
                where=self._transport.where,
            )
        return f"{name} {done.text.strip()}"

    def _facts(self) -> dict[str, Any]:
        """What the board tells of itself; None for what it does not."""
        done = script(self._transport, _FACTS)
        rows = [line.partition(" ")[::2] for line in done.text.splitlines()]
        cpus = [value.partition(":")[::2] for key, value in rows if key == "cpu"]
        told = {key: value for key, value in rows if key not in ("cpu", "heat")}
        named = {key.strip(): value.strip() for key, value in cpus}
        flags = set((named.get("Features") or named.get("flags") or "").split())
        name = next((named[k] for k in ("model name", "Model", "Hardware") if k in named), "")
        return {
            "governor": told.get("governor", "unknown"),
            "frequency_khz": int(told["frequency_khz"]) if "frequency_khz" in told else None,
            "temperatures_c": [int(v) / 1000 for k, v in rows if k == "heat" and v.isdigit()],
            "load": float(told["load"]) if "load" in told else None,
            "cpu": name,
            "int8_dot_product": bool(INT8_DOT & flags) if flags else None,
        }

    def _runner(self) -> Runner:
        target = self._target
        return Runner(self._start, target.name, target.kernels, target.threads, _TIMEOUT_S)

    def _start(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        send: Sequence[str],
        fetch: Sequence[str],
        timeout_s: float,
    ) -> Completed:
        """Files over, the program there, files back; see :class:`runner_client.Start`."""
        at = Installation(self._transport, place_of(self._target))
        state = at.state()
        at.require_machine(state, self._target.architecture)
        at.make()
        program = program_of(self._target, self._place.prepared)
        with locked(self._transport, at.root, state.boot, wait_s=WAIT_S) as lock:
            board = Board(at, program, self._target.threads)
            board.install(lock.owner)
            made = script(self._transport, _FOLDER, at.root, lock.owner)
            if made.code:
                refuse(made, "cannot make a folder for the gates", at.where)
            work = f"{at.root}/.gate"
            for name in send:
                put(self._transport, folder / name, f"{work}/{name}", digest_file(folder / name))
            words = ["sh", "-c", _RUN, "edgefuse", work, *board.start, *arguments]
            done = self._transport.run(words, timeout_s=timeout_s)
            if not done.code:
                for name in fetch:
                    (folder / name).write_bytes(self._transport.read(f"{work}/{name}", _LIMIT))
        with self._place.log.open("ab") as log:
            log.write(done.err.encode())
        return Completed(done.code, done.out, done.err.encode())
