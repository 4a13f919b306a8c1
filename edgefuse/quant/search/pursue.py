"""The search for a recipe: what it judges on, whom it asks, and how it ends in vain.

Fine-tuning is its last resort, and may be asked for without a search.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import GateFailed
from edgefuse.labels import fits_classes, require_classes
from edgefuse.quant.search.goal import Judge
from edgefuse.quant.search.islands import islands
from edgefuse.quant.search.search import Blamed, Found, search
from edgefuse.stage import REPRODUCER
from edgefuse.tflite.feeds import stacks
from edgefuse.tflite.read import read_model, signature_of

if TYPE_CHECKING:
    from edgefuse.data import SampleSet
    from edgefuse.quant.make import Made, Maker
    from edgefuse.recipe import Recipe
    from edgefuse.recipe.quantize import Quantize
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
    samples = context.samples("validation")
    signature = signature_of(read_model(material.float_file))
    first = signature.outputs[0]
    if goal.max_drop_points is not None and samples.labelled:
        require_classes(samples, first, "data.validation")
    counts: list[int] = []

    def validation() -> Iterator[dict[str, Any]]:
        for feed, count in stacks(samples, signature, recipe, context):
            counts.append(count)
            yield feed

    judge = Judge(
        material.float_file,
        validation(),
        counts,
        _labels(samples) if fits_classes(samples, first) else None,
        goal,
        material.work / "validation",
        runtime=target.judging_runtime,
        kernels=target.judging_kernels,
    )

    def latency(path: Path) -> float:
        from edgefuse.devices.measure.bench import measure_latency

        found = measure_latency(
            material.float_file,
            path,
            log=context.log,
            runtime=target.judging_runtime,
            kernels=target.judging_kernels,
            threads=target.threads,
            processes=_PROCESSES,
            rounds=_ROUNDS,
            seed=recipe.seed,
        )
        return round(found.ratio, 4)

    def last_resort(options: Quantize) -> tuple[Made, str]:
        made = fine_tuned(maker, options, recipe, context)
        return made, f"fine-tuning, {made.evidence['fine_tuning']['steps']} steps"

    found = search(
        maker,
        recipe.quantize,
        judge,
        blame=lambda made: _blamed(made, maker, context),
        islands=lambda blamed: islands(
            read_model(material.float_file),
            {layer.tensor: layer.share_percent for layer in blamed},
            recipe.check.permit_float,
        ),
        latency=latency,
        last_resort=last_resort if recipe.quantize.qat is not None else None,
    )
    evidence = found.evidence(goal)
    if not found.best.meets:
        _leave(found, evidence, context)
        wanted = goal.model_dump(exclude_none=True, exclude={"time_limit_s"})
        raise _failure(found, wanted, recipe.quantize.qat is not None)
    return found.made, evidence


def fine_tuned(maker: Maker, options: Quantize, recipe: Recipe, context: Context) -> Made:
    """Make the file that ``options`` describe, then train its weights on data.training.

    Raises:
        DataError, StageError: as making it and :func:`~edgefuse.quant.weights.qat.fine_tune` do.
    """
    from edgefuse.quant.weights.qat import fine_tune

    qat = recipe.quantize.qat
    assert qat is not None
    work = maker.material.work
    plain = options.model_copy(update={"goal": None, "qat": None})
    base = maker.make(plain, work / "untrained.tflite")
    samples = context.samples("training")
    signature = signature_of(read_model(maker.material.float_file))

    def single() -> Iterator[dict[str, Any]]:
        for feed, count in stacks(samples, signature, recipe, context):
            for place in range(count):
                yield {name: value[place : place + 1] for name, value in feed.items()}

    trained = work / "trained_float.tflite"
    tuned = fine_tune(
        maker.material.float_file,
        base.float_file,
        base.path,
        single(),
        samples.count,
        _labels(samples),
        trained,
        qat,
        seed=recipe.seed,
        work=work / "training",
        progress=lambda done, total: context.progress(done, total, "fine-tuning steps"),
    )
    if not tuned.best_step:
        context.warn(
            f"fine-tuning never lowered its loss on the training samples ({tuned.first_loss:.3g}): "
            "lower quantize.qat.learning_rate, give more steps, or leave qat out"
        )
    made = maker.remake(plain, base, trained, work / "trained.tflite")
    base.path.unlink()
    return replace(made, evidence={**made.evidence, "fine_tuning": tuned.to_json()})


def _labels(samples: SampleSet) -> list[int] | None:
    if not samples.labelled:
        return None
    return [entry.label for entry in samples.entries if entry.label is not None]


def _blamed(made: Made, maker: Maker, context: Context) -> Sequence[Blamed]:
    from itertools import islice

    from edgefuse.quant.blame.blame import blame

    work = maker.material.work / "blame"
    work.mkdir()
    model = read_model(made.float_file)
    try:
        found = blame(
            made.float_file,
            made.path,
            islice(maker.material.feeds(), _BLAME_SAMPLES),
            work,
            runtime=context.target.judging_runtime,
            kernels=context.target.judging_kernels,
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


def _failure(found: Found, goal: dict[str, float], tuned: bool) -> GateFailed:
    wanted = ", ".join(f"{name} {value:g}" for name, value in goal.items())
    # A fused operator's tensor is named after all that it holds.
    layers = ", ".join(
        f"{b.tensor.split(';')[0]} ({b.share_percent:.0f}%)" for b in found.blamed[:3]
    )
    blamed = f"; the layers with the largest shares of the noise: {layers}" if layers else ""
    tuning = "give more quantize.qat.steps" if tuned else "add quantize.qat"
    untried = f"; {found.untried}" if found.untried else ""
    return GateFailed(
        f"none of {len(found.trials)} candidates reaches the goal ({wanted}); the best is "
        f"{found.best.technique}: {found.best.score.told()}{blamed}{untried}",
        hint="allow the operators to blame in check.permit_float, give more calibration samples, "
        f"{tuning}, or lower the goal; {REPRODUCER}/ beside the log has the best file and "
        "the path taken",
        where="quantize.goal",
    )
