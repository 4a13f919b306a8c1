"""``edgefuse explain``: what fused, what did not and why, where each operator ended."""

from __future__ import annotations

import difflib
import gc
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse import console as consoles
from edgefuse.errors import EdgefuseError, SourceError, UsageError
from edgefuse.fetch import Downloads
from edgefuse.job import make_job
from edgefuse.log_file import logged
from edgefuse.plan import Job
from edgefuse.runner import run_aside
from edgefuse.store import Store, default_root

if TYPE_CHECKING:
    from edgefuse.artifact import Artifact
    from edgefuse.console import Console
    from edgefuse.graph.advice import Advice
    from edgefuse.graph.cost import Balance

LOG = "explain.log"
_TIMED_SAMPLES = 8
_TIMED_REPEATS = 3


@dataclass(frozen=True)
class Fused:
    """What is explained: one graph before and after the passes.

    Attributes:
        evidence: of the fuse stage.
        trace: of the trace stage; empty when the graph was not followed to TFLite.
        advice: remarks from measurements, beside those from the graph.
        balance: of the target; None when it has none.
        error: why the graph could not be followed to the end.
    """

    source: str
    unfused: Path
    fused: Path
    evidence: Mapping[str, Any]
    trace: Mapping[str, Any] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    balance: Balance | None = None
    error: EdgefuseError | None = None


def explain(
    source: Path,
    *,
    settings: Sequence[str] = (),
    target: str | None = None,
    node: str | None = None,
    refused_only: bool = False,
    quiet: bool = False,
) -> tuple[dict[str, Any], EdgefuseError | None]:
    """Explain a recipe (fused, converted and quantised where that is not cached) or an .onnx file.

    Args:
        node: only what concerns this node or torch module.
        refused_only: only what was refused.

    Returns:
        The document (schema 1: ``entries``, ``operators``, ``counts``, ``trace``, ``advice``), and
        the error that kept the graph from being followed to TFLite; None when there was none.

    Raises:
        UsageError: neither a recipe nor an .onnx file, or an unknown node.
        EdgefuseError: of a stage that cannot do its work.
    """
    gc.enable()
    suffix = source.suffix.lower()
    if suffix not in (".yaml", ".yml", ".onnx"):
        raise UsageError(
            f"{source} is neither a recipe (.yaml) nor an ONNX model (.onnx)",
            hint="a .tflite file has no passes to explain: give its recipe",
        )
    if not source.is_file():
        raise UsageError(f"there is no file {source}")
    job = None if suffix == ".onnx" else make_job(source, settings, target)
    if job is None and (settings or target):
        raise UsageError("--set and --target need a recipe, not a model")
    store = Store(default_root()) if job is None else job.store
    console = consoles.choose(quiet=quiet, verbose=False)
    try:
        with store.work_folder() as work, logged(work / LOG, f"explain {source}"):
            found = (
                _of_model(source, work, console) if job is None else _of_recipe(job, work, console)
            )
            document = _document(found)
    finally:
        console.close()
    return _narrowed(document, node, refused_only), found.error


def _of_recipe(job: Job, work: Path, console: Console) -> Fused:
    if job.recipe.model.source == "tflite":
        raise UsageError(
            "the recipe's source is a .tflite file: no pass of ours ran on it",
            hint="explain a recipe whose source is torch or onnx",
        )
    log = work / LOG
    result = run_aside(job, "trace", work, console, log)
    made = result.made
    if result.error is not None and "fuse" not in made:
        raise result.error
    return Fused(
        source=job.recipe.name,
        unfused=made["export"].path,
        fused=made["fuse"].path,
        evidence=made["fuse"].evidence,
        trace=made["trace"].evidence["trace"] if "trace" in made else {},
        advice=_outside(job, made, console) if "quantize" in made else (),
        balance=_balance(job, log),
        error=result.error,
    )


def _balance(job: Job, log: Path) -> Balance | None:
    from edgefuse.devices.measure.balance import balance_of

    known = balance_of(job.target, log)
    return None if known is None else known.balance


def _outside(job: Job, made: Mapping[str, Artifact], console: Console) -> tuple[Advice, ...]:
    """Compare the time of preparing a sample with that of the model, on this machine."""
    from edgefuse.data import take
    from edgefuse.graph.advice import outside
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.runtime import open_model

    if job.recipe.data.evaluation.arrays or job.target.transport != "local":
        return ()
    samples = job.samples_of("evaluation")
    downloads = Downloads(job.store.root / "downloads", job.base, console.tell)
    batch = job.recipe.model.batch
    feeds, preparing = [], []
    for _ in range(_TIMED_REPEATS):
        begun = time.perf_counter()
        feeds = take(samples, downloads, _TIMED_SAMPLES, batch)
        preparing.append((time.perf_counter() - begun) / _TIMED_SAMPLES)
    model = open_model(made["quantize"].path, threads=job.target.threads)
    running = []
    for feed in streamed(model.signature, source_layouts(job.recipe), feeds):
        model.run(feed)
        for _ in range(_TIMED_REPEATS):
            begun = time.perf_counter()
            model.invoke()
            running.append(time.perf_counter() - begun)
    return tuple(
        outside(
            statistics.median(running) * 1e3, statistics.median(preparing) * 1e3, _TIMED_SAMPLES
        )
    )


def _of_model(path: Path, work: Path, console: Console) -> Fused:
    from edgefuse.graph.fuse import SEED, fuse_file
    from edgefuse.graph.normalise import load_proto
    from edgefuse.graph.verify import seeded_feed

    proto = load_proto(path)
    given = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in given and not all(
            d.HasField("dim_value") and d.dim_value > 0 for d in value.type.tensor_type.shape.dim
        ):
            raise SourceError(
                f"input {value.name!r} has a dynamic size",
                hint="write a recipe (edgefuse init): model.inputs pins the sizes, "
                "shapes: {buckets: [...]} names several",
                where=str(path),
            )
    fused = work / "fused.onnx"
    console.stage_started("fuse", 1, 1, None)
    begun = time.perf_counter()
    evidence = fuse_file(
        path, fused, feeds=[seeded_feed(proto, seed=SEED)], progress=console.progress
    )
    console.stage_ended("fuse", "ran", time.perf_counter() - begun, "")
    return Fused(path.name, path, fused, evidence)


def _document(found: Fused) -> dict[str, Any]:
    from edgefuse.graph.account import FATES, account_protos
    from edgefuse.graph.advice import advise
    from edgefuse.graph.ledger import LedgerEntry
    from edgefuse.graph.normalise import load_proto
    from edgefuse.graph.shapes import spelt_out

    ledger = [LedgerEntry.from_json(entry) for entry in found.evidence["ledger"]]
    fused = load_proto(found.fused)
    rows = account_protos(load_proto(found.unfused), fused, ledger)
    ends = {str(n["node"]): list(n["ends_in"]) for n in found.trace.get("nodes", ())}
    merged = {str(n["node"]): str(n["merged_into"]) for n in found.trace.get("nodes", ())}
    remarks = [*advise(spelt_out(fused), found.balance), *found.advice]
    return {
        "schema": 1,
        "source": found.source,
        "counts": {
            "operators": len(rows),
            "kernels": len({row.into for row in rows if row.into}),
            "int8_operators": _int8_operators(found.trace),
            "unexplained_int8_operators": len(found.trace.get("unexplained", ())),
            **{fate: sum(row.fate == fate for row in rows) for fate in FATES},
        },
        "passes": found.evidence["passes"],
        "entries": [{**entry.to_json(), "ends_in": ends.get(entry.node, [])} for entry in ledger],
        "operators": [
            {
                **row.to_json(),
                "ends_in": ends.get(row.into, []),
                "merged_into": merged.get(row.into, ""),
                "read_in_place": row.into in ends and not ends[row.into],
            }
            for row in rows
        ],
        "trace": {key: list(found.trace.get(key, ())) for key in ("layout", "unexplained")},
        "advice": [remark.to_json() for remark in remarks],
        "error": None if found.error is None else found.error.message,
    }


def _int8_operators(trace: Mapping[str, Any]) -> int | None:
    if not trace:
        return None
    placed = {label for node in trace["nodes"] for label in node["ends_in"]}
    return len(placed) + len(trace["layout"]) + len(trace["unexplained"])


def _narrowed(document: dict[str, Any], node: str | None, refused_only: bool) -> dict[str, Any]:
    if refused_only:
        document["entries"] = [e for e in document["entries"] if e["status"] == "refused"]
        document["operators"] = [r for r in document["operators"] if r["fate"] == "refused"]
    if node is None:
        return document
    names: set[str] = set()
    for row in document["operators"]:
        names |= {row["node"], row["module"], row["into"]}
    for entry in document["entries"]:
        names |= {entry["module"], *entry["nodes"]}
    names.discard("")
    if not any(_concerns(node, [name]) for name in names):
        near = difflib.get_close_matches(node, sorted(names), n=1)
        raise UsageError(
            f"no node or module is called {node!r}"
            + (" among the refused" if refused_only else ""),
            hint=f"did you mean {near[0]!r}?"
            if near
            else "`edgefuse explain --json` names them all",
        )
    document["entries"] = [
        e for e in document["entries"] if _concerns(node, [e["module"], e["node"], *e["nodes"]])
    ]
    document["operators"] = [
        r for r in document["operators"] if _concerns(node, [r["node"], r["module"], r["into"]])
    ]
    return document


def _concerns(wanted: str, names: Iterable[str]) -> bool:
    """Whether one of the names is the wanted one, or a module inside it."""
    return any(name == wanted or name.startswith(f"{wanted}.") for name in names)
