"""Where each node of the fused graph ended: its operators in the int8 file, followed by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage


@stage(
    name="trace",
    summary="the int8 operators that each node of the fused graph became",
    file_name="{name}_trace.json",
    inputs=("fuse", "convert", "quantize"),
    sections=("model.inputs", "preprocess"),
    samples=("evaluation",),
    tools=("ai-edge-litert", "onnx", "onnx-ir", "onnxruntime", "numpy"),
    applies=lambda recipe: recipe.model.tflite is None,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.data import take
    from edgefuse.graph.watch import watch
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.runtime import open_model
    from edgefuse.tflite.trace import trace

    fused = inputs["fuse"].path
    samples = context.samples("evaluation")
    feeds = take(samples, context.downloads, 1, recipe.model.batch)
    context.progress(1, 3, "values of the fused graph")
    nodes, onnx_values = watch(fused, feeds[0])
    context.progress(2, 3, "values of the float file")
    running = open_model(inputs["convert"].path, kernels="builtin", preserve_all_tensors=True)
    (feed,) = streamed(running.signature, source_layouts(recipe), feeds)
    running.run(feed)
    float_model, int8_model = running.source, read_model(inputs["quantize"].path)
    made = {
        i for op in float_model.operators for i in op.outputs if float_model.tensors[i].is_float
    }
    values = {index: running.value(index) for index in sorted(made)}
    found = trace(nodes, onnx_values, float_model, values, int8_model)

    def labels(indices: tuple[int, ...]) -> list[str]:
        operators = (int8_model.operators[i] for i in indices)
        return [
            f"{o.label}{'' if o.activation == 'NONE' else '+' + o.activation}" for o in operators
        ]

    document: dict[str, Any] = {
        "schema": 1,
        "nodes": [
            {
                "node": step.name,
                "operator": step.op_type,
                "module": step.module,
                "original_nodes": list(step.original_nodes),
                "ends_in": labels(landing.operators),
                "merged_into": landing.merged_into,
            }
            for step, landing in zip(nodes, found.landings)
        ],
        "layout": labels(found.layout),
        "unexplained": labels(found.unexplained),
    }
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True, indent=1))
    placed = sum(bool(landing.operators) for landing in found.landings)
    lost = len(found.unexplained)
    summary = f"{placed} of {len(nodes)} nodes placed, {lost} int8 operators unexplained"
    return Product("verdict", path, evidence={"trace": document, "summary": summary})
