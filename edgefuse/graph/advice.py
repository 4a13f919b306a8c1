"""Where fusing will not help this model, and why, in figures.

Fusing saves launches and traffic between kernels. It cannot help where time goes elsewhere: control
flow, random operators, kernels so small that starting them is all there is, attention and layers
whose arithmetic takes longer than their bytes (arithmetic intensity above the target's balance),
or work outside the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from edgefuse.graph.cost import (
    NO_BALANCE,
    Balance,
    Cost,
    kernels,
    model_costs,
    model_time_s,
    total,
)
from edgefuse.graph.values import is_constant

if TYPE_CHECKING:
    import onnx_ir as ir

CONTROL_FLOW = ("If", "Loop", "Scan")
RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike",
          "RandomUniform", "RandomUniformLike")  # fmt: skip
TINY_SHARE = 0.5
OUTSIDE_SHARE = 0.5
NOTABLE_SHARE = 0.05


@dataclass(frozen=True)
class Advice:
    """One remark.

    Attributes:
        topic: control_flow, random, tiny, attention, compute_bound, outside or balance.
        text: one sentence with its figures.
        figures: the same as numbers; units in the names.
    """

    topic: str
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def advise(model: ir.Model, balance: Balance | None) -> list[Advice]:
    """Remarks on a finished model with static shapes, its groups spelt out
    (:func:`edgefuse.graph.shapes.spelt_out`).

    Raises:
        StageError: a shape or a type is not known.
    """
    costs = model_costs(model)
    members = kernels(model)
    found = [*_control(model), *_attention(members, costs)]
    if balance is None:
        found.append(Advice("balance", f"{NO_BALANCE}: launches and arithmetic are not weighed"))
        return found
    return [*found, *_tiny(costs, balance), *_compute_bound(costs, balance)]


def outside(model_ms: float, preprocess_ms: float, samples: int) -> list[Advice]:
    """A remark when preparing the input takes more of the time than the model.

    Args:
        model_ms: median of one inference.
        preprocess_ms: median of reading and preprocessing one sample.
        samples: how many were timed.
    """
    share = preprocess_ms / (preprocess_ms + model_ms)
    if share < OUTSIDE_SHARE:
        return []
    text = (
        f"reading and preprocessing a sample takes {preprocess_ms:.1f} ms, the model "
        f"{model_ms:.1f} ms (medians of {samples}): {share:.0%} of the time is not in the model"
    )
    figures = {"model_ms": model_ms, "preprocess_ms": preprocess_ms, "samples": samples}
    return [Advice("outside", text, figures)]


def _control(model: ir.Model) -> list[Advice]:
    import onnx_ir as ir

    found = []
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    for topic, operators, why in (
        ("control_flow", CONTROL_FLOW, "no kernel crosses them"),
        ("random", RANDOM, "they may be neither repeated nor left out"),
    ):
        if count := sum(n.op_type in operators and n.domain == "" for n in nodes):
            kinds = sorted({str(n.op_type) for n in nodes if n.op_type in operators})
            text = f"{count} operators are {', '.join(kinds)}: {why}"
            found.append(Advice(topic, text, {"operators": count}))
    return found


def _attention(members: Mapping[str, Sequence[ir.Node]], costs: Mapping[str, Cost]) -> list[Advice]:
    """Softmax and products of two computed matrices."""
    mine = [
        name
        for name, nodes in members.items()
        if any(
            n.op_type == "Softmax"
            or (n.op_type == "MatMul" and not any(is_constant(v) for v in n.inputs))
            for n in nodes
        )
    ]
    every, part = total(costs.values()), total(costs[name] for name in mine)
    share = part.bytes_moved / max(every.bytes_moved, 1)
    if not mine or share < NOTABLE_SHARE:
        return []
    text = (
        f"attention: {len(mine)} kernels move {share:.0%} of the bytes "
        f"({part.bytes_moved / 1e6:.1f} MB); its softmax reads whole rows, so pointwise fusion "
        "stops there"
    )
    figures = {"kernels": len(mine), "bytes_share": share}
    if projections := _projections(members):
        text += (
            f"; its {projections} projections stay apart: packed into one, they would share one "
            "int8 range and be copied apart again"
        )
        figures["projections"] = projections
    return [Advice("attention", text, figures)]


def _projections(members: Mapping[str, Sequence[ir.Node]]) -> int:
    """Products with a constant matrix of which three or more read the same value."""
    readers: dict[ir.Value, int] = {}
    for node in (n for nodes in members.values() for n in nodes):
        if node.op_type in ("MatMul", "Gemm") and is_constant(node.inputs[1]):
            source = node.inputs[0]
            if source is not None:
                readers[source] = readers.get(source, 0) + 1
    return sum(count for count in readers.values() if count >= 3)


def _tiny(costs: Mapping[str, Cost], balance: Balance) -> list[Advice]:
    starting = balance.launch_s * sum(cost.launches for cost in costs.values())
    whole = model_time_s(costs.values(), balance)
    share = starting / whole if whole else 0.0
    if share < TINY_SHARE:
        return []
    text = (
        f"a tiny model for this target: starting {len(costs)} kernels takes {starting * 1e6:.0f} "
        f"of {whole * 1e6:.0f} us predicted ({share:.0%}): only fewer kernels help, not fewer bytes"
    )
    figures = {"kernels": len(costs), "launch_us": starting * 1e6, "predicted_us": whole * 1e6}
    return [Advice("tiny", text, figures)]


def _compute_bound(costs: Mapping[str, Cost], balance: Balance) -> list[Advice]:
    bound = {name: cost for name, cost in costs.items() if cost.is_compute_bound(balance)}
    whole = model_time_s(costs.values(), balance)
    if not bound or whole == 0:
        return []
    share = sum(cost.time_s(balance) for cost in bound.values()) / whole
    least = min(cost.arithmetic_intensity for cost in bound.values())
    text = (
        f"{len(bound)} of {len(costs)} kernels are compute-bound ({share:.0%} of the predicted "
        f"time): their intensity is {least:.1f} FLOP/byte or more, the target's balance "
        f"{balance.flops_per_byte:.1f}: fewer bytes do not make them faster"
    )
    figures = {
        "kernels": len(bound),
        "time_share": share,
        "balance_flops_per_byte": balance.flops_per_byte,
    }
    return [Advice("compute_bound", text, figures)]
