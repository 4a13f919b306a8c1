"""Float TFLite to full-integer TFLite: one streaming calibration, our own ranges.

A model that brings its own scales (QDQ) keeps them, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

_LINTED = ("calibration", "evaluation", "validation", "training")


@stage(
    name="quantize",
    summary="full-integer TFLite with ranges from the calibration samples",
    file_name="{name}_full_integer_quant.tflite",
    inputs=("export", "convert"),
    sections=("model.inputs", "model.tflite", "preprocess", "quantize"),
    samples=_LINTED,
    tools=("ai-edge-quantizer", "ai-edge-litert", "numpy"),
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.data import batches, take
    from edgefuse.quant.exact import described, write_exact
    from edgefuse.quant.head_bias import correct_head
    from edgefuse.quant.lint import lint
    from edgefuse.quant.measure import measure_ranges
    from edgefuse.quant.qdq import carried, refuse_options
    from edgefuse.quant.quantize import quantize_file
    from edgefuse.tflite.feeds import source_layouts, streamed, with_output_layouts
    from edgefuse.tflite.read import read_model, signature_of

    samples = context.samples("calibration")
    float_model = inputs["convert"]

    def feeds() -> Iterator[dict[str, Any]]:
        done = 0
        for feed, held in batches(samples.samples(context.downloads), recipe.model.batch):
            yield feed
            done += len(held)
            context.progress(done, samples.count, "calibrating")

    def fitted() -> Iterator[dict[str, Any]]:
        return streamed(float_model.signature, source_layouts(recipe), feeds())

    options = recipe.quantize
    given = None
    if "export" in inputs:
        (first,) = take(samples, context.downloads, 1, recipe.model.batch)
        layouts_in = source_layouts(recipe)
        given = carried(inputs["export"].path, float_model.path, layouts_in, first)
    if given is not None:
        refuse_options(options)
    measured = measure_ranges(
        float_model.path,
        fitted(),
        options,
        samples=samples.count,
        samples_digest=samples.digest,
        batch=recipe.model.batch,
        scratch=context.scratch,
        warn=context.warn,
    )
    for text in measured.warnings:
        context.warn(text)
    statistics, ranges = measured.statistics, measured.ranges
    sets = {role: context.samples(role) for role in _LINTED if role in context.roles}
    findings = lint(float_model.path, recipe, sets, context.downloads, statistics, ranges)
    for finding in findings:
        if finding.severity == "warning":
            context.warn(finding.text)
    if given is not None:
        ranges = {**ranges, **given.ranges}
    path = context.work / context.file_name
    quantize_file(
        float_model.path,
        path,
        ranges,
        format=options.format,
        per_tensor_weights=options.weights == "per_tensor",
        input_type=options.input_type,
        output_type=options.output_type,
    )
    correction = (
        correct_head(float_model.path, path, fitted()) if options.correct_bias == "head" else {}
    )
    evidence = {
        "calibration_samples": samples.count,
        **measured.evidence,
        "lint": [asdict(finding) for finding in findings],
        "head_bias": {name: round(value, 6) for name, value in correction.items()},
        "summary": f"{len(ranges)} ranges from {samples.count} samples, "
        f"{path.stat().st_size / 1e6:.2f} MB",
    }
    if given is not None:
        evidence["given"] = write_exact(path, given)
        said, warnings = described(evidence["given"])
        evidence["summary"] = f"{said}, {path.stat().st_size / 1e6:.2f} MB"
        for text in warnings:
            context.warn(text)
    layouts = {spec.name: spec.layout for spec in float_model.signature.outputs}
    signature = with_output_layouts(signature_of(read_model(path)), layouts)
    return Product("tflite", path, signature, evidence)
