"""Graph fusion: every registered pass, each verified, with a ledger of what fired and what not."""

from __future__ import annotations

from collections.abc import Mapping

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import REPRODUCER, Context, stage


@stage(
    name="fuse",
    summary="the fused graph, with a ledger of what fired and what was refused and why",
    file_name="{name}_fused.onnx",
    inputs=("export",),
    sections=("preprocess", "model.inputs", "fuse"),
    samples=("evaluation",),
    tools=("onnx", "onnxruntime", "onnxscript", "onnx-ir", "numpy"),
    applies=lambda recipe: recipe.model.tflite is None,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.data import take
    from edgefuse.graph.fuse import fuse_file

    options = recipe.fuse
    path = context.work / context.file_name
    feeds = take(
        context.samples("evaluation"), context.downloads, options.parity_samples, recipe.model.batch
    )
    evidence = fuse_file(
        inputs["export"].path,
        path,
        skip=options.skip,
        feeds=feeds,
        max_relative_error=options.max_relative_error,
        fold_size_limit_bytes=options.fold_size_limit_bytes,
        reproducer=context.log.parent / REPRODUCER,
        progress=context.progress,
    )
    fired = sum(row["fired"] for row in evidence["passes"])
    refused = sum(row["refused"] for row in evidence["passes"])
    before, after = (evidence["operators"][when] for when in ("before", "after"))
    evidence["summary"] = f"{before} -> {after} operators; {fired} rewrites, {refused} refused"
    return Product("onnx", path, inputs["export"].signature, evidence)
