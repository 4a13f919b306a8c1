"""Float TFLite to quantised TFLite: our own ranges, rounding and biases, or a search for them.

A model that brings its own scales (QDQ) keeps them, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

if TYPE_CHECKING:
    from edgefuse.quant.make import Made, Material
    from edgefuse.quant.qdq.qdq import Carried

_LINTED = ("calibration", "evaluation", "validation", "training")


@stage(
    name="quantize",
    summary="quantised TFLite with ranges from the calibration samples",
    file_name="{name}_full_integer_quant.tflite",
    inputs=("export", "convert", "equalize"),
    sections=("model.inputs", "model.tflite", "preprocess", "quantize", "check.permit_float"),
    samples=_LINTED,
    target_fields=("judging_runtime", "judging_kernels", "threads"),
    tools=("ai-edge-quantizer", "ai-edge-litert", "numpy", "torch"),
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.quant.lint.lint import lint
    from edgefuse.quant.make import Maker
    from edgefuse.quant.qdq.exact import described, write_exact
    from edgefuse.quant.qdq.qdq import refuse_options
    from edgefuse.tflite.feeds import with_output_layouts
    from edgefuse.tflite.read import read_model, signature_of

    float_model, options = inputs["convert"], recipe.quantize
    given = _carried(inputs, recipe, context)
    if given is not None:
        refuse_options(options, given)
    material = _material(inputs, recipe, context, given)
    path = context.work / context.file_name
    maker = Maker(material)
    evidence: dict[str, Any] = {"calibration_samples": material.samples}
    if options.goal is None and options.qat is None:
        made = maker.make(options, path)
    else:
        from edgefuse.quant.search.pursue import fine_tuned, pursue

        if options.goal is not None:
            made, evidence["search"] = pursue(maker, recipe, context)
        else:
            made = fine_tuned(maker, options, recipe, context)
        made.path.rename(path)
    for text in made.measured.warnings:
        context.warn(text)
    sets = {role: context.samples(role) for role in _LINTED if role in context.roles}
    statistics, ranges = made.measured.statistics, made.measured.ranges
    findings = lint(float_model.path, recipe, sets, context.downloads, statistics, ranges)
    for finding in findings:
        if finding.severity == "warning":
            context.warn(finding.text)
    evidence |= {**made.evidence, "lint": [asdict(finding) for finding in findings]}
    evidence["summary"] = _summary(made, material, path.stat().st_size, evidence)
    if given is not None:
        evidence["given"] = write_exact(path, given)
        said, warnings = described(evidence["given"])
        evidence["summary"] = f"{said}, {path.stat().st_size / 1e6:.2f} MB"
        for text in warnings:
            context.warn(text)
    layouts = {spec.name: spec.layout for spec in float_model.signature.outputs}
    signature = with_output_layouts(signature_of(read_model(path)), layouts)
    return Product("tflite", path, signature, evidence)


def _material(
    inputs: Mapping[str, Artifact], recipe: Recipe, context: Context, given: Carried | None
) -> Material:
    from edgefuse.quant.make import Material
    from edgefuse.tflite.feeds import stacks

    samples, float_model = context.samples("calibration"), inputs["convert"]
    unequal = inputs["equalize"].evidence.get("refused", "") if "equalize" in inputs else ""

    def feeds() -> Iterator[dict[str, Any]]:
        fed = stacks(samples, float_model.signature, recipe, context, "calibration samples")
        return (feed for feed, _ in fed)

    return Material(
        float_file=float_model.path,
        equalized_file=None if unequal or "equalize" not in inputs else inputs["equalize"].path,
        not_equalized=unequal,
        feeds=feeds,
        samples=samples.count,
        digest=samples.digest,
        batch=recipe.model.batch,
        given=given.ranges if given is not None else {},
        runtime=context.target.judging_runtime,
        work=context.work,
        scratch=context.scratch,
        warn=context.warn,
        progress=context.progress,
    )


def _carried(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Carried | None:
    """The scales that a QDQ model brings itself."""
    from edgefuse.data import take
    from edgefuse.quant.qdq.qdq import carried
    from edgefuse.tflite.feeds import source_layouts

    if "export" not in inputs:
        return None
    samples = context.samples("calibration")
    (first,) = take(samples, context.downloads, 1, recipe.model.batch)
    layouts = source_layouts(recipe)
    return carried(inputs["export"].path, inputs["convert"].path, layouts, first)


def _summary(made: Made, material: Material, size: int, evidence: Mapping[str, Any]) -> str:
    said = f"{len(made.measured.ranges)} ranges from {material.samples} samples"
    if not made.measured.ranges:
        said = "activations stay float: no ranges"
    if "search" in evidence:
        said = f"{evidence['search']['chosen']}, of {len(evidence['search']['trials'])} tried"
    elif "fine_tuning" in evidence:
        said += f", fine-tuned on {evidence['fine_tuning']['samples']}"
    return f"{said}, {size / 1e6:.2f} MB"
