"""Dynamic fusion: the kernels of each shape bucket, each bucket proven by running it.

For every bucket of the recipe's ``shapes``, the fused model is brought to the bucket's shapes and
compared there with the unfused export; then the cost model chooses, by the target's balance, which
fused groups become one kernel, and refuses what would raise the peak of live bytes. Nothing is
chosen for a target without a balance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage


@stage(
    name="group",
    summary="dynamic fusion: the kernels of each shape bucket, and why",
    file_name="{name}_kernels.json",
    inputs=("export", "fuse"),
    sections=("model.inputs", "shapes", "fuse.max_relative_error"),
    target_fields=("balance", "threads"),
    tools=("onnx", "onnxruntime", "onnx-ir", "numpy"),
    applies=lambda recipe: recipe.shapes is not None,
    measures=True,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.devices.measure.balance import balance_of
    from edgefuse.graph.bucket import prove
    from edgefuse.graph.cost import NO_BALANCE, model_costs, total
    from edgefuse.graph.dynamic import one_group_a_kernel, plan_kernels
    from edgefuse.graph.normalise import load_proto
    from edgefuse.graph.shapes import fold_load_time
    from edgefuse.memory.liveness.kernels import refuse_rising
    from edgefuse.recipe.shapes import resolve

    assert recipe.shapes is not None
    buckets = resolve(recipe.shapes.buckets, recipe.model.inputs)
    steps = len(buckets) + 1
    context.progress(0, steps, "balance")
    known = balance_of(context.target, context.log)
    if known is None:
        context.warn(f"{NO_BALANCE}: the kernels of a bucket are the fused groups, nothing chosen")
    elif known.warning:
        context.warn(known.warning)
    export, fused = load_proto(inputs["export"].path), load_proto(inputs["fuse"].path)
    rows: list[dict[str, Any]] = []
    for index, bucket in enumerate(buckets):
        context.progress(1 + index, steps, bucket.label)
        proven = prove(
            export,
            fused,
            bucket.as_mapping(),
            label=bucket.label,
            max_relative_error=recipe.fuse.max_relative_error,
            where=f"shapes.buckets.{index}",
        )
        fold_load_time(proven.unfused.model)
        if known is None:
            plan = one_group_a_kernel(proven.fused.model, bucket=bucket.label)
        else:
            plan = plan_kernels(
                proven.fused.model,
                known.balance,
                bucket=bucket.label,
                refuse=refuse_rising(proven.fused.model),
            )
        rows.append(
            {
                **plan.to_json(),
                "inputs": {name: list(shape) for name, shape in bucket.shapes},
                "unfused": total(model_costs(proven.unfused.model).values()).to_json(),
                "proof": proven.evidence,
            }
        )
    document = {"balance": None if known is None else known.to_json(), "buckets": rows}
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True, indent=1))
    said = "; ".join(
        f"{row['bucket']}: {row['unfused']['launches']} -> {row['before']['launches']} -> "
        f"{len(row['kernels'])} kernels"
        for row in rows
    )
    return Product("plan", path, evidence={**document, "summary": said})
