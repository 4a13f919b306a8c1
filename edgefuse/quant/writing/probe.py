"""Whether a target's runtime runs a pair of operators: tried, not looked up.

Problem: which mixtures of int8 and int16 a runtime runs is written nowhere, changes with its
version, and what it does not know may end the process. So the very operators are cut out of the
quantised file, with all that lies between them, and loaded and run in a child process.

An answer is kept for the process by runtime, version, and what decides a kernel: the operators,
their types and their ranks. Left alone: whether the numbers are right, and speed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.child import Conversation, conversing
from edgefuse.errors import EdgefuseError, ToolError

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import TfliteModel
    from edgefuse.tflite.runtime import Runtime

_WORKER = "edgefuse.quant.writing.probe_worker"
_TIMEOUT_S = 60.0
_Key = tuple[str, tuple[tuple[str, tuple[tuple[str, int], ...]], ...]]
_KNOWN: dict[_Key, str] = {}


def refusals(
    model: TfliteModel, edit: Edit, chains: Sequence[Sequence[int]], runtime: Runtime
) -> list[str]:
    """For each chain of operators, why the runtime does not run it; empty when it does.

    Args:
        model, edit: the quantised file, read and unpacked.
        chains: operators by index, in the order in which they run.

    Raises:
        ToolError: the runtime is not installed.
    """
    from edgefuse.tflite.runtime import runtime_version

    version = runtime_version(runtime)
    keys = [_key(version, model, chain) for chain in chains]
    unknown = {key: chain for key, chain in zip(keys, chains) if key not in _KNOWN}
    if unknown:
        with tempfile.TemporaryDirectory() as folder:
            _ask(unknown, edit, runtime, Path(folder))
    return [_KNOWN[key] for key in keys]


def _key(version: str, model: TfliteModel, chain: Sequence[int]) -> _Key:
    rows = []
    for index in chain:
        operator = model.operators[index]
        touched = (model.tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0)
        kinds = tuple((t.dtype, len(t.shape)) for t in touched)
        rows.append((f"{operator.code} {operator.activation}", kinds))
    return version, tuple(rows)


def _ask(unknown: dict[_Key, Sequence[int]], edit: Edit, runtime: Runtime, folder: Path) -> None:
    """Try each chain; a child that a chain ends is followed by another for the rest."""
    left = list(unknown.items())
    while left:
        with conversing(_WORKER, folder / "probe.log") as child:
            while left:
                key, chain = left.pop(0)
                path = folder / "pair.tflite"
                path.write_bytes(edit.cut(chain))
                _KNOWN[key], alive = _answer(child, path, runtime)
                if not alive:
                    break


def _answer(child: Conversation, path: Path, runtime: Runtime) -> tuple[str, bool]:
    try:
        child.ask({"file": str(path), "runtime": runtime}, _TIMEOUT_S)
    except ToolError as error:
        return error.message, False
    except EdgefuseError as error:
        return " ".join(error.message.split()), True
    return "", True
