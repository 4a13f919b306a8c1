"""onnxruntime rows: one for each level of its graph optimisation.

What ran is counted in the model that onnxruntime writes after optimising. A fused node is one that
carries an activation or a fourth input (the addend of a convolution), or whose type the given
graph did not have.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.compare.prepared import Prepared, Request, without_zeros

if TYPE_CHECKING:
    from edgefuse.compare.prepared import Array, Feed

_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_GROUPS = "edgefuse"
# Blocked-layout counterparts and conversions between layouts: nothing fused.
_SAME = frozenset(
    {
        *("Conv", "FusedConv", "FusedGemm", "FusedMatMul", "ReorderInput", "ReorderOutput"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Upsample"),
    }
)


def prepare(request: Request, sample: Feed) -> Prepared:
    """Open the graph with one thread at the variant's level."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = _LEVELS[request.variant]
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(written)
        session = onnxruntime.InferenceSession(
            request.path, options, providers=["CPUExecutionProvider"]
        )
        after = _nodes(written)
    names = [output.name for output in session.get_outputs()]

    def bind(feed: Feed) -> Callable[[], object]:
        return lambda: session.run(None, feed)

    def outputs(feed: Feed) -> dict[str, Array]:
        return dict(zip(names, session.run(None, feed)))

    before = _nodes(Path(request.path))
    groups = sum(node.domain == _GROUPS for node in before)
    inlined = f", {groups} fused groups inlined" if groups else ""
    fusions = Counter(request.fusions) + _fused(before, after)
    return Prepared(
        bind,
        outputs,
        len(after),
        without_zeros(fusions),
        {"onnxruntime": onnxruntime.__version__},
        f"{level}{inlined}",
    )


def _nodes(path: Path) -> list[Any]:
    import onnx

    return list(onnx.load(path, load_external_data=False).graph.node)


def _fused(before: list[Any], after: list[Any]) -> Counter[str]:
    known = {node.op_type for node in before}
    folded = [
        sum(node.op_type == "BatchNormalization" for node in nodes) for nodes in (before, after)
    ]
    found = Counter({"BatchNorm folded": folded[0] - folded[1]})
    for node in after:
        ours = node.domain.startswith("com.microsoft")
        if ours and any(a.name == "activation" and a.s for a in node.attribute):
            found["activation fused"] += 1
        if ours and node.op_type in ("Conv", "FusedConv") and len(node.input) > 3 and node.input[3]:
            found["Add fused"] += 1
        if ours and node.op_type not in _SAME | known:
            found[node.op_type] += 1
    return found
