"""The arena of a model file, with what people call its buffers; and as JSON, there and back.

A buffer is named by its first tensor, and converters rename tensors. So each is also told by the
torch module that computes it: of ONNX out of the nodes' metadata; of TFLite out of where each node
ended (the trace stage), by the operator that makes the tensor, or by the tensor's name in a file
that was rewritten for memory, which keeps names and numbers those of tiles.

Left alone: what an arena is and how it is planned (:mod:`edgefuse.memory.arenas`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.memory.arena import Arena, Live

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

Runtime = Literal["tflite_micro", "litert"]
RUNTIMES: tuple[Runtime, ...] = ("tflite_micro", "litert")
_PIECE = re.compile(r"_piece\d+$")


@dataclass(frozen=True)
class FileArena:
    """``modules``: the torch module of a buffer, by the buffer's name; without unknown ones."""

    arena: Arena
    modules: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Documented at :func:`from_json`."""
        arena = self.arena
        peak = arena.peak_step
        return {
            "owner": arena.owner,
            "operators": len(arena.steps),
            "arena_bytes": arena.arena_bytes,
            "bound_bytes": arena.bound_bytes,
            "proven": arena.proven,
            "peak_step": peak,
            "peak_operator": arena.steps[peak] if arena.steps else "",
            "peak_bytes": sum(buffer.size_bytes for buffer in arena.alive_at(peak)),
            "at_peak": [buffer.name for buffer in arena.alive_at(peak)],
            "buffers": [
                {
                    "name": buffer.name,
                    "module": self.modules.get(buffer.name, ""),
                    "size_bytes": buffer.size_bytes,
                    "offset_bytes": offset,
                    "first": buffer.first,
                    "last": buffer.last,
                }
                for buffer, offset in zip(arena.buffers, arena.offsets, strict=True)
            ],
            "steps": list(arena.steps),
        }


def from_json(document: Mapping[str, Any]) -> FileArena | None:
    """The arena of a document; None when it does not hold a whole one.

    Keys: ``owner``, ``operators``, ``arena_bytes``, ``bound_bytes``, ``proven`` (no smaller arena
    exists), ``peak_step``, ``peak_operator``, ``peak_bytes`` (alive there), ``at_peak`` (names, the
    largest first), ``buffers`` (``name``, ``module``, ``size_bytes``, ``offset_bytes``, ``first``
    and ``last`` step), ``steps`` (operators' labels in order).
    """
    try:
        held = document["buffers"]
        arena = Arena(
            owner=str(document["owner"]),
            buffers=tuple(
                Live(str(b["name"]), int(b["size_bytes"]), int(b["first"]), int(b["last"]))
                for b in held
            ),
            offsets=tuple(int(b["offset_bytes"]) for b in held),
            steps=tuple(str(step) for step in document["steps"]),
            bound_bytes=int(document["bound_bytes"]),
            proven=bool(document["proven"]),
        )
        modules = {str(b["name"]): str(b["module"]) for b in held if b["module"]}
    except (KeyError, TypeError, ValueError):
        return None
    return FileArena(arena, modules)


def onnx_file_arena(path: Path) -> FileArena:
    """edgefuse's own plan of an ONNX file.

    Raises:
        SourceError: the file is no valid model.
        StageError: its memory cannot be planned.
    """
    from edgefuse.graph.normalise import load_proto, prepare
    from edgefuse.graph.values import module_path
    from edgefuse.memory.arenas.onnx import onnx_arena

    model = prepare(load_proto(path))
    arena = onnx_arena(model)
    made = {str(v.name): module_path(node) for node in model.graph for v in node.outputs}
    return FileArena(arena, _named(arena.buffers, made))


def tflite_arena(
    model: TfliteModel,
    runtime: Runtime = "tflite_micro",
    modules: Mapping[str, str] | None = None,
) -> FileArena:
    """The arena that a runtime will need for a file.

    Args:
        modules: by tensor name, from :func:`tensor_modules`.

    Raises:
        StageError: its memory cannot be planned.
    """
    from edgefuse.memory.arenas.litert import predicted_arena
    from edgefuse.memory.arenas.tflite_micro import predicted_head

    arena = predicted_head(model) if runtime == "tflite_micro" else predicted_arena(model)
    return FileArena(arena, _named(arena.buffers, modules or {}))


def tensor_modules(model: TfliteModel, nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The torch module of each tensor of an int8 file, by the tensor's name.

    Args:
        nodes: of the trace stage's evidence: ``module``, ``node``, ``ends_in``, ``merged_into``.
    """
    of_operator: dict[str, str] = {}
    for node in nodes:
        name = str(node["module"] or node["node"])
        for label in node["ends_in"]:
            if not node["merged_into"]:
                of_operator.setdefault(str(label).partition("+")[0], name)
    return {
        model.tensors[index].name: of_operator[operator.label]
        for operator in model.operators
        if operator.label in of_operator
        for index in operator.outputs
    }


def _named(buffers: Iterable[Live], modules: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for buffer in buffers:
        for name in (buffer.name, *buffer.tensors):
            module = modules.get(name) or modules.get(_PIECE.sub("", name))
            if module:
                found[buffer.name] = module
                break
    return found
