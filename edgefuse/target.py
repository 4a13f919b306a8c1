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

from pydantic import Field

from edgefuse.errors import RecipeError
from edgefuse.section import NAME, Section
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


class Target(Section):
    """One board, emulator or machine."""

    name: NAME = Field(description="The file's name without .yaml.")
    summary: str = Field(min_length=1, description="One line for `edgefuse targets`.")
    transport: Literal["local"] = Field(description="How it is reached.")
    runtime: Literal["litert", "tflite_runtime"] = Field(description="Interpreter.")
    kernels: Literal["default", "builtin", "reference"] = Field(
        "default",
        description="default: the runtime's own choice (XNNPACK); builtin: no delegate; "
        "reference: bit-identical on every CPU.",
    )
    threads: int = Field(1, ge=1, le=64, description="Interpreter threads.")
    balance: MachineBalance | Literal["measured"] | None = Field(
        None,
        description="What the machine can do; measured: on this machine, once. Without it nothing "
        "that depends on the machine's speed is predicted.",
    )
    install_path: str | None = Field(
        None, min_length=1, description="Where `edgefuse push` installs; ${VARIABLES} ok."
    )
    tried_on_hardware: bool = Field(
        False, description="Whether somebody ran it on the real thing, not only emulated."
    )
    notes: str = Field("", description="For people: what its figures mean.")


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
    folders = tuple(search)
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        path = Path(name_or_path)
    else:
        places = (folder / f"{name_or_path}.yaml" for folder in target_folders(folders))
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise _unknown(name_or_path, list_targets(folders))
        path = found
    target = load(path, Target)
    if target.name != path.stem:
        raise RecipeError(
            f"target {target.name!r} lives in a file called {path.name!r}",
            hint=f"name: {path.stem}",
            where=str(path),
        )
    return target


def _unknown(name: str, known: Iterable[str]) -> RecipeError:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    meant = f"did you mean {near[0]!r}? " if near else ""
    listing = f"targets: {', '.join(names)}" if names else "no folder called targets was found"
    return RecipeError(f"unknown target {name!r}", hint=meant + listing)
