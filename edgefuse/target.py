"""Where a model shall run: ``targets/*.yaml`` as frozen :class:`Target` data.

A target is looked for by name in the working directory's ``targets/``, in the caller's folders
(the recipe's folder, its parent), then beside the package or in share/edgefuse of the installation;
or it is a path to a file.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from edgefuse.errors import RecipeError
from edgefuse.section import NAME, Bytes, Section
from edgefuse.yaml_file import load


class Figure(Section):
    """One figure of a machine."""

    value: float = Field(gt=0, description="In the unit of its key.")
    source: str = Field(
        min_length=1, description="How it was obtained: by which command, or from which data sheet."
    )


class MachineBalance(Section):
    """What the machine can do, for predictions of the cost model; each figure with its source."""

    launch_us: Figure = Field(description="Time to start one kernel after another.")
    bytes_per_s: Figure = Field(description="To and from memory.")
    flops_per_s: Figure = Field(
        description="Of dense convolutions and matrix products in float32; a multiplication with "
        "its addition is 2."
    )
    vector_flops_per_s: Figure | None = Field(
        None, description="Of everything else; null: as flops_per_s."
    )
    int8_ops_per_s: Figure | None = Field(None, description="As flops_per_s, of int8.")
    parallel_tiles: Figure | None = Field(
        None, description="Cores, or multiprocessors of a GPU; null: 1."
    )


class Emulator(Section):
    """A board played by qemu's user-mode emulation."""

    architecture: Literal["aarch64", "armv7"] = Field(description="Instruction set.")
    cpu: str = Field(
        pattern=r"^[a-z0-9-]+$",
        description="qemu's name of the CPU: it decides which instructions the kernels choose.",
    )


class Ssh(Section):
    """A machine reached by the OpenSSH client; what is not given is that client's own setting."""

    host: str = Field(min_length=1, description="Name, address or alias; ${VARIABLES} ok.")
    port: int | None = Field(None, ge=1, le=65535, description="null: the client's.")
    user: str | None = Field(None, min_length=1, description="null: the client's.")
    identity_file: str | None = Field(None, min_length=1, description="Path of a private key.")
    known_hosts: str | None = Field(
        None, min_length=1, description="Path of the file that holds the board's host key."
    )
    connect_timeout_s: int = Field(10, ge=1, le=600, description="Until it counts as unreachable.")


class Adb(Section):
    """An Android device reached by the adb client."""

    serial: str | None = Field(
        None,
        min_length=1,
        description="As `adb devices` prints it, or host:port; null: the only one.",
    )
    connect_timeout_s: int = Field(10, ge=1, le=600, description="Until it counts as unreachable.")


class Accelerator(Section):
    """An Arm Ethos-U as Vela knows it."""

    config: str = Field(
        pattern=r"^ethos-u(55|65|85)-[0-9]+$", description="Vela's --accelerator-config."
    )
    system_config: str = Field(
        pattern=r"^[A-Za-z0-9_]+$", description="Vela's --system-config: clock and memories."
    )
    memory_mode: str = Field(
        pattern=r"^[A-Za-z0-9_]+$", description="Vela's --memory-mode: where tensors lie."
    )


class Gpu(Section):
    """What runs GPU programs, and for which architectures they are compiled."""

    runs: Literal["interpreter", "local", "nowhere"] = Field(
        description="interpreter: on the CPU, by Triton's interpreter and the kernels' NumPy "
        "references; local: on this machine's NVIDIA GPU; nowhere: programs are compiled only."
    )
    architectures: tuple[Literal[80, 87, 89, 90, 100], ...] = Field(
        (),
        description="Compute capabilities, without the point, that the bundle holds compiled "
        "kernels for.",
    )


class CalibratedModel(Section):
    """One int8 model, counted under emulation and timed on a board."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Of the .tflite file.")
    instructions: int = Field(gt=0, description="Of one invoke, under emulation.")
    p50_ms: float = Field(gt=0, description="Median of one invoke, on the board.")


class Calibration(Section):
    """What an emulated CPU's instructions come to in time, measured on a real board.

    `edgefuse calibrate-target` writes it to NAME.calibration.json beside the target's file.
    """

    board: str = Field(min_length=1, description="The target it was timed on.")
    runtime: str = Field(min_length=1, description="Runtime and CPU there.")
    ms_per_million_instructions: float = Field(gt=0, description="Median over the models.")
    spread_percent: float = Field(ge=0, description="Farthest that a model is from it.")
    models: tuple[CalibratedModel, ...] = Field(min_length=1, description="What it rests on.")


class Limits(Section):
    """What the board has; the memory gate judges a model by them beside the recipe's own."""

    arena_bytes: Bytes | None = Field(
        None, description="Memory for activations, in bytes or as 512KiB."
    )
    model_bytes: Bytes | None = Field(
        None, description="Room for one model file, in bytes or as 2MiB."
    )


class Support(Section):
    """What the runtime cannot do there, known beforehand; the check stage refuses it by name."""

    operators: tuple[str, ...] | None = Field(
        None, description="TFLite operators that it has; null: those of its runtime."
    )
    float_operators: bool = Field(True, description="Whether float tensors may remain.")
    int16_activations: bool = Field(True, description="Whether int16 activations run.")
    per_channel_dense: bool = Field(
        True, description="Whether FULLY_CONNECTED takes a weight scale for each output."
    )
    int8_dot_product: bool | None = Field(
        None,
        description="Whether the CPU has one (VNNI, AMX, ARM dotprod or i8mm); null: as the "
        "machine says.",
    )


class Target(Section):
    """One board, emulator or machine."""

    name: NAME = Field(description="The file's name without .yaml.")
    summary: str = Field(min_length=1, description="One line for `edgefuse targets`.")
    transport: Literal["local", "ssh", "adb"] = Field(description="How it is reached.")
    runtime: Literal["litert", "tflite_runtime", "tflite_micro", "ethos_u", "edgetpu", "cuda"] = (
        Field(
            description="What runs the model; ethos_u: the reference kernels for results, Vela "
            "for cycles and memory; edgetpu: rules of the documentation, and the vendor's "
            "compiler; cuda: the fused graph as a GPU program, not the .tflite file."
        )
    )
    runtime_version: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)*$",
        description="Which one; null: the one installed beside edgefuse.",
    )
    kernels: Literal["default", "builtin", "reference"] = Field(
        "default",
        description="default: the runtime's own choice (XNNPACK); builtin: no delegate; "
        "reference: bit-identical on every CPU.",
    )
    threads: int = Field(1, ge=1, le=64, description="Interpreter threads.")
    architecture: Literal["x86_64", "aarch64", "armv7"] | None = Field(
        None, description="Of a machine reached by ssh or adb: which runner it gets."
    )
    python: str | None = Field(
        None,
        pattern=r"^[^-\s{}][^\s{}]*$",
        description="Python on a board reached by ssh or adb, where it has the runtime and NumPy: "
        "it runs the models in place of edgefuse's own runner.",
    )
    emulator: Emulator | None = Field(None, description="Runs here, as that CPU would.")
    ssh: Ssh | None = Field(None, description="For transport ssh.")
    adb: Adb | None = Field(None, description="For transport adb; null: the only device.")
    accelerator: Accelerator | None = Field(None, description="For runtime ethos_u.")
    gpu: Gpu | None = Field(None, description="For runtime cuda.")
    calibration: Calibration | None = Field(
        None,
        description="For an emulated CPU; without it no figure of it is a time. Leave it to "
        "`edgefuse calibrate-target`.",
    )
    limits: Limits = Field(Limits(), description="What the memory gate judges beside the recipe.")
    support: Support = Field(Support(), description="What the check stage refuses by name.")
    balance: MachineBalance | Literal["measured"] | None = Field(
        None,
        description="What the machine can do; measured: on this machine, once. Without it nothing "
        "that depends on the machine's speed is predicted.",
    )
    install_path: str | None = Field(
        None,
        min_length=1,
        description="Where `edgefuse push` installs, on the device; ${VARIABLES} are those of this "
        "machine.",
    )
    keep_versions: int = Field(3, ge=2, le=100, description="Versions that `edgefuse prune` keeps.")
    tried_on_hardware: bool = Field(
        False, description="Whether somebody ran it on the real thing, not only emulated."
    )
    notes: str = Field("", description="For people: what its figures mean.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse a way to the device without its address, and sections that would be ignored."""
        remote = self.transport != "local"
        if self.transport == "ssh" and self.ssh is None:
            raise ValueError("transport ssh needs the section ssh with at least host")
        for name, wanted in (("ssh", self.transport == "ssh"), ("adb", self.transport == "adb")):
            if getattr(self, name) is not None and not wanted:
                raise ValueError(f"the section {name} is for transport {name}")
        if remote != (self.architecture is not None):
            raise ValueError("architecture is for transports ssh and adb, and needed there")
        if self.python is not None and not remote:
            raise ValueError("python is for transports ssh and adb")
        if self.emulator is not None and (
            remote or self.runtime not in ("litert", "tflite_runtime")
        ):
            raise ValueError("emulator is for transport local, litert and tflite_runtime")
        if self.calibration is not None and self.emulator is None:
            raise ValueError("calibration is for targets with an emulator")
        if (self.accelerator is None) == (self.runtime == "ethos_u"):
            raise ValueError("accelerator is for runtime ethos_u, and needed there")
        if (self.gpu is None) == (self.runtime == "cuda"):
            raise ValueError("the section gpu is for runtime cuda, and needed there")
        if self.runtime in ("tflite_micro", "ethos_u", "edgetpu", "cuda") and remote:
            raise ValueError(f"runtime {self.runtime} is here, or simulated: transport local")
        return self

    @property
    def judging_runtime(self) -> Literal["litert", "tflite_runtime"]:
        """The interpreter on this machine that decides what is written: the target's, if here."""
        return "tflite_runtime" if self.runtime == "tflite_runtime" else "litert"

    @property
    def judging_kernels(self) -> Literal["default", "builtin", "reference"]:
        """The kernels that go with :attr:`judging_runtime`."""
        return self.kernels if self.device == "host" else "default"

    @property
    def judging_arena(self) -> Literal["litert", "tflite_micro"]:
        """Whose foretold arena of a .tflite file counts there."""
        return "tflite_micro" if self.runtime in ("tflite_micro", "ethos_u") else "litert"

    @property
    def compiled_for(self) -> str | None:
        """Its name, where the model is compiled for it and goes into the bundle so."""
        return self.name if self.runtime in ("ethos_u", "edgetpu", "cuda") else None

    @property
    def device(self) -> str:
        """The file of ``edgefuse/devices/`` that runs models as this target does."""
        if self.runtime in ("tflite_micro", "ethos_u", "edgetpu", "cuda"):
            return self.runtime
        if self.emulator is not None:
            return "qemu"
        return "host" if self.transport == "local" else "remote"


def calibration_file(target_file: Path) -> Path:
    """Where a target's calibration lies."""
    return target_file.with_name(f"{target_file.stem}.calibration.json")


def target_folders(search: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Existing folders that hold targets, first match wins."""
    beside = Path(__file__).resolve().parent
    wanted = [Path("targets")]
    for folder in search:
        wanted += [folder, folder / "targets", folder.parent / "targets"]
    wanted += [beside.parent / "targets", Path(sys.prefix) / "share" / "edgefuse" / "targets"]
    unique = dict.fromkeys(folder.resolve() for folder in wanted if folder.is_dir())
    return tuple(unique)


def _files(search: Iterable[Path]) -> Iterator[Path]:
    """Files of folders called ``targets`` only: a recipe's folder holds other YAML too."""
    for folder in target_folders(search):
        if folder.name == "targets":
            yield from sorted(folder.glob("*.yaml"))


def list_targets(search: Iterable[Path] = ()) -> dict[str, Path]:
    """File by target name, sorted; the first folder of :func:`target_folders` wins."""
    found: dict[str, Path] = {}
    for path in _files(search):
        found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_target(name_or_path: str, search: Iterable[Path] = ()) -> Target:
    """Load a target by name, or by path when it ends in .yaml or .yml or holds a separator.

    Raises:
        RecipeError: no such target (with the nearest name), or a wrong file (file:line, key path).
    """
    path = target_file(name_or_path, search)
    target = load(path, Target)
    if target.name != path.stem:
        raise RecipeError(
            f"target {target.name!r} lives in a file called {path.name!r}",
            hint=f"name: {path.stem}",
            where=str(path),
        )
    measured = calibration_file(path)
    return _calibrated(target, measured) if measured.is_file() else target


def target_file(name_or_path: str, search: Iterable[Path] = ()) -> Path:
    """The file of a target; see :func:`load_target`.

    Raises:
        RecipeError: no such target, with the nearest name.
    """
    folders = tuple(search)
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return Path(name_or_path)
    places = (folder / f"{name_or_path}.yaml" for folder in target_folders(folders))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise _unknown(name_or_path, list_targets(folders))
    return found


def _calibrated(target: Target, path: Path) -> Target:
    try:
        found = Calibration.model_validate_json(path.read_bytes())
        return Target.model_validate({**dict(target), "calibration": found})
    except (OSError, ValueError) as error:
        said = str(error).splitlines()
        raise RecipeError(
            f"not a calibration of this target: {said[0] if said else error}",
            hint="write it anew: edgefuse calibrate-target",
            where=str(path),
        ) from None


def _unknown(name: str, known: Iterable[str]) -> RecipeError:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    meant = f"did you mean {near[0]!r}? " if near else ""
    listing = f"targets: {', '.join(names)}" if names else "no folder called targets was found"
    return RecipeError(f"unknown target {name!r}", hint=meant + listing)
