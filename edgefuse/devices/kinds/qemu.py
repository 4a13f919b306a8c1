"""A board played by qemu's user-mode emulation: its own kernels, its own instructions.

Problem: a gate on this machine says little about a board, as another CPU gets other kernels. Under
emulation the board's own runtime runs, built for its architecture, and chooses its kernels by the
CPU that ``emulator.cpu`` names. So outputs are those of the board, bit by bit, and count as
``measured``: integer kernels leave no room, and float arithmetic is IEEE's here as there.

Time is not: an emulator's milliseconds say nothing. Cost is the number of instructions of an
invoke, ``emulated-count``: after a first invoke that sets things up, each model runs in a process
of its own at fixed addresses and in an empty environment, and a plugin counts. With one thread
and XNNPACK the count is the same in every run; ``conditions`` says whether it was (``exact``). It
holds no cache misses and no stalls: two networks with the same count may differ in time.

Scope: LiteRT on aarch64 through the C runner, operators told apart (XNNPACK's own ones, or the
file's with other kernels); tflite-runtime on armv7 through Python. Left alone: time, temperature,
and what several threads cost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.devices.device import Cost, Place, Provenance, device
from edgefuse.devices.measure.count import Operator, invokes, operators
from edgefuse.devices.runner_client import SOURCES, Completed, Runner, last_line
from edgefuse.devices.setup import debian, foreign, programs, wheels
from edgefuse.devices.setup.board import AARCH64, GUEST
from edgefuse.devices.setup.debian import Packages
from edgefuse.devices.setup.foreign import program
from edgefuse.devices.setup.piece import is_whole, make_piece, require_piece, together
from edgefuse.devices.setup.wheels import Wheel
from edgefuse.errors import RecipeError, ToolError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Target

    Array = np.ndarray[Any, Any]

_COUNTED = 2
_FEEDS_A_PROCESS = 128
_LEAST_FEEDS = 8
_PROCESSES = 4
_COMPILE_S = 600.0
_TIMEOUT_S = 3600.0
_LIST_S = 30.0
_MARKS = "marks.txt"
_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class _Board:
    """What an architecture needs.

    Attributes:
        emulator: qemu's program.
        libraries: where the guest's own system lies in the unpacked packages.
        clock: number of the system call that reads the clock.
    """

    packages: Packages
    wheel: Wheel
    emulator: str
    libraries: str
    clock: int


_BOARDS: Mapping[str, _Board] = {
    "aarch64": _Board(
        AARCH64,
        wheels.LITERT_AARCH64,
        "qemu-aarch64",
        GUEST,
        113,
    ),
    "armv7": _Board(
        Packages(
            "armv7",
            ("qemu-user", "python3-minimal:armhf", "python3-numpy:armhf", "libstdc++6:armhf"),
            foreign="armhf",
            unwanted=("usr/share", "usr/bin/qemu-[b-z]*", "usr/bin/qemu-a[al]*"),
        ),
        wheels.TFLITE_RUNTIME_ARMV7,
        "qemu-arm",
        ".",
        403,
    ),
}


def prepare(target: Target, prepared: Path) -> Iterator[str]:
    """Emulator, runtime, runner and plugin of a target, all at once."""
    board = _board(target)
    debian.check(board.packages, prepared)
    programs.check_plugin(prepared)
    works = [
        debian.make_packages(board.packages, prepared),
        wheels.make_wheel(board.wheel, prepared),
        programs.make_plugin(prepared),
    ]
    if target.runtime == "litert":
        works.append(programs.make_runner(prepared, "aarch64"))
    yield from together(works)
    if target.runtime != "litert":
        yield from make_piece(_bytecode(board, prepared), lambda part: _compile(target, part))


def needs(target: Target, prepared: Path) -> dict[str, bool]:
    board = _board(target)
    found = {
        f"{', '.join(board.packages.packages)} (from apt)": board.packages.folder(prepared),
        f"{board.wheel.package} {board.wheel.version} for {board.wheel.platform}": (
            board.wheel.folder(prepared)
        ),
        "the counting plugin (built with cc)": programs.plugin_folder(prepared),
    }
    if target.runtime == "litert":
        built = programs.runner_folder(prepared, "aarch64")
        found["the runner (built with Zig's C compiler)"] = built
    else:
        found["the guest's Python, compiled and proven to load"] = _bytecode(board, prepared)
    return {what: is_whole(folder) for what, folder in found.items()}


def _bytecode(board: _Board, prepared: Path) -> Path:
    """Where the guest's Python finds its modules compiled: half of the time of a start."""
    return prepared / "bytecode" / board.packages.folder(prepared).name


def _compile(target: Target, part: Path) -> Iterator[str]:
    """Import everything once under emulation, keeping the bytecode in ``part``."""
    yield "compiling the guest's Python"
    place = Place(part, part / "log", part.parents[1])
    start = Qemu(target, place)._command(False, bytecode=part)
    script = start.index(str(SOURCES / "runner.py"))
    done = foreign.run([*start[:script], "-c", "import tflite_runtime.interpreter"], _COMPILE_S)
    if done.returncode:
        raise ToolError(f"{target.name}: its runtime does not load: {foreign.said(done.stdout)}")


def _board(target: Target) -> _Board:
    assert target.emulator is not None
    board = _BOARDS[target.emulator.architecture]
    runtime = board.wheel.package.replace("ai-edge-litert", "litert").replace("-", "_")
    if target.runtime != runtime or target.runtime_version not in (None, board.wheel.version):
        raise RecipeError(
            f"{target.name}: emulated {target.emulator.architecture} has "
            f"{board.wheel.package} {board.wheel.version} only",
            hint=f'runtime: {runtime}, runtime_version: "{board.wheel.version}"',
        )
    return board


@device(prepare=prepare, needs=needs)
class Qemu:
    provenance: Provenance = "measured"

    def __init__(self, target: Target, place: Place) -> None:
        self._target = target
        self._place = place
        self._calls = itertools.count()
        self._running: set[subprocess.Popen[bytes]] = set()

    def describe(self) -> str:
        wheel = _board(self._target).wheel
        return f"{wheel.package} {wheel.version} on emulated {self._cpu}"

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        """As in the Protocol; feeds are shared among a few processes, their order is kept."""
        runner = self._runner()
        processes = min(_PROCESSES, len(os.sched_getaffinity(0)))
        remaining = iter(feeds)
        with self._pool(processes) as pool:
            while taken := list(itertools.islice(remaining, processes * _FEEDS_A_PROCESS)):
                size = max(_LEAST_FEEDS, -(-len(taken) // processes))
                jobs = [
                    pool.submit(runner.outputs, model, taken[k : k + size], self._folder())
                    for k in range(0, len(taken), size)
                ]
                for job in jobs:
                    yield from job.result()

    def cost(
        self,
        models: Sequence[Path],
        feeds: Sequence[Mapping[str, Array]],
        *,
        processes: int,
        rounds: int,
    ) -> Cost:
        told = self._target.runtime == "litert"
        with self._pool(min(2, len(os.sched_getaffinity(0)))) as pool:
            counts = [pool.submit(self._count, *pair) for pair in zip(models, feeds, strict=True)]
            parts = [pool.submit(self._operators, *pair) for pair in zip(models, feeds) if told]
            counted = [job.result() for job in counts]
            split = [job.result() for job in parts]
        spread = [max(row) - min(row) for row in counted]
        return Cost(
            unit="instructions",
            provenance="emulated-count",
            rows=tuple(((float(row[-1]),),) for row in counted),
            operators=tuple(tuple(float(o.instructions) for o in ops) for ops in split),
            conditions={
                "runtime": self.describe(),
                "kernels": self._target.kernels,
                "threads": self._target.threads,
                "cpu": self._cpu,
                "emulator": self._emulator(),
                "exact": not any(spread),
                "spread_instructions": spread,
                "operators": [[o.name for o in ops] for ops in split],
            },
        )

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        """As on this machine, with the board's built-in kernels and their scratch; growth of
        resident memory is not told under emulation: 0."""
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
        places: list[tuple[int, int]] = [(int(a), int(b)) for a, b in answer.models[0]["tensors"]]
        own = {t.index: places[t.index] for t in arena_tensors(source) if places[t.index][0]}
        scratch = [place for place in places[len(source.tensors) :] if all(place)]
        measured = span_bytes(own, scratch)
        return Arena(measured, lower_bound_bytes(source), 0, self.describe()), "measured"

    @property
    def _cpu(self) -> str:
        assert self._target.emulator is not None
        return self._target.emulator.cpu

    @contextlib.contextmanager
    def _pool(self, size: int) -> Iterator[ThreadPoolExecutor]:
        """Threads that start emulators; what ends it early ends them all, and starts no other."""
        with ThreadPoolExecutor(size) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in tuple(self._running):
                    child.kill()
                raise

    def _folder(self) -> Path:
        """A new folder for one start."""
        return self._place.work / f"qemu{next(self._calls)}"

    def _emulator(self) -> str:
        found = debian.versions(_board(self._target).packages, self._place.prepared)
        name = next(name for name in found if name.startswith("qemu-user:"))
        return f"qemu-user {found[name]}"

    def _count(self, model: Path, feed: Mapping[str, Array]) -> list[int]:
        """Instructions of the invokes after the first."""
        folder = self._folder()
        order = [0] * _COUNTED
        self._runner(counting=True).invoke([model], [feed], folder, order=order, flags=["--marks"])
        counts = invokes((folder / _MARKS).read_text())
        if len(counts) != _COUNTED:
            raise ToolError(f"{self._target.name}: {len(counts)} invokes counted of {_COUNTED}")
        return counts

    def _operators(self, model: Path, feed: Mapping[str, Array]) -> tuple[Operator, ...]:
        folder = self._folder()
        flags = ["--marks", "--operators"]
        runner = self._runner(counting=True)
        answer = runner.invoke([model], [feed], folder, order=[0], flags=flags)
        return operators((folder / _MARKS).read_text(), answer.models[0]["operators"])

    def _runner(self, *, counting: bool = False) -> Runner:
        """The runner under emulation.

        Raises:
            DeviceUnavailable: the target is not set up.
        """
        command = self._command(counting)

        def start(
            folder: Path,
            arguments: Sequence[str],
            *,
            send: Sequence[str],
            fetch: Sequence[str],
            timeout_s: float,
        ) -> Completed:
            return self._start(folder, [*command, *arguments], timeout_s)

        target = self._target
        return Runner(start, target.name, target.kernels, target.threads, _TIMEOUT_S)

    def _command(self, counting: bool, *, bytecode: Path | None = None) -> list[str]:
        """Program and first arguments; ``bytecode`` is where setup lets the guest write it."""
        target, prepared, board = self._target, self._place.prepared, _board(self._target)
        if set(",:") & set(str(prepared)):
            raise ToolError(
                "the emulator cannot work in a folder with a comma or a colon in its name",
                hint="choose another place with EDGEFUSE_CACHE",
                where=str(prepared),
            )
        root = require_piece(board.packages.folder(prepared), "the emulator is", target.name)
        wheel = require_piece(board.wheel.folder(prepared), "its runtime is", target.name)
        plugin = require_piece(programs.plugin_folder(prepared), "the plugin is", target.name)
        host = [f"{root}/lib/x86_64-linux-gnu", f"{root}/usr/lib/x86_64-linux-gnu"]
        # The emulator dies with the thread that waits for it, however this process ends.
        command = [program("setpriv", "it belongs to util-linux"), "--pdeathsig", "KILL"]
        command += [program("setarch", "it belongs to util-linux"), "-R"]
        command += [f"{root}/lib64/ld-linux-x86-64.so.2", "--library-path", ":".join(host)]
        command += [f"{root}/usr/bin/{board.emulator}", "-cpu", self._cpu]
        command += ["-L", str((root / board.libraries).resolve())]
        if counting:
            command += ["-plugin", f"{plugin}/count.so,out={_MARKS},clock={board.clock}"]
        if target.runtime == "litert":
            built = programs.runner(prepared, "aarch64", target.name)
            return [*command, str(built), "--runtime", f"{wheel}/ai_edge_litert/libLiteRt.so"]
        compiled = bytecode or require_piece(_bytecode(board, prepared), "bytecode is", target.name)
        libraries = f"{root}/usr/lib/arm-linux-gnueabihf"
        settings = {
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": f"{wheel}:{root}/usr/lib/python3/dist-packages",
            "PYTHONPYCACHEPREFIX": str(compiled),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries}/blas:{libraries}/lapack",
        }
        if bytecode is None:
            settings["PYTHONDONTWRITEBYTECODE"] = "1"
        given = [text for key, value in settings.items() for text in ("-E", f"{key}={value}")]
        python = [*given, f"{root}{_PYTHON}", "-s", str(SOURCES / "runner.py")]
        return [*command, *python, "--runtime", "tflite_runtime"]

    def _start(self, folder: Path, command: Sequence[str], timeout_s: float) -> Completed:
        pipe = subprocess.PIPE
        try:
            child = subprocess.Popen(
                command, cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise ToolError(
                f"{self._target.name}: the emulator cannot be started: {error.strerror}"
            ) from error
        self._running.add(child)
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"{self._target.name}: the emulator ran longer than {timeout_s:g} s"
            ) from None
        finally:
            child.kill()
            child.wait()
            self._running.discard(child)
        with self._place.log.open("ab") as log:
            log.write(stderr)
        code = child.returncode if child.returncode >= 0 else 128 - child.returncode
        if code == 1 and b"unable to find CPU model" in stderr:
            emulator = command[: command.index("-cpu")]
            listed = foreign.run([*emulator, "-cpu", "help"], _LIST_S).stdout.split()[2:]
            raise RecipeError(
                f"{self._target.name}: the emulator has no CPU called {self._cpu!r}",
                hint=f"emulator.cpu is one of {', '.join(listed)}",
            )
        if code == 1:
            raise ToolError(f"{self._target.name}: {last_line(stderr)}")
        return Completed(code, stdout, stderr)
