"""Fuse one ONNX file into another, and prove that the numbers stayed.

Every pass that fires is checked at once (:mod:`edgefuse.graph.proof`): on a seeded random probe and
on a real sample the model must answer as before, within the pass's own tolerance. The finished file
is checked against the *input file* on real samples. A pass that is wrong ends the run with the name
of the application, and with a reproducer (:mod:`edgefuse.graph.reproduce`).
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, RecipeError, StageError
from edgefuse.graph.normalise import load_proto, prepare
from edgefuse.graph.pipeline import ordered, run_passes
from edgefuse.graph.proven import run_proven
from edgefuse.graph.rule import PASSES, Pass
from edgefuse.graph.snapshot import Snapshot
from edgefuse.graph.summary import figures, operator_counts
from edgefuse.graph.verify import SKIP_PASSES, Feed, Runner, check_structure, seeded_feed
from edgefuse.parity import difference

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Progress = Callable[[int, int, str], None]
SEED = 20


def fuse_file(
    source: Path,
    destination: Path,
    *,
    feeds: Iterable[Feed],
    skip: Sequence[str] = (),
    max_relative_error: float = 1e-4,
    reproducer: Path | None = None,
    fold_size_limit_bytes: int = 1 << 22,
    progress: Progress = lambda done, total, text: None,
) -> dict[str, Any]:
    """Fuse ``source`` into ``destination``; equal inputs give equal bytes.

    Args:
        feeds: real samples, dictionaries keyed by input name; at least one.
        skip: passes not to run.
        max_relative_error: of the finished model against ``source``, relative to the largest
            |output|.
        reproducer: folder to save the smallest failing graph in when a pass is wrong; an older
            one is removed. None saves nothing.
        fold_size_limit_bytes: no constant larger than this is made.
        progress: called with steps done, steps in all, and what comes next.

    Returns:
        JSON-able evidence: operators_before and operators_after (nodes by type), passes, ledger,
        saved, parity; operators, intermediate_bytes and peak_bytes, each before and after, as
        :class:`edgefuse.graph.summary.Figures` counts them.

    Raises:
        RecipeError: an unknown pass in ``skip``.
        SourceError: the file is no valid ONNX model, or was exported in training mode.
        StageError: the result is not valid.
        ParityError: a pass or the whole changed the numbers.
        DataError: no feed.
    """
    passes = ordered(PASSES.all())
    _check_names(passes, skip)
    samples = list(feeds)
    if not samples:
        raise DataError("fusing needs at least one real sample to prove itself on")
    chosen = [p.name for p in passes if p.name not in skip]
    total = len(chosen) + 3
    if reproducer is not None:
        shutil.rmtree(reproducer, ignore_errors=True)
    progress(0, total, "reading")
    proto = load_proto(source)
    reference = Runner(source)
    model = prepare(proto)
    before = figures(model)
    furthest = 0

    def observe(entry: Pass, fired: int) -> None:
        nonlocal furthest
        furthest = max(furthest, 1 + chosen.index(entry.name))
        progress(furthest, total, f"{entry.name}: {fired}")

    ledger, errors = run_proven(
        model,
        passes,
        samples[0],
        seeded_feed(proto, seed=SEED, like=samples[0]),
        skip=skip,
        fold_size_limit_bytes=fold_size_limit_bytes,
        reproducer=reproducer,
        observe=observe,
    )
    progress(total - 2, total, "checking the finished graph")
    finished = serialise(model)
    check_structure(Snapshot.of(model).proto)
    _check_at_rest(finished, passes, skip, fold_size_limit_bytes)
    progress(total - 1, total, "comparing with the input on real samples")
    data = finished.SerializeToString(deterministic=True)
    candidate = Runner(data)
    parity = difference(
        ((reference(feed), candidate(feed)) for feed in samples),
        max_relative_error=max_relative_error,
        hint=SKIP_PASSES,
    )
    destination.write_bytes(data)
    after = figures(model)
    progress(total, total, "done")
    return {
        "operators_before": operator_counts(proto),
        "operators_after": operator_counts(finished),
        "passes": [
            {
                "name": p.name,
                "fired": ledger.fired(p.name),
                "refused": len(ledger.refused(p.name)),
                "max_relative_error": errors.get(p.name, 0.0),
            }
            for p in passes
        ],
        "ledger": ledger.to_json(),
        "saved": {
            "intermediate_bytes": ledger.saved_bytes,
            "launches": ledger.saved_launches,
        },
        **{
            name: {"before": getattr(before, name), "after": getattr(after, name)}
            for name in ("operators", "intermediate_bytes", "peak_bytes")
        },
        "parity": parity.evidence(max_relative_error),
    }


def serialise(model: ir.Model) -> onnx.ModelProto:
    """The model as a proto, tensors and shapes in the order of their first use."""
    import onnx_ir as ir

    proto: onnx.ModelProto = ir.serde.serialize_model(model)
    order: dict[str, int] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.inputs:
            if value is not None:
                order.setdefault(str(value.name), len(order))
        for value in node.outputs:
            order.setdefault(str(value.name), len(order))

    def place(item: Any) -> tuple[int, str]:
        return order.get(item.name, len(order)), item.name

    tensors = sorted(proto.graph.initializer, key=place)
    constants = {t.name for t in tensors}
    infos = sorted((i for i in proto.graph.value_info if i.name not in constants), key=place)
    del proto.graph.initializer[:], proto.graph.value_info[:]
    proto.graph.initializer.extend(tensors)
    proto.graph.value_info.extend(infos)
    return proto


def _check_at_rest(
    finished: onnx.ModelProto, passes: Sequence[Pass], skip: Sequence[str], limit: int
) -> None:
    """The finished graph, read back, is a fixed point: no pass fires on it."""
    import onnx_ir as ir

    model = ir.serde.deserialize_model(finished)
    _, ledger = run_passes(model, passes=passes, skip=skip, fold_size_limit_bytes=limit)
    again = [entry for entry in ledger.entries if entry.status == "fired"]
    if again:
        raise StageError(
            f"pass {again[0].pass_name} fires again on the finished graph",
            hint=f"add {again[0].pass_name} to fuse.skip, and report this",
            where=again[0].nodes[0] if again[0].nodes else "",
        )


def _check_names(passes: Sequence[Pass], skip: Sequence[str]) -> None:
    known = [p.name for p in passes]
    for name in skip:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise RecipeError(
                f"there is no pass {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"passes: {', '.join(known)}",
                where="fuse.skip",
            )
