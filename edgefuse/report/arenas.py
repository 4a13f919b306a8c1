"""The part ``arenas`` of a report: the arenas of a run's graphs and files, planned once.

Planning takes longer than a cached run, so each file's arenas are remembered in the store by the
file's digest and by the code that planned them: ``arenas/<key>.json``. What is missing there or
does not match its own digest is made anew.

Keys: ``planned`` (``what``, ``drawn``: whether the picture shows it, and those of
:func:`edgefuse.memory.files.from_json`), ``left_out`` (``what``, ``why``: files whose memory cannot
be planned).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import digest_json
from edgefuse.errors import EdgefuseError, SourceError, StageError, StoreError
from edgefuse.keys import code_digest
from edgefuse.store import write_atomically

if TYPE_CHECKING:
    from edgefuse.artifact import Artifact
    from edgefuse.plan import Job
    from edgefuse.runner import Outcome

_PLANNED = {"export": "unfused", "fuse": "fused", "quantize": "int8", "shrink": "shrunk"}


def arenas(job: Job, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The arenas of what a run made."""
    made = {o.stage.name: o.artifact for o in outcomes if o.artifact is not None}
    document: dict[str, Any] = {"planned": [], "left_out": []}
    for stage, what in _PLANNED.items():
        artifact = made.get(stage)
        if artifact is None or artifact.kind not in ("onnx", "tflite"):
            continue
        if stage == "quantize":
            what = job.recipe.quantize.format
        for held in _remembered(job, artifact, made):
            if "why" in held:
                document["left_out"].append({"what": what, "why": held["why"]})
            else:
                document["planned"].append({"what": what, **held})
    return document


def _remembered(job: Job, artifact: Artifact, made: Mapping[str, Artifact]) -> list[dict[str, Any]]:
    """The arenas of one file, out of the store or planned now."""
    trace = made.get("trace")
    parts = [artifact.sha256, trace.sha256 if trace and artifact.kind == "tflite" else ""]
    if artifact.stage == "shrink":
        parts.append(made["quantize"].sha256)
    judge = _judge(job)
    key = digest_json([*parts, judge, code_digest("edgefuse.memory.files")])
    path = job.store.root / "arenas" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["digest"] == digest_json(record["arenas"]):
            return list(record["arenas"])
    try:
        found = _planned(artifact, made, judge)
    except (SourceError, StageError) as error:
        found = [{"why": error.message}]
    except EdgefuseError as error:  # Of this machine, not of the file: not remembered.
        return [{"why": error.message}]
    record = {"digest": digest_json(found), "arenas": found}
    with contextlib.suppress(StoreError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, sort_keys=True).encode())
    return found


def _judge(job: Job) -> str:
    """The runtime whose arena of a .tflite file is drawn: that of the target."""
    asked = job.recipe.memory.judged_by if job.recipe.memory else None
    return asked or job.target.judging_arena


def _planned(artifact: Artifact, made: Mapping[str, Artifact], judge: str) -> list[dict[str, Any]]:
    from edgefuse.memory.files import RUNTIMES, onnx_file_arena, tensor_modules, tflite_arena
    from edgefuse.tflite.read import read_model

    if artifact.kind == "onnx":
        return [{"drawn": True, **onnx_file_arena(artifact.path).as_json()}]
    modules = {}
    if "trace" in made:
        int8 = read_model(made["quantize"].path)
        modules = tensor_modules(int8, made["trace"].evidence["trace"]["nodes"])
    model = read_model(Path(artifact.path))
    return [
        {"drawn": runtime == judge, **tflite_arena(model, runtime, modules).as_json()}
        for runtime in RUNTIMES
    ]
