"""Float TFLite to float TFLite whose channels use their tensors' int8 ranges evenly.

The function stays what it was, up to channels that pass their ReLU6 on samples that calibration did
not see; how far that goes is measured on evaluation samples and limited. Past the limit the
channels that a ReLU6 bounds are left as they were; past it again, the stage ends with an error. A
model that cannot be equalised is left as it is where only a search might have asked for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.errors import ParityError, StageError
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

if TYPE_CHECKING:
    from edgefuse.parity import Difference

_COMPARED_BATCHES = 32
_MAX_RELATIVE_ERROR = 0.05


@stage(
    name="equalize",
    summary="float TFLite with its channels scaled evenly, the function unchanged",
    file_name="{name}_equalized_float32.tflite",
    inputs=("convert",),
    sections=("model.inputs", "model.tflite", "preprocess", "quantize.equalize", "quantize.goal"),
    samples=("calibration", "evaluation"),
    tools=("ai-edge-litert", "numpy", "torch"),
    applies=lambda recipe: recipe.quantize.may_equalize,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    float_model = inputs["convert"]
    path = context.work / context.file_name
    try:
        evidence = _equalized(float_model, path, recipe, context)
    except (ParityError, StageError) as error:
        if recipe.quantize.equalize:
            raise
        # Only a search may ask for it, and goes on without.
        shutil.copyfile(float_model.path, path)
        evidence = {"refused": error.message, "summary": f"left as it was: {error.message}"}
    return Product("tflite", path, float_model.signature, evidence)


def _equalized(
    float_model: Artifact, path: Path, recipe: Recipe, context: Context
) -> dict[str, Any]:
    """Write the file, without what a ReLU6 bounds where it would cut too much; the evidence."""
    from edgefuse.quant.weights.equalize import equalize
    from edgefuse.tflite.feeds import stacks

    samples = context.samples("calibration")
    for capped in (True, False):
        fed = stacks(samples, float_model.signature, recipe, context, "channel ranges")
        feeds = (feed for feed, _ in fed)
        found = equalize(float_model.path, path, feeds, capped=capped)
        try:
            error = _changed(float_model, path, recipe, context)
            break
        except ParityError:
            if not capped:
                raise
    return {
        "equalize": {**found, "relu6": capped},
        "parity": asdict(error),
        "summary": f"{found['channels']} channels in {found['groups']} groups"
        f"{'' if capped else ', those that ReLU6 bounds left alone'}, relative error "
        f"{error.max_rel_to_peak:.1e}",
    }


def _changed(float_model: Artifact, path: Path, recipe: Recipe, context: Context) -> Difference:
    """How far the function moved on evaluation samples; ParityError beyond the limit."""
    from edgefuse.data import take
    from edgefuse.parity import difference
    from edgefuse.tflite.feeds import run_samples, source_layouts

    layouts = source_layouts(recipe)
    judged = take(
        context.samples("evaluation"), context.downloads, _COMPARED_BATCHES, recipe.model.batch
    )
    reference = list(run_samples(float_model.path, layouts, judged))
    candidate = list(run_samples(path, layouts, judged))
    return difference(
        zip(reference, candidate),
        max_relative_error=_MAX_RELATIVE_ERROR,
        what="float against equalised float",
        hint="calibrate on more samples, of the kind that the model will see, or set "
        "quantize.equalize: false",
    )
