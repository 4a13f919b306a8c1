"""TensorFlow rows: the SavedModel that onnx2tf makes of the fused ONNX graph, run as a function
with Grappler's default optimisers, and compiled by XLA.

onnx2tf writes a bias as AddV2; Grappler's remapper looks for BiasAdd. What it fused is counted in
the graph after optimisation; for XLA, in the optimised HLO's entry computation.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edgefuse.compare.prepared import Prepared, Request, without_zeros

if TYPE_CHECKING:
    from edgefuse.compare.prepared import Array, Feed

# Nodes and HLO instructions that compute nothing.
_PLUMBING = frozenset(
    {
        *("_Arg", "_Retval", "Const", "NoOp", "Identity", "IdentityN", "ReadVariableOp"),
        *("Placeholder", "VarHandleOp"),
    }
)
_STILL = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?\S+ = (?:\([^)]*\)|\S+) ([\w-]+)\(", re.M)


def prepare(request: Request, sample: Feed) -> Prepared:
    """Load the SavedModel in ``request.path`` and run it once, so that it is optimised."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    loaded = tf.saved_model.load(request.path)
    predict: Any = loaded.predict
    tensors = _tensors(request, sample)
    if request.variant == "xla":
        predict = tf.function(loaded.predict, autograph=False, jit_compile=True)
        predict(*tensors)
        text = predict.experimental_get_compiler_ir(*tensors)(stage="optimized_hlo")
        kinds = _instructions(text)
        fusions = {"fusion instructions": kinds["fusion"]}
    else:
        kinds = _optimised(predict, tensors)
        fusions = {kind: n for kind, n in kinds.items() if "Fused" in kind}

    def bind(feed: Feed) -> Callable[[], object]:
        given = _tensors(request, feed)
        # Reading the results waits for them.
        return lambda: [value.numpy() for value in predict(*given).values()]

    def outputs(feed: Feed) -> dict[str, Array]:
        results = predict(*_tensors(request, feed))
        return {name: _named(results, name, k) for k, name in enumerate(request.outputs)}

    note = "SavedModel of onnx2tf from edgefuse's fused graph"
    versions = {"tensorflow": str(tf.__version__)}
    return Prepared(bind, outputs, sum(kinds.values()), without_zeros(fusions), versions, note)


def _tensors(request: Request, feed: Feed) -> list[Any]:
    """The sample as the SavedModel takes it: channels last."""
    import numpy as np
    import tensorflow as tf

    def turned(name: str, value: Array) -> Array:
        return np.moveaxis(value, 1, -1) if request.layouts[name] == "NCHW" else value

    return [tf.constant(turned(name, value)) for name, value in feed.items()]


def _named(results: Mapping[str, Any], name: str, index: int) -> Array:
    """The converter calls an output that is no identifier by its number."""
    value: Array = results[name if name in results else f"output_{index}"].numpy()
    return value


def _optimised(function: Any, tensors: list[Any]) -> Counter[str]:
    """Computing nodes of a function after Grappler, by operator; runs it once."""
    from tensorflow.python.eager import context

    current = context.context()
    current.enable_graph_collection()
    try:
        function(*tensors)
        graphs = current.export_run_metadata().function_graphs
    finally:
        current.disable_graph_collection()
    nodes = (node.op for graph in graphs for node in graph.post_optimization_graph.node)
    return Counter(op for op in nodes if op not in _PLUMBING)


def _instructions(hlo: str) -> Counter[str]:
    """Computing instructions of the entry computation, by opcode."""
    entry = hlo[hlo.index("\nENTRY ") :].partition("\n}")[0]
    return Counter(op for op in _INSTRUCTION.findall(entry) if op not in _STILL)
