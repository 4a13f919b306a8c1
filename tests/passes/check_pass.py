"""One call tests a pass: where it fires, where it does not and why, and that numbers stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

from edgefuse.graph.fuse import serialise
from edgefuse.graph.ledger import Ledger
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.rule import Pass
from edgefuse.graph.verify import check_structure, compare, scaled_tolerance, seeded_feed

LIMIT = 1 << 22


def onnx_model(
    text: str, /, *, opset: int = 18, ir_version: int = 10, overridable: Sequence[str] = (),
    **constants: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model from ONNX text: ``graph (float[1,4] x) => (float[1,4] y) { y = Relu(x) }``.

    Each keyword makes the graph input of that name a constant: an array, or a seed (a standard
    normal array of the declared shape). Names in ``overridable`` stay graph inputs too.
    """
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n'
    proto = onnx.parser.parse_model(header + text)
    for name, given in constants.items():
        info = next(i for i in proto.graph.input if i.name == name)
        tensor = info.type.tensor_type
        if isinstance(given, int):
            shape = [d.dim_value for d in tensor.shape.dim]
            given = np.random.default_rng(given).standard_normal(shape)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        array = np.asarray(given).astype(dtype)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        if name not in overridable:
            proto.graph.input.remove(info)
    return proto


@dataclass(frozen=True)
class Applied:
    """A pass applied to one model."""

    proto: onnx.ModelProto
    ledger: Ledger

    @property
    def ops(self) -> list[str]:
        return [node.op_type for node in self.proto.graph.node]

    def constant(self, name: str) -> np.ndarray:
        tensor = next(t for t in self.proto.graph.initializer if t.name == name)
        return onnx.numpy_helper.to_array(tensor)


def apply(
    entry: Pass, proto: onnx.ModelProto, *, limit: int = LIMIT, numbers: bool = True
) -> Applied:
    """Apply one pass; check numbers, structure and that a second application changes nothing."""
    onnx.checker.check_model(proto, full_check=True)
    model, ledger = run_passes(prepare(proto), passes=[entry], fold_size_limit_bytes=limit)
    after = serialise(model)
    check_structure(after)
    if numbers:
        types = {i.type.tensor_type.elem_type for i in proto.graph.input}
        names = [str(onnx.helper.tensor_dtype_to_np_dtype(t)) for t in types]
        tolerance = scaled_tolerance(entry.tolerance, names)
        for seed in (1, 2):
            compare(proto, after, [seeded_feed(proto, seed=seed)], max_relative_error=tolerance)
    for again in (model, prepare(after)):
        _, second = run_passes(again, passes=[entry], fold_size_limit_bytes=limit)
        assert second.fired(entry.name) == 0, "a second application changed the graph"
    return Applied(after, ledger)


def check_pass(
    entry: Pass,
    *,
    fires: Sequence[tuple[onnx.ModelProto, int, Sequence[str]]] = (),
    ignores: Sequence[tuple[onnx.ModelProto, str]] = (),
    numbers: bool = True,
) -> None:
    """Test a pass.

    Args:
        fires: (model, how often, operator types afterwards, in graph order).
        ignores: (model, part of the reason); an empty reason: no candidate at all.
        numbers: whether onnxruntime can run the models.
    """
    for proto, times, ops in fires:
        done = apply(entry, proto, numbers=numbers)
        assert done.ops == list(ops)
        assert done.ledger.fired(entry.name) == times
    for proto, reason in ignores:
        done = apply(entry, proto, numbers=numbers)
        assert done.ledger.fired(entry.name) == 0
        reasons = [e.reason for e in done.ledger.refused(entry.name)]
        if reason:
            assert any(reason in r for r in reasons), f"{reason!r} not in {reasons}"
            assert all(e.nodes for e in done.ledger.refused(entry.name))
        else:
            assert not reasons
