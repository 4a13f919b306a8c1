"""What a target must offer to the gates: one Protocol, and the door to who fulfils it.

``targets/*.yaml`` names a board; :attr:`~edgefuse.target.Target.device` names the file
that plays it. Each such file, in ``edgefuse/devices/kinds/``, registers its class with ``@device``:

====================  =======================================================================
``host``              this process's LiteRT or tflite-runtime
``qemu``              the runner (C, TfLite C API) under qemu's user-mode emulation
``remote``            the runner on a machine behind ssh or adb
``tflite_micro``      tflite-micro's interpreter in a private virtual environment
``ethos_u``           reference kernels for results, Vela for cycles and memory
``edgetpu``           documented rules; the vendor's compiler where it is installed
====================  =======================================================================

A figure always says how it came about: ``measured`` (on that very machine), ``emulated-count``
(instructions counted under emulation) or ``estimated`` (by a model of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from edgefuse.registry import Registry
from edgefuse.store import default_root

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.measure.arena import Arena
    from edgefuse.target import Target

    Array = np.ndarray[Any, Any]

Provenance = Literal["measured", "emulated-count", "estimated"]
Unit = Literal["ms", "instructions", "cycles"]


@dataclass(frozen=True)
class Place:
    """Where a device may write and read here.

    Attributes:
        work: an empty folder that lasts as long as the device is used.
        log: what foreign programs say is appended to this file.
        prepared: the folder that ``edgefuse setup`` fills; shared, only read by gates.
    """

    work: Path
    log: Path
    prepared: Path


@dataclass(frozen=True)
class Cost:
    """What running models costs on a device, interleaved, so that they may be compared.

    Attributes:
        unit: of every figure in ``rows``.
        rows: [file][process][round]: one process and one round for exact counts.
        operators: [file]: cost of each operator in the order the runtime runs them, where the
            device can tell; their names are in ``conditions["operators"]``.
        conditions: what the figures mean nothing without: runtime, kernels, threads, CPU, governor,
            temperature, load, ...; plain JSON.
    """

    unit: Unit
    provenance: Provenance
    rows: tuple[tuple[tuple[float, ...], ...], ...]
    operators: tuple[tuple[float, ...], ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)


class Device(Protocol):
    """Runs models as a target does. Nothing is done in the constructor but keeping arguments.

    Every method raises DeviceUnavailable when the device is not prepared (with the command
    ``edgefuse setup NAME`` as the remedy) or cannot be reached, StageError when its runtime refuses
    or fails on the model (with what it says), ToolError when a program of ours or of others fails.
    """

    def __init__(self, target: Target, place: Place) -> None: ...

    def describe(self) -> str:
        """Runtime and version as evidence names it, e.g. ``ai-edge-litert 2.1.0 on cortex-a53``."""
        ...

    @property
    def provenance(self) -> Provenance:
        """Of the outputs: ``measured`` where the board's own kernels make them."""
        ...

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        """For each feed (signature name -> array in the input's own dtype and shape) the raw
        outputs by signature name, in the file's own dtypes."""
        ...

    def cost(
        self,
        models: Sequence[Path],
        feeds: Sequence[Mapping[str, Array]],
        *,
        processes: int,
        rounds: int,
    ) -> Cost:
        """Cost of one invoke of each file, the files interleaved in fresh processes; ``feeds``
        holds one feed for each file. A device that counts exactly ignores processes and rounds."""
        ...

    def arena(self, model: Path) -> tuple[Arena, Provenance]:
        """Memory for activations."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A device whose board runs not the .tflite file but what a compiler makes of it."""

    def compile(self, model: Path, destination: Path) -> Any:
        """Write what the board runs; a frozen dataclass of plain facts about it.

        Raises:
            StageError: the compiler refuses the model, or leaves all of it to the CPU.
            DeviceUnavailable: the compiler is not set up.
        """
        ...


@dataclass(frozen=True)
class Kind:
    """One way to play a board.

    Attributes:
        name: its file in ``edgefuse/devices/kinds/``.
        open: makes the device of a target; does no work.
        prepare: fills the ``prepared`` folder for a target, offline when it is filled already, and
            yields a line for each thing done; None when there is nothing to prepare.
        needs: what a target needs beside edgefuse, in a few words, and whether it is there.
    """

    name: str
    open: Callable[[Target, Place], Device]
    prepare: Callable[[Target, Path], Iterator[str]] | None = None
    needs: Callable[[Target, Path], Mapping[str, bool]] | None = None


DEVICES: Registry[Kind] = Registry("edgefuse.devices.kinds")


def device(
    *,
    prepare: Callable[[Target, Path], Iterator[str]] | None = None,
    needs: Callable[[Target, Path], Mapping[str, bool]] | None = None,
) -> Callable[[Callable[[Target, Place], Device]], Callable[[Target, Place], Device]]:
    """Register a device class under the name of its file."""

    def register(made: Callable[[Target, Place], Device]) -> Callable[[Target, Place], Device]:
        name = made.__module__.rsplit(".", 1)[-1]
        DEVICES.add(Kind(name, made, prepare, needs), made.__module__)
        return made

    return register


def open_device(target: Target, work: Path, log: Path) -> Device:
    """The device of a target; reaches nothing yet."""
    return DEVICES.all()[target.device].open(target, Place(work, log, prepared_folder()))


def prepared_folder() -> Path:
    """Where ``edgefuse setup`` puts emulators, runtimes and runners: shared by all projects."""
    return default_root() / "devices"
