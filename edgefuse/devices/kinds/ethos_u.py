"""An Arm Ethos-U beside a Cortex-M: results by the reference kernels, figures by Vela.

Vela, Arm's compiler, turns the int8 file into one that the NPU runs, and estimates what that costs.
Nothing is simulated. Outputs are those of the reference kernels, with which the NPU is bit-exact by
its specification: ``estimated``, as nothing ran. Cycles and memory are the compiler's estimate:
``estimated``; its cycles leave out what is left to the CPU, so a model with such operators has
neither a cost nor an arena here, and says which operators they are.

Vela ends with success on a model that it leaves to the CPU altogether, float ones among them; here
float operators are refused before it runs, and every operator of the compiled file that is not the
NPU's is listed with Vela's reason.
"""

from __future__ import annotations

import csv
import itertools
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.devices.device import Cost, Place, Provenance, device
from edgefuse.devices.script import Finished, run_script
from edgefuse.devices.setup.pins import VELA
from edgefuse.devices.setup.venv import interpreter, make_environment
from edgefuse.errors import Inconclusive, StageError, ToolError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Accelerator, Target
    from edgefuse.tflite.read import TfliteModel

    Array = np.ndarray[Any, Any]

TIMEOUT_S = 1200.0
NPU = "ethos-u"
_CONFIG_FILE = "Arm/vela.ini"
_REASON = re.compile(
    r"^Warning \([\w ]+\) operator: (\w+), ofm: '(.*)'\nReason: (.*)\n(.*)$", re.MULTILINE
)


@dataclass(frozen=True)
class LeftToCpu:
    """One operator that the NPU does not run; ``reason`` in Vela's words."""

    operator: str
    tensor: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.tensor}): {self.reason}"


@dataclass(frozen=True)
class Layer:
    """What Vela made of one operator: fused ones cost nothing of their own."""

    operator: str
    made: str
    unit: str
    cycles: int
    macs: int
    tensor: str


@dataclass(frozen=True)
class Compiled:
    """Facts of a compiled model, all estimated by Vela; bytes and cycles of one inference.

    Attributes:
        cycles: of the NPU with its memory accesses, at ``clock_hz``.
        arena_bytes: tensors in the arena, and in the fast memory where the memory mode has one.
        sram_bytes, dram_bytes, flash_bytes: by memory, weights included where they lie there.
        model_bytes: size of the compiled file.
    """

    accelerator: str
    system_config: str
    memory_mode: str
    compiler: str
    cycles: int
    npu_cycles: int
    clock_hz: int
    macs: int
    arena_bytes: int
    sram_bytes: int
    dram_bytes: int
    flash_bytes: int
    model_bytes: int
    npu_operators: int
    left_to_cpu: tuple[LeftToCpu, ...]
    layers: tuple[Layer, ...]

    def facts(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"provenance": "estimated", **asdict(self)}


def prepare(target: Target, folder: Path) -> Iterator[str]:
    """Vela in a private environment."""
    yield from make_environment(VELA, folder)


def needs(target: Target, folder: Path) -> dict[str, bool]:
    return {VELA.versions: VELA.folder(folder).is_dir()}


@device(prepare=prepare, needs=needs)
class EthosU:
    provenance: Provenance = "estimated"

    def __init__(self, target: Target, place: Place) -> None:
        self._target = target
        self._place = place
        self._runs = itertools.count()
        self._compiled: dict[Path, Compiled] = {}

    @property
    def _accelerator(self) -> Accelerator:
        accelerator = self._target.accelerator
        assert accelerator is not None  # Target refuses ethos_u without it.
        return accelerator

    def describe(self) -> str:
        accelerator = self._accelerator
        return (
            f"{VELA.pins[0].package} {VELA.pins[0].version}, {accelerator.config}, "
            f"{accelerator.system_config}, {accelerator.memory_mode}"
        )

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        from edgefuse.tflite.runtime import open_model

        self._supported(model)
        opened = open_model(model, kernels="reference")
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
        """Vela's cycles of each file.

        Raises:
            Inconclusive: operators are left to the CPU: nobody counts their cycles here.
        """
        compiled = [self._whole(model) for model in models]
        return Cost(
            unit="cycles",
            provenance="estimated",
            rows=tuple(((float(one.cycles),),) for one in compiled),
            operators=tuple(
                operator_cycles(self._supported(model), one.layers)
                for model, one in zip(models, compiled)
            ),
            conditions={
                "runtime": self.describe(),
                "clock_hz": compiled[0].clock_hz if compiled else 0,
                "npu_cycles": [one.npu_cycles for one in compiled],
                "macs": [one.macs for one in compiled],
                "flash_bytes": [one.flash_bytes for one in compiled],
                "sram_bytes": [one.sram_bytes for one in compiled],
                "dram_bytes": [one.dram_bytes for one in compiled],
            },
        )

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        from edgefuse.devices.measure.arena import Arena

        compiled = self._whole(model)
        return (
            Arena(
                measured_bytes=compiled.arena_bytes,
                # Cascades of operators hold rows, not tensors: the file gives no bound.
                lower_bound_bytes=0,
                peak_rss_growth_bytes=0,
                runtime=self.describe(),
            ),
            "estimated",
        )

    def compile(self, model: Path, destination: Path) -> Compiled:
        """Write the file that the NPU runs to ``destination``.

        Raises:
            StageError: float operators, axes without a size, or nothing for the NPU to run.
            DeviceUnavailable: Vela is not set up.
        """
        source = self._supported(model)
        python = interpreter(VELA, self._place.prepared, self._target.name)
        folder = self._place.work / f"vela-{next(self._runs)}"
        folder.mkdir(parents=True)
        shutil.copyfile(model, folder / "model.tflite")
        accelerator = self._accelerator
        command: list[str | Path] = [python, "-I", "-m", "ethosu.vela", "model.tflite"]
        command += ["--accelerator-config", accelerator.config, "--config", _CONFIG_FILE]
        command += ["--system-config", accelerator.system_config]
        command += ["--memory-mode", accelerator.memory_mode, "--output-dir", "out"]
        command += ["--verbose-performance", "--show-cpu-operations"]
        finished = run_script(command, self._place.log, timeout_s=TIMEOUT_S, folder=folder)
        made = folder / "out" / "model_vela.tflite"
        if finished.code or not made.is_file():
            said = finished.last_words
            raise StageError(f"Vela cannot compile the model: {said}", where=str(model))
        compiled = self._read(source, made, finished)
        if compiled.npu_operators == 0:
            raise StageError(
                "the NPU runs nothing of the model: "
                + "; ".join(str(one) for one in compiled.left_to_cpu[:3]),
                where=str(model),
            )
        shutil.move(made, destination)
        shutil.rmtree(folder)
        return compiled

    def _whole(self, model: Path) -> Compiled:
        """A compiled model's facts, compiled once a file.

        Raises:
            Inconclusive: part of it is left to the CPU.
        """
        key = model.absolute()
        if key not in self._compiled:
            destination = self._place.work / f"compiled-{next(self._runs)}.tflite"
            self._compiled[key] = self.compile(model, destination)
        compiled = self._compiled[key]
        if left := compiled.left_to_cpu:
            more = f"; and {len(left) - 3} more" if len(left) > 3 else ""
            raise Inconclusive(
                f"{len(left)} operators are left to the CPU, whose time and memory Vela does not "
                f"estimate: {'; '.join(str(one) for one in left[:3])}{more}",
                hint="replace them before conversion, or give no such gate for this target",
                where=str(model),
            )
        return compiled

    def _supported(self, model: Path) -> TfliteModel:
        """The file, when Vela can do anything with it."""
        from edgefuse.tflite.read import read_model

        source = read_model(model)
        if floats := source.float_operators():
            named = ", ".join(op.label for op in floats[:6])
            more = f" and {len(floats) - 6} more" if len(floats) > 6 else ""
            raise StageError(
                f"an Ethos-U runs integers only; float operators: {named}{more}",
                hint="give it the int8 model, with nothing left float",
                where=str(model),
            )
        if dynamic := [t for t in source.tensors if t.is_dynamic]:
            raise StageError(
                f"an Ethos-U needs every size in the file; {dynamic[0].name!r} has an axis "
                "without one",
                hint="export with a fixed batch and fixed sizes",
                where=str(model),
            )
        return source

    def _read(self, source: TfliteModel, made: Path, finished: Finished) -> Compiled:
        """The facts out of Vela's files; what it says is used for reasons only."""
        from edgefuse.tflite.read import read_model

        summaries = list(made.parent.glob("model_summary_*.csv"))
        layers = made.parent / "model_per-layer.csv"
        if len(summaries) != 1 or not layers.is_file():
            raise ToolError("Vela wrote no summary", where=str(self._place.log))
        (row,) = _rows(summaries[0])
        result = read_model(made)
        reasons = {
            name: f"{why}. {rule}" for _, name, why, rule in _REASON.findall(finished.output)
        }
        left = tuple(
            LeftToCpu(op.label, name, reasons.get(name, "Vela gives no reason"))
            for op in result.operators
            if op.custom_code != NPU
            for name in [result.tensors[op.outputs[0]].name]
        )
        kibibytes = {
            name: round(float(row[f"{name}_memory_used"]) * 1024)
            for name in ("sram", "dram", "on_chip_flash", "off_chip_flash")
        }
        accelerator = self._accelerator
        return Compiled(
            accelerator=accelerator.config,
            system_config=accelerator.system_config,
            memory_mode=accelerator.memory_mode,
            compiler=f"{VELA.pins[0].package} {VELA.pins[0].version}",
            cycles=int(row["cycles_total"]),
            npu_cycles=int(row["cycles_npu"]),
            clock_hz=round(float(row["core_clock"])),
            macs=int(row["nn_macs"]),
            arena_bytes=_arena_bytes(result),
            sram_bytes=kibibytes["sram"],
            dram_bytes=kibibytes["dram"],
            flash_bytes=kibibytes["on_chip_flash"] + kibibytes["off_chip_flash"],
            model_bytes=made.stat().st_size,
            npu_operators=sum(op.custom_code == NPU for op in result.operators),
            left_to_cpu=left,
            layers=tuple(
                Layer(
                    operator=one["Original Operator"],
                    made=one["NNG Operator"],
                    unit=one["Target"],
                    cycles=int(one["Op Cycles"]),
                    macs=int(one["MAC Count"]),
                    tensor=one["Name"].strip(),
                )
                for one in _rows(layers)
            ),
        )


def operator_cycles(source: TfliteModel, layers: Sequence[Layer]) -> tuple[float, ...]:
    """Cycles of each operator of the source file, in its order; their sum is the layers'.

    Vela names a layer after the tensor it makes; steps that it inserts belong to the next one.
    """
    place = {source.tensors[i].name: op.index for op in source.operators for i in op.outputs}
    cycles = [0.0] * len(source.operators)
    waiting, last = 0, 0
    for layer in layers:
        waiting += layer.cycles
        if layer.tensor in place:
            last = place[layer.tensor]
            cycles[last] += waiting
            waiting = 0
    if cycles:
        cycles[last] += waiting
    return tuple(cycles)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _arena_bytes(result: TfliteModel) -> int:
    """Bytes of the scratch tensors that every NPU operator of the file shares."""
    scratch = {t.name: t.nbytes for t in result.tensors if t.name in ("scratch", "scratch_fast")}
    return sum(scratch.values())
