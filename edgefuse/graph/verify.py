"""Independent proof that a graph is valid and that two graphs compute the same numbers.

Numbers come from onnxruntime, its graph optimisations switched off, so that what is compared is
the graph and not somebody else's fusion; :mod:`edgefuse.parity` says how far they are apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, StageError, ToolError
from edgefuse.graph.values import Array
from edgefuse.parity import Difference, difference

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Feed = Mapping[str, Array]
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
FLOAT32_EPSILON = 2.0**-23
WIDEST_TOLERANCE = 0.02
ROUNDINGS = 4
SKIP_PASSES = "see the ledger for the passes that fired, and skip them one by one"


def to_bytes(model: Any) -> bytes:
    """Bytes of a path, of bytes, of a ModelProto or of an onnx_ir model; equal for equal models."""
    if isinstance(model, bytes):
        return model
    if isinstance(model, Path):
        return model.read_bytes()
    if not hasattr(model, "SerializeToString"):
        import onnx_ir as ir

        model = ir.serde.serialize_model(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def check_structure(proto: onnx.ModelProto) -> None:
    """Run the full ONNX checker, strict shape inference included.

    Raises:
        StageError: with the checker's first line.
    """
    import onnx

    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise StageError(
            f"the fused graph is not valid ONNX: {text[0]}",
            hint="this is a fault of a pass: skip passes one by one to find it, and report it",
        ) from error


class Runner:
    """A model in onnxruntime on the CPU, without graph optimisation."""

    def __init__(self, model: Any, *, threads: int = 0) -> None:
        """Load a path (external data beside it), bytes, ModelProto or onnx_ir model.

        Raises:
            ToolError: when onnxruntime cannot load it.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        self._where = model.name if isinstance(model, Path) else ""
        given = str(model) if isinstance(model, Path) else to_bytes(model)
        try:
            self._session: onnxruntime.InferenceSession = onnxruntime.InferenceSession(
                given, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise self._refused("load", error) from error
        self.inputs = [i.name for i in self._session.get_inputs()]
        self.outputs = [o.name for o in self._session.get_outputs()]

    def __call__(self, feed: Feed) -> dict[str, Array]:
        """Outputs by name.

        Raises:
            DataError: an input is missing.
            ToolError: onnxruntime cannot run the model on this feed.
        """
        import numpy as np

        if missing := sorted(set(self.inputs) - set(feed)):
            raise DataError(f"the sample has no value for input {missing[0]!r}")
        try:
            given = {name: np.asarray(feed[name]) for name in self.inputs}
            values = self._session.run(self.outputs, given)
        except Exception as error:
            raise self._refused("run", error) from error
        return dict(zip(self.outputs, values))

    def _refused(self, verb: str, error: Exception) -> ToolError:
        text = " ".join(str(error).split())[:300]
        return ToolError(
            f"onnxruntime cannot {verb} the model: {text}",
            where=self._where,
            hint="an unsupported operator or shape: change the model or the opset",
        )


def run_onnx(model: Any, feeds: Iterable[Feed]) -> list[dict[str, Array]]:
    """Outputs by name for each feed, of anything that :class:`Runner` loads."""
    runner = Runner(model)
    return [runner(feed) for feed in feeds]


def compare(
    reference: Any,
    candidate: Any,
    feeds: Iterable[Feed],
    *,
    max_relative_error: float | None = None,
) -> Difference:
    """Run both models on the same feeds and measure the difference.

    Args:
        reference, candidate: a path, bytes, a ModelProto or an onnx_ir model.
        feeds: dictionaries keyed by input name.
        max_relative_error: limit of ``max_rel_to_peak``; None only measures.

    Raises:
        ParityError: beyond the limit, NaN or infinity, other outputs, shapes or types.
        DataError: no feed was given.
    """
    left, right = Runner(reference), Runner(candidate)
    pairs = ((left(feed), right(feed)) for feed in feeds)
    return difference(pairs, max_relative_error=max_relative_error, hint=SKIP_PASSES)


def scaled_tolerance(tolerance: float, dtypes: Iterable[str]) -> float:
    """A float32 tolerance for a model whose floating types are ``dtypes`` (NumPy names).

    Never less than a few roundings of float16 or bfloat16: onnxruntime computes these in float32
    and rounds where it sees fit, so even a graph that only lost a Transpose differs by that.
    """
    epsilon = max((EPSILON.get(d, FLOAT32_EPSILON) for d in dtypes), default=FLOAT32_EPSILON)
    if epsilon == FLOAT32_EPSILON:
        return tolerance
    scaled = max(tolerance * epsilon / FLOAT32_EPSILON, ROUNDINGS * epsilon)
    return min(scaled, WIDEST_TOLERANCE)


def seeded_feed(proto: onnx.ModelProto, *, seed: int, like: Feed | None = None) -> Feed:
    """Random inputs: standard normal floats, zeros and ones for the other types.

    Args:
        proto: the model; initializers among its inputs are left out.
        seed: equal seeds give equal feeds.
        like: a real sample whose shapes and spread are taken over; symbolic extents are 2
            without it.

    Raises:
        StageError: an input is larger than memory, or has more axes than an array.
    """
    import numpy as np
    import onnx

    rng = np.random.default_rng(seed)
    given = {i.name for i in proto.graph.initializer}
    drawn: Any
    feed: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name in given:
            continue
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        shape: Sequence[int] = [
            d.dim_value if d.HasField("dim_value") else 2 for d in tensor.shape.dim
        ]
        mean, spread = 0.0, 1.0
        if like is not None and value.name in like:
            sample = like[value.name]
            shape = sample.shape
            if sample.size and np.issubdtype(sample.dtype, np.floating):
                mean, spread = float(sample.mean()), float(sample.std()) or 1.0
        try:
            if np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16":
                drawn = rng.standard_normal(shape) * spread + mean
            else:
                drawn = rng.integers(0, 2, shape)
        except (MemoryError, ValueError) as error:
            raise StageError(
                f"input {value.name!r} of {len(shape)} axes cannot be sampled: {error}",
                hint="make the input smaller, or give it fewer axes",
            ) from error
        feed[value.name] = np.asarray(drawn).astype(dtype)
    return feed
