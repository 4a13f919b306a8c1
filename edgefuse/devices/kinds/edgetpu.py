"""A Coral Edge TPU: documented rules checked by us, the vendor's compiler where it is installed.

A file that breaks a documented rule is refused with every place. One that keeps them all is handed
to ``edgetpu_compiler``; without that program nobody can tell (exit code 4), since the rules are
necessary and not sufficient. What the compiler leaves to the CPU is refused too.

Outputs of a compiled file are those of the reference kernels, labelled ``estimated``: the Edge
TPU's arithmetic is not documented, and nothing simulates it. Neither time nor memory for
activations is known without the hardware.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.devices.device import Cost, Place, Provenance, device
from edgefuse.devices.script import run_script
from edgefuse.errors import DeviceUnavailable, Inconclusive, StageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.edgetpu_rules import Broken
    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Target

    Array = np.ndarray[Any, Any]

COMPILER = "edgetpu_compiler"
CUSTOM = "edgetpu-custom-op"
TIMEOUT_S = 1800.0
_REMEDY = (
    "install the vendor's edgetpu_compiler (x86_64 Debian package edgetpu-compiler of Coral's "
    "repository) so that it is on PATH"
)
_STATUS = re.compile(r"^([A-Z][A-Z0-9_]+)\s+(\d+)\s+(\S.*?)\s*$", re.MULTILINE)
_MAPPED = "Mapped to Edge TPU"
_VERSION = re.compile(r"Edge TPU Compiler version (\S+)")


@dataclass(frozen=True)
class Mapped:
    """What the vendor's compiler made.

    Attributes:
        operators: how many of each kind it mapped.
        model_bytes: size of the compiled file.
    """

    compiler: str
    operators: Mapping[str, int]
    model_bytes: int

    def facts(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"provenance": "estimated", **asdict(self)}


def prepare(target: Target, folder: Path) -> Iterator[str]:
    """Nothing can be installed for the user: the compiler is the vendor's."""
    yield f"{COMPILER}: {_compiler(target.name)}"


def _compiler(target: str) -> str:
    found = shutil.which(COMPILER)
    if found is None:
        raise DeviceUnavailable(f"{target}: {COMPILER} is not installed", hint=_REMEDY)
    return found


def needs(target: Target, folder: Path) -> dict[str, bool]:
    return {f"{COMPILER} (the vendor's)": shutil.which(COMPILER) is not None}


@device(prepare=prepare, needs=needs)
class EdgeTpu:
    provenance: Provenance = "estimated"

    def __init__(self, target: Target, place: Place) -> None:
        self._target = target
        self._place = place
        self._runs = itertools.count()

    def describe(self) -> str:
        return "Coral Edge TPU by its documented rules; outputs of the reference kernels"

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        from edgefuse.tflite.runtime import open_model

        self.compile(model, self._place.work / f"mapped-{next(self._runs)}.tflite")
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
        raise self._unknown("how long an Edge TPU takes", "latency")

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        raise self._unknown("an Edge TPU's memory for activations", "memory")

    def _unknown(self, what: str, gate: str) -> Inconclusive:
        return Inconclusive(
            f"{self._target.name}: nothing but the hardware tells {what}",
            hint=f"give no {gate} gate for this target, or measure on the board",
        )

    def compile(self, model: Path, destination: Path) -> Mapped:
        """Check the rules, then write what the vendor's compiler makes to ``destination``.

        Raises:
            StageError: a rule is broken, or the compiler leaves operators to the CPU.
            DeviceUnavailable: every rule holds, and the compiler is not installed.
        """
        from edgefuse.devices.edgetpu_rules import RULES, broken_rules
        from edgefuse.tflite.read import read_model

        if broken := broken_rules(read_model(model)):
            raise StageError(
                f"documented rules of the Edge TPU are broken:{_by_rule(broken)}",
                hint="the compiler would leave such an operator, and all after it, to the CPU",
                where=str(model),
            )
        try:
            compiler = _compiler(self._target.name)
        except DeviceUnavailable as error:
            raise DeviceUnavailable(
                f"the model keeps the {len(RULES)} documented rules, but only the vendor's "
                f"compiler can tell whether all of it is mapped: {error.message}",
                hint=error.hint,
                where=str(model),
            ) from None
        folder = self._place.work / f"edgetpu-{next(self._runs)}"
        folder.mkdir(parents=True)
        shutil.copyfile(model, folder / "model.tflite")
        command = [compiler, "-s", "-o", "out", "model.tflite"]
        (folder / "out").mkdir()
        finished = run_script(command, self._place.log, timeout_s=TIMEOUT_S, folder=folder)
        made = folder / "out" / "model_edgetpu.tflite"
        if finished.code or not made.is_file():
            raise StageError(
                f"{COMPILER} cannot compile the model: {finished.last_words}", where=str(model)
            )
        self._check_mapped(model, made, finished.output)
        version = _VERSION.search(finished.output)
        operators = {
            name: int(n)
            for name, n, status in _STATUS.findall(finished.output)
            if status == _MAPPED
        }
        size = made.stat().st_size
        shutil.move(made, destination)
        shutil.rmtree(folder)
        return Mapped(f"{COMPILER} {version[1] if version else 'unknown'}", operators, size)

    def _check_mapped(self, model: Path, made: Path, output: str) -> None:
        """The compiled file must hold nothing but the Edge TPU's operator."""
        from edgefuse.tflite.read import read_model

        left = [op for op in read_model(made).operators if op.custom_code != CUSTOM]
        if not left:
            return
        reasons = [
            f"{n} {name}: {why}" for name, n, why in _STATUS.findall(output) if why != _MAPPED
        ]
        raise StageError(
            f"{COMPILER} leaves operators to the CPU: {', '.join(op.label for op in left[:6])}",
            hint="; ".join(reasons[:6]),
            where=str(model),
        )


def _by_rule(broken: Sequence[Broken]) -> str:
    """A line for each rule, with the first places that break it."""
    places: dict[str, list[str]] = {}
    for one in broken:
        places.setdefault(one.message, []).append(one.place)
    lines = []
    for message, labels in places.items():
        more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
        lines.append(f"\n  - {message} {', '.join(labels[:6])}{more}")
    return "".join(lines)
