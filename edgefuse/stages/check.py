"""The fusion contract on the quantised file: of its format, nothing lost on the way from ONNX.

Every fused group must be one operator with its activation fused, found by the value of its weights;
every tensor must have the type that ``quantize.format`` gives it (int8: all integer); inputs and
outputs must be the source's, by name, in the types that the recipe asks for; the target must have
what the file needs, as far as its file says; and what the recipe's ``contract`` promises must hold.
A broken contract ends with exit code 1.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.errors import GateFailed, RecipeError, StageError
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

if TYPE_CHECKING:
    from edgefuse.target import Target
    from edgefuse.tflite.contract import Row
    from edgefuse.tflite.read import TfliteModel

_PROMISES = {
    "int8": "full-integer",
    "int16x8": "integer with int16 activations",
    "dynamic_range": "float with int8 weights",
    "float16": "float with float16 weights",
}

_REMEDY = "permit an operator by name in check.permit_float, or replace it in the model"
_REMEDIES = {
    "bias_overflow": "the layer's bias is too large for its weights: look at the channel with "
    "`edgefuse blame`, or keep the operator float (quantize.keep_float)",
}


@stage(
    name="check",
    summary="the quantised file holds what was fused, in its format's types",
    file_name="{name}_contract.json",
    inputs=("fuse", "convert", "equalize", "quantize", "trace"),
    sections=("model.inputs", "check", "contract", "quantize"),
    target_fields=("support",),
    tools=("ai-edge-litert", "onnx", "onnx-ir", "numpy"),
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.tflite.format_check import check_format
    from edgefuse.tflite.read import read_model

    float_model = read_model(inputs["convert"].path)
    int8_model = read_model(inputs["quantize"].path)
    quantized_from = _quantized_from(inputs)
    context.progress(1, 3, "tensors")
    _check_signature(inputs["convert"], inputs["quantize"], recipe, int8_model)
    asked = recipe.quantize
    problems = check_format(
        int8_model,
        asked.format,
        per_tensor_weights=asked.weights == "per_tensor",
        mixed=_is_mixed(recipe),
        permit_float=recipe.check.permit_float,
        float_model=quantized_from or float_model,
    )
    if problems:
        shown = "; ".join(f"{p.place}: {p.message}" for p in problems[:4])
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise StageError(
            f"the {asked.format} file is not {_PROMISES[asked.format]}: {shown}{more}",
            hint=_REMEDIES.get(problems[0].kind, _REMEDY),
        )
    _require_supported(int8_model, context.target)
    context.progress(2, 3, "fused groups")
    rows = _contract(inputs, float_model, int8_model, recipe, quantized_from)
    _judge_groups(rows, recipe)
    _judge_contract(inputs, rows, int8_model, recipe)
    counts = int8_model.operator_counts()
    document = {
        "operators": counts,
        "contract": [_as_json(row) for row in rows],
        "format": asked.format,
        "permit_float": list(recipe.check.permit_float),
        "float_operators": [operator.label for operator in int8_model.float_operators()],
    }
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True, indent=1))
    evidence = {
        "operators_tflite": counts,
        "contract": document["contract"],
        "format": asked.format,
        "permit_float": document["permit_float"],
        "summary": f"{len(int8_model.operators)} {asked.format} operators, "
        f"{sum(row.ok for row in rows)} of {len(rows)} fused groups kept",
    }
    return Product("verdict", path, evidence=evidence)


def _quantized_from(inputs: Mapping[str, Artifact]) -> TfliteModel | None:
    """The equalised file, where the int8 file was made from that."""
    from edgefuse.tflite.read import read_model

    if not inputs["quantize"].evidence["equalized"]:
        return None
    return read_model(inputs["equalize"].path)


def _require_supported(model: TfliteModel, target: Target) -> None:
    from edgefuse.tflite.support import unsupported

    if found := unsupported(model, target.support):
        more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
        raise StageError(
            f"{target.name} does not run {'; '.join(found[:4])}{more}",
            hint="replace the operators in the model, quantise otherwise (quantize.weights: "
            "per_tensor for dense layers), or choose another target",
            where=f"targets/{target.name}.yaml: support",
        )


def _check_signature(
    float_model: Artifact, int8_model: Artifact, recipe: Recipe, model: TfliteModel
) -> None:
    """Names and shapes must be the float model's, types what the recipe asks for."""
    for side, wanted_type in (
        ("inputs", recipe.quantize.input_type),
        ("outputs", recipe.quantize.output_type),
    ):
        expected = getattr(float_model.signature, side)
        found = getattr(int8_model.signature, side)
        if [(s.name, s.shape) for s in expected] != [(s.name, s.shape) for s in found]:
            raise StageError(
                f"the int8 file's {side} are {[s.name for s in found]}, "
                f"expected {[s.name for s in expected]} with the same shapes"
            )
        for spec in found:
            if spec.dtype != wanted_type:
                raise StageError(
                    f"{spec.name!r} is {spec.dtype}, the recipe wants {wanted_type}",
                    hint=_type_remedy(model, side, spec.name, spec.dtype),
                )
            integer = spec.dtype in ("int8", "uint8", "int16")
            if integer and (spec.quantization is None or spec.quantization.scale <= 0):
                raise StageError(f"{spec.name!r} is {spec.dtype} without a scale")


def _type_remedy(model: TfliteModel, side: str, name: str, dtype: str) -> str:
    """Why a model's input or output may have kept its type."""
    written = {i for op in model.operators for i in op.outputs}
    if side == "inputs" and not any(
        dict(model.signature_inputs)[name] in op.inputs for op in model.operators
    ):
        return f"no operator reads {name!r}: leave it out of the model"
    if side == "outputs" and dict(model.signature_outputs)[name] not in written:
        return f"no operator computes {name!r}: leave it out of the model"
    return f"set quantize.{side[:-1]}: {dtype}, or let an int8 operator touch it"


def _is_mixed(recipe: Recipe) -> bool:
    """Whether the int8 file may hold operators with int16 activations: asked for, or searched."""
    return recipe.quantize.format == "int8" and bool(recipe.quantize.int16 or recipe.quantize.goal)


def _contract(
    inputs: Mapping[str, Artifact],
    float_model: TfliteModel,
    int8_model: TfliteModel,
    recipe: Recipe,
    quantized_from: TfliteModel | None,
) -> list[Row]:
    if "fuse" not in inputs:
        return []
    from edgefuse.graph.group import groups
    from edgefuse.tflite.contract import check_contract
    from edgefuse.tflite.format_check import types_of

    types = types_of(
        recipe.quantize.format,
        per_tensor_weights=recipe.quantize.weights == "per_tensor",
        mixed=_is_mixed(recipe),
        permit_float=recipe.check.permit_float,
    )
    listed = [group for group in groups(inputs["fuse"].path) if group.weight is not None]
    made = inputs["quantize"].evidence
    tuned = "fine_tuning" in made
    return list(
        check_contract(
            float_model,
            int8_model,
            listed,
            # Learning may move a weight anywhere; the operators and activations must be there.
            max_weight_steps=math.inf if tuned else made["max_weight_steps"],
            types=types,
            quantized_from=quantized_from,
        )
    )


def _as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "operator": row.operator}


def _judge_groups(rows: list[Row], recipe: Recipe) -> None:
    """Raise when a group was lost, unless the recipe only wants that reported."""
    from edgefuse.tflite.breach import HOPS

    broken = [row for row in rows if not row.ok]
    if broken and recipe.check.fused_activations == "required":
        first = broken[0]
        raise GateFailed(
            f"{len(broken)} fused groups were lost on the way to TFLite; the first: "
            f"{first.group} (module {first.module or '(none)'}), lost at {HOPS[first.hop]}: "
            f"{first.reason}",
            hint="set check.fused_activations: reported to ship it all the same",
        )


def _judge_contract(
    inputs: Mapping[str, Artifact], rows: list[Row], int8_model: Any, recipe: Recipe
) -> None:
    from edgefuse.tflite.breach import breaches, told
    from edgefuse.tflite.read import operator_codes

    known = operator_codes() | set(int8_model.operator_counts())
    for code in recipe.contract.operators:
        if code not in known:  # "none of them" would always hold
            near = difflib.get_close_matches(code, sorted(known), n=1)
            raise RecipeError(
                f"TFLite has no operator {code!r}",
                hint=f"did you mean {near[0]!r}?" if near else "name it as `edgefuse explain` does",
                where=f"contract.operators.{code}",
            )
    nodes = inputs["trace"].evidence["trace"]["nodes"] if "trace" in inputs else []
    found = breaches(
        recipe.contract,
        ledger=inputs["fuse"].evidence["ledger"] if "fuse" in inputs else [],
        rows=rows,
        landed={node["node"]: node["ends_in"] for node in nodes},
        labels=[operator.label for operator in int8_model.operators],
        float_labels=[operator.label for operator in int8_model.float_operators()],
        modules={node["node"]: node["module"] for node in nodes},
    )
    if found:
        raise GateFailed(
            f"the contract is broken: {told(found)}",
            hint=next((b.remedy for b in found if b.remedy), "change the model, or the contract")
            + "; `edgefuse explain` shows every fusion and where it ended",
            where=found[0].key,
        )
