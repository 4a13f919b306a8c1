"""The OpenVINO row: its CPU plugin on one thread, in float32, from the unfused ONNX graph.

What ran is read from the plugin's execution graph, whose nodes list the layers they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgefuse.compare.prepared import Prepared, Request, without_zeros

if TYPE_CHECKING:
    from edgefuse.compare.prepared import Array, Feed

_ENDS = ("Input", "Output", "Const", "Parameter", "Result")
_SETTINGS = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def prepare(request: Request, sample: Feed) -> Prepared:
    """Compile the graph for this CPU."""
    import openvino

    compiled = openvino.Core().compile_model(request.path, "CPU", _SETTINGS)
    infer = compiled.create_infer_request()

    def bind(feed: Feed) -> Callable[[], object]:
        given = dict(feed)
        return lambda: infer.infer(given)

    def outputs(feed: Feed) -> dict[str, Array]:
        results = infer.infer(dict(feed))
        return {output.get_any_name(): results[output].copy() for output in compiled.outputs}

    nodes = [n for n in compiled.get_runtime_model().get_ops() if _kind(n) not in _ENDS]
    fused = sum(len(_held(node)) > 1 for node in nodes)
    return Prepared(
        bind,
        outputs,
        len(nodes),
        without_zeros({"fused nodes": fused}),
        {"openvino": str(openvino.__version__)},
        "CPU plugin, f32",
    )


def _kind(node: Any) -> str:
    return str(_info(node, "layerType") or node.get_type_name())


def _held(node: Any) -> list[str]:
    return [name for name in _info(node, "originalLayersNames").split(",") if name]


def _info(node: Any, key: str) -> str:
    info = node.get_rt_info()
    if key not in info:
        return ""
    value = info[key]
    return str(getattr(value, "value", value))
