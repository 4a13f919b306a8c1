"""Independent proof that a graph is valid and that two graphs compute the same numbers.

Numbers are compared with onnxruntime, its graph optimisations switched off, so that what is
compared is the graph and not somebody else's fusion. The error is the largest absolute difference
relative to the largest |reference| of the same output: never a sum, which grows with the size of a
tensor. NaN or infinity on either side is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, ParityError, StageError, ToolError
from edgefuse.graph.values import Array

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Feed = Mapping[str, Array]
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
FLOAT32_EPSILON = 2.0**-23
WIDEST_TOLERANCE = 0.02


@dataclass(frozen=True)
class Difference:
    """How far a candidate is from its reference, over all feeds.

    Attributes:
        max_abs: largest absolute difference.
        max_rel_to_peak: largest of (largest difference of an output / its largest |reference|).
        sqnr_db: least signal-to-error ratio of an output, in dB; None when nothing differs.
        worst_output: the output that max_rel_to_peak belongs to.
        samples: how many feeds were compared.
    """

    max_abs: float
    max_rel_to_peak: float
    sqnr_db: float | None
    worst_output: str
    samples: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
        raise StageError(
            f"the fused graph is not valid ONNX: {str(error).strip().splitlines()[0]}",
            hint="this is a fault of a pass: skip passes one by one to find it, and report it",
        ) from error


class Runner:
    """A model in onnxruntime on the CPU, without graph optimisation."""

    def __init__(self, model: Any, *, threads: int = 0) -> None:
        """Load a path, bytes, ModelProto or onnx_ir model.

        Raises:
            ToolError: when onnxruntime cannot load it.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        try:
            self._session: onnxruntime.InferenceSession = onnxruntime.InferenceSession(
                to_bytes(model), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ToolError(f"onnxruntime cannot load the model: {error}") from error
        self.inputs = [i.name for i in self._session.get_inputs()]
        self.outputs = [o.name for o in self._session.get_outputs()]

    def __call__(self, feed: Feed) -> dict[str, Array]:
        """Outputs by name.

        Raises:
            DataError: an input is missing.
            ToolError: onnxruntime cannot run the model on this feed.
        """
        if missing := sorted(set(self.inputs) - set(feed)):
            raise DataError(f"the sample has no value for input {missing[0]!r}")
        try:
            values = self._session.run(self.outputs, {n: feed[n] for n in self.inputs})
        except Exception as error:
            raise ToolError(f"onnxruntime cannot run the model: {error}") from error
        return dict(zip(self.outputs, values))


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
    return difference(pairs, max_relative_error=max_relative_error)


def difference(
    pairs: Iterable[tuple[Feed, Feed]], *, max_relative_error: float | None = None
) -> Difference:
    """As :func:`compare`, on outputs that were already computed (reference, candidate)."""
    worst = Difference(0.0, 0.0, None, "", 0)
    for samples, (expected, actual) in enumerate(pairs, start=1):
        if list(expected) != list(actual):
            raise ParityError(f"the outputs are {list(actual)}, the reference has {list(expected)}")
        for name in expected:
            worst = _join(worst, _one(name, expected[name], actual[name]), samples)
    if worst.samples == 0:
        raise DataError("nothing was compared: the sample set is empty")
    if max_relative_error is not None and worst.max_rel_to_peak > max_relative_error:
        raise ParityError(
            f"the largest relative error is {worst.max_rel_to_peak:.3g}, "
            f"allowed is {max_relative_error:.3g}",
            hint="see the ledger for the passes that fired, and skip them one by one",
            where=f"output {worst.worst_output!r}",
        )
    return worst


def _one(name: str, expected: Array, actual: Array) -> Difference:
    import numpy as np

    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        raise ParityError(
            f"shape and type are {actual.shape} {actual.dtype}, "
            f"the reference has {expected.shape} {expected.dtype}",
            where=f"output {name!r}",
        )
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    for side, values in (("reference", a), ("candidate", b)):
        if not np.isfinite(values).all():
            raise ParityError(f"the {side} has NaN or infinity", where=f"output {name!r}")
    error = np.abs(a - b)
    max_abs = float(error.max(initial=0.0))
    if max_abs == 0.0:
        return Difference(0.0, 0.0, None, name, 1)
    peak = max(float(np.abs(a).max(initial=0.0)), 1e-30)
    ratio = float(np.square(a).sum()) / float(np.square(error).sum())
    return Difference(max_abs, max_abs / peak, 10 * math.log10(max(ratio, 1e-30)), name, 1)


def _join(left: Difference, right: Difference, samples: int) -> Difference:
    known = [d.sqnr_db for d in (left, right) if d.sqnr_db is not None]
    worse = right if right.max_rel_to_peak > left.max_rel_to_peak else left
    return Difference(
        max_abs=max(left.max_abs, right.max_abs),
        max_rel_to_peak=worse.max_rel_to_peak,
        sqnr_db=min(known) if known else None,
        worst_output=worse.worst_output or right.worst_output,
        samples=samples,
    )


def scaled_tolerance(tolerance: float, dtypes: Iterable[str]) -> float:
    """A float32 tolerance for a model whose floating types are ``dtypes`` (NumPy names)."""
    epsilon = max((EPSILON.get(d, FLOAT32_EPSILON) for d in dtypes), default=FLOAT32_EPSILON)
    scaled = tolerance * epsilon / FLOAT32_EPSILON
    return scaled if epsilon == FLOAT32_EPSILON else min(scaled, WIDEST_TOLERANCE)


def seeded_feed(proto: onnx.ModelProto, *, seed: int, like: Feed | None = None) -> Feed:
    """Random inputs: standard normal floats, zeros and ones for the other types.

    Args:
        proto: the model; initializers among its inputs are left out.
        seed: equal seeds give equal feeds.
        like: a real sample whose shapes and spread are taken over; symbolic extents are 2
            without it.
    """
    import numpy as np
    import onnx

    rng = np.random.default_rng(seed)
    given = {i.name for i in proto.graph.initializer}
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
        if np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16":
            feed[value.name] = (rng.standard_normal(shape) * spread + mean).astype(dtype)
        else:
            feed[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return feed
