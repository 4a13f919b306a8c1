"""The search for a recipe: what it judges on, whom it asks, and how it ends in vain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.data import batches
from edgefuse.errors import GateFailed
from edgefuse.quant.goal import Judge
from edgefuse.quant.search import Blamed, Found, search
from edgefuse.stage import REPRODUCER
from edgefuse.tflite.feeds import source_layouts, streamed
from edgefuse.tflite.read import read_model, signature_of

if TYPE_CHECKING:
    from edgefuse.quant.make import Made, Maker
    from edgefuse.recipe import Recipe
    from edgefuse.stage import Context

_BLAME_SAMPLES = 16
_PROCESSES, _ROUNDS = 2, 20


def pursue(maker: Maker, recipe: Recipe, context: Context) -> tuple[Made, dict[str, Any]]:
    """Search for ``quantize.goal``.

    Returns:
        The file that reaches it, and the evidence of the way to it.

    Raises:
        GateFailed: nothing reached it; the best file and the search are left beside the log.
        DataError: data.validation does not fit the goal.
    """
    goal = recipe.quantize.goal
    assert goal is not None
    material, target = maker.material, context.target
    signature = signature_of(read_model(material.float_file))
    samples = context.samples("validation")
    counts: list[int] = []

    def validation() -> Iterator[dict[str, Any]]:
        for feed, held in batches(samples.samples(context.downloads), recipe.model.batch):
            counts.append(len(held))
            yield from streamed(signature, source_layouts(recipe), [feed])

    labels = [entry.label for entry in samples.entries]
    judge = Judge(
        material.float_file,
        validation(),
        counts,
        [label for label in labels if label is not None] if samples.labelled else None,
        goal,
        material.work / "validation",
        runtime=target.runtime,
        kernels=target.kernels,
    )

    def latency(path: Path) -> float:
        from edgefuse.devices.bench import measure_latency

        found = measure_latency(
            material.float_file,
            path,
            log=context.log,
            runtime=target.runtime,
            kernels=target.kernels,
            threads=target.threads,
            processes=_PROCESSES,
            rounds=_ROUNDS,
            seed=recipe.seed,
        )
        return round(found.ratio, 4)

    found = search(
        maker,
        recipe.quantize,
        judge,
        permitted=recipe.check.permit_float,
        blame=lambda made: _blamed(made, maker, context),
        latency=latency,
    )
    evidence = found.evidence(goal)
    if not found.best.meets:
        _leave(found, evidence, context)
        raise _failure(found, goal.model_dump(exclude_none=True, exclude={"time_limit_s"}))
    return found.made, evidence


def _blamed(made: Made, maker: Maker, context: Context) -> Sequence[Blamed]:
    from itertools import islice

    from edgefuse.quant.blame import blame

    work = maker.material.work / "blame"
    work.mkdir()
    model = read_model(made.float_file)
    try:
        found = blame(
            made.float_file,
            made.path,
            islice(maker.material.feeds(), _BLAME_SAMPLES),
            work,
            runtime=context.target.runtime,
            kernels=context.target.kernels,
            progress=context.progress,
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    layers = []
    for row in found.rows:
        if row.float_index is not None:
            operator = model.operators[row.float_index]
            name = model.tensors[operator.outputs[0]].name
            layers.append(Blamed(name, operator.code, round(row.noise_share_percent, 2)))
    return layers


def _leave(found: Found, evidence: dict[str, Any], context: Context) -> None:
    """The best file and the path taken, beside the log."""
    folder = context.log.parent / REPRODUCER
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found.made.path, folder / "best.tflite")
    (folder / "search.json").write_text(json.dumps(evidence, indent=1, sort_keys=True))


def _failure(found: Found, goal: dict[str, float]) -> GateFailed:
    wanted = ", ".join(f"{name} {value:g}" for name, value in goal.items())
    layers = ", ".join(f"{b.tensor} ({b.share_percent:.0f}%)" for b in found.blamed[:3])
    blamed = f"; most of the noise comes from {layers}" if layers else ""
    untried = f"; {found.untried}" if found.untried else ""
    return GateFailed(
        f"none of {len(found.trials)} candidates reaches the goal ({wanted}); the best is "
        f"{found.best.technique}: {found.best.score.told()}{blamed}{untried}",
        hint="allow the operators to blame in check.permit_float, give more calibration samples, "
        f"add quantize.qat, or lower the goal; {REPRODUCER}/ beside the log has the best file and "
        "the path taken",
        where="quantize.goal",
    )
