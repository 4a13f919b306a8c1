"""The one door to a TFLite interpreter.

Problem: two runtimes, three kernel sets, files with and without signatures, integer and float
inputs; and a wrong guess in any of them gives plausible numbers. ``open_model`` gives a
:class:`Model` that binds by name, quantises with the tensor's own parameters
(q = clip(round(x / scale) + zero_point), halves away from zero as the QUANTIZE kernel does) and
refuses what it would have to guess.

Kernels: ``default`` applies XNNPACK where the runtime does so itself; ``builtin`` are the
optimised kernels without any delegate; ``reference`` are the plain ones, bit-identical on every
CPU. The runtimes' own lines on standard error are dropped when known to be chatter and passed on
otherwise.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from edgefuse.artifact import Layout, Signature, TensorSpec
from edgefuse.errors import DataError, StageError, ToolError
from edgefuse.tflite.read import TfliteModel, read_model, signature_of

Runtime = Literal["litert", "tflite_runtime"]
Kernels = Literal["default", "builtin", "reference"]
Array = np.ndarray[Any, Any]
Result = TypeVar("Result")

_MODULES = {
    "litert": ("ai_edge_litert", "ai-edge-litert", "pip install ai-edge-litert"),
    "tflite_runtime": (
        "tflite_runtime",
        "tflite-runtime",
        'pip install "edgefuse[legacy-runtime]"',
    ),
}
_RESOLVERS = {
    "default": "AUTO",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}
_CHATTER = (
    "Created TensorFlow Lite XNNPACK delegate",
    "Initialized TensorFlow Lite runtime",
    "TensorFlow Lite is being initialized",
)


@contextmanager
def quiet_native() -> Iterator[Callable[[], str]]:
    """Hold back what native code writes to standard error; yields a function that reads it so far.

    Known chatter is dropped at the end, every other line is passed on to standard error. It works
    on file descriptor 2 of the whole process: keep the block short.
    """
    try:
        saved = os.dup(2)
    except OSError:
        yield lambda: ""
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:

        def text() -> str:
            held.seek(0)
            return held.read().decode("utf-8", "replace")

        os.dup2(held.fileno(), 2)
        try:
            yield text
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            rest = [
                line
                for line in text().splitlines(keepends=True)
                if not any(known in line for known in _CHATTER)
            ]
            if rest:
                os.write(2, "".join(rest).encode())


def load_runtime(runtime: str) -> ModuleType:
    """Import a runtime's interpreter module; ToolError with the remedy when it is missing."""
    if runtime not in _MODULES:
        raise ToolError(f"unknown runtime {runtime!r}; known: {', '.join(_MODULES)}")
    package, distribution, remedy = _MODULES[runtime]
    import importlib

    try:
        with quiet_native():
            return importlib.import_module(f"{package}.interpreter")
    except (ImportError, AttributeError) as error:
        # AttributeError: tflite-runtime 2.14 under NumPy 2 (_ARRAY_API not found).
        raise ToolError(f"{distribution} cannot be loaded: {error}", hint=remedy) from error


def runtime_version(runtime: Runtime = "litert") -> str:
    """Distribution and version of an installed runtime, e.g. ``ai-edge-litert 2.1.0``.

    Raises:
        ToolError: when it is not installed.
    """
    from importlib import metadata

    if runtime not in _MODULES:
        raise ToolError(f"unknown runtime {runtime!r}; known: {', '.join(_MODULES)}")
    _, distribution, remedy = _MODULES[runtime]
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError as error:
        raise ToolError(f"{distribution} is not installed", hint=remedy) from error


class Model:
    """A loaded model, ready to run. Made by :func:`open_model`; not safe for several threads."""

    def __init__(self, source: TfliteModel, interpreter: Any, runtime: str, kernels: str) -> None:
        self.source = source
        self.runtime = runtime
        self.kernels = kernels
        self.signature: Signature = signature_of(source)
        self._interpreter = interpreter
        self._inputs = dict(source.signature_inputs)
        self._outputs = dict(source.signature_outputs)

    def feed(self, feeds: Mapping[str, Array]) -> None:
        """Set every input. Raises DataError as :meth:`run`."""
        missing = [spec.name for spec in self.signature.inputs if spec.name not in feeds]
        for name in feeds:
            if name not in self._inputs:
                near = difflib.get_close_matches(name, self._inputs, 1)
                raise DataError(
                    f"no input is named {name!r}; inputs: {', '.join(self._inputs)}",
                    hint=f"did you mean {near[0]!r}?" if near else "",
                    where=self.source.where,
                )
        if missing:
            raise DataError(f"no value for input {missing[0]!r}", where=self.source.where)
        for spec in self.signature.inputs:
            value = to_input(feeds[spec.name], spec, self.source.where)
            self._interpreter.set_tensor(self._inputs[spec.name], value)

    def invoke(self) -> None:
        """Run once on the inputs that :meth:`feed` set.

        Raises:
            StageError: when a kernel fails, with what the runtime says.
        """
        try:
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise StageError(f"the model does not run: {error}", where=self.source.where) from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, in the file's own types.

        Args:
            feeds: every input by signature name (tensor name for files without a signature): the
                exact dtype, or float32 for a quantised input. Shapes must match; NaN, infinity,
                and float64 are refused.

        Raises:
            DataError: when a feed does not fit.
            StageError: when the model fails or answers NaN.
        """
        self.feed(feeds)
        self.invoke()
        outputs = {}
        for name, index in self._outputs.items():
            value = self._interpreter.get_tensor(index)
            if value.dtype.kind == "f" and np.isnan(value).any():
                raise StageError(f"output {name!r} holds NaN", where=self.source.where)
            outputs[name] = value
        return outputs

    def run_float(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """As :meth:`run`, with quantised outputs as float32: scale * (q - zero_point)."""
        outputs = self.run(feeds)
        return {spec.name: dequantize(outputs[spec.name], spec) for spec in self.signature.outputs}

    def value(self, index: int) -> Array:
        """A copy of any tensor after a run; needs ``preserve_all_tensors`` for inner ones."""
        try:
            value: Array = self._interpreter.get_tensor(index)
        except ValueError as error:
            raise StageError(
                f"tensor {index} has no value: {error}", where=self.source.where
            ) from error
        return value

    def view(self, index: int) -> Array:
        """As :meth:`value` without the copy: drop it before the next run."""
        view: Array = self._interpreter.tensor(index)()
        return view

    def address(self, index: int) -> tuple[int, int] | None:
        """Address and size in bytes of a tensor's memory now; None while it has none.

        For the file's own tensors and those of :meth:`scratch`.
        """
        try:
            view = self._interpreter.tensor(index)()
        except ValueError:
            return None
        return int(view.ctypes.data), int(view.nbytes)

    def scratch(self) -> tuple[int, ...]:
        """Indices of the tensors that kernels added for themselves (im2col, resolved axes).

        Only listed tensors may be asked for an address: tflite-runtime 2.14 crashes on others.
        """
        listed = (int(row["index"]) for row in self._interpreter.get_tensor_details())
        return tuple(sorted(i for i in listed if i >= len(self.source.tensors)))


def open_model(
    path: Path,
    runtime: Runtime = "litert",
    threads: int = 1,
    kernels: Kernels = "default",
    preserve_all_tensors: bool = False,
) -> Model:
    """Load a .tflite file and allocate its tensors.

    Raises:
        SourceError: when the file is damaged.
        ToolError: when the runtime is not installed.
        StageError: when the runtime cannot run the file (an operator it does not have).
    """
    source = read_model(path)
    module = load_runtime(runtime)
    if kernels not in _RESOLVERS:
        raise ToolError(f"unknown kernels {kernels!r}; known: {', '.join(_RESOLVERS)}")
    resolver = getattr(module.OpResolverType, _RESOLVERS[kernels])

    def load() -> Any:
        interpreter = module.Interpreter(
            model_path=str(path),
            num_threads=threads,
            experimental_op_resolver_type=resolver,
            experimental_preserve_all_tensors=preserve_all_tensors,
        )
        interpreter.allocate_tensors()
        return interpreter

    with quiet_native(), warnings.catch_warnings():
        # Preserving all tensors warns of the memory it takes, each time.
        warnings.simplefilter("ignore", UserWarning)
        try:
            interpreter = load()
        except (RuntimeError, ValueError) as error:
            custom = sorted({op.custom_code for op in source.custom_operators()})
            reason = f"operators it does not have: {', '.join(custom)}; " if custom else ""
            raise StageError(
                f"{runtime_version(runtime)} cannot load the model: {reason}{error}",
                hint="use a newer runtime, or replace the operator before conversion",
                where=str(path),
            ) from error
    return Model(source, interpreter, runtime, kernels)


def open_exact(path: Path, threads: int = 1) -> tuple[Model, str]:
    """A model on the reference kernels, or on the built-in ones where they lack an operator.

    Returns:
        The model, and the operator that the reference kernels lack; empty where they run it.

    Raises:
        As :func:`open_model`.
    """
    try:
        return open_model(path, kernels="reference", threads=threads), ""
    except StageError as error:
        missing = missing_kernel(error)
        if not missing:
            raise
    return open_model(path, kernels="builtin", threads=threads), missing


def missing_kernel(error: StageError) -> str:
    """The operator that the asked-for kernels lack, by an error of :func:`open_model`; else empty.

    The reference kernels lack operators that the built-in ones have (ELU).
    """
    found = re.search(r"Didn't find op for builtin opcode '(\w+)'", error.message)
    return found[1] if found else ""


def to_input(value: Array, spec: TensorSpec, where: str = "") -> Array:
    """Fit ``value`` to one input: the exact dtype as it is, float32 quantised when it must be.

    Raises:
        DataError: on a wrong shape or dtype, NaN, infinity, or an integer input that carries no
            quantisation.
    """
    value = np.asarray(value)
    label = f"input {spec.name!r}"
    if value.shape != spec.shape:
        raise DataError(f"{label} has shape {spec.shape}, given {value.shape}", where=where)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise DataError(f"{label}: the value holds NaN or infinity", where=where)
    if value.dtype == spec.dtype:
        return np.ascontiguousarray(value)
    if value.dtype != np.float32 or spec.quantization is None:
        raise DataError(
            f"{label} is {spec.dtype}, given {value.dtype}",
            hint="give float32, or the input's own dtype",
            where=where,
        )
    return quantize(value, spec)


def quantize(value: Array, spec: TensorSpec) -> Array:
    """float32 to the spec's integers: clip(round(x / scale) + zero_point), halves away from 0."""
    if spec.quantization is None or np.dtype(spec.dtype).kind not in "iu":
        raise DataError(f"{spec.name!r} ({spec.dtype}) is not quantised")
    limits = np.iinfo(spec.dtype)
    steps = (value / np.float32(spec.quantization.scale)).astype(np.float64)
    rounded = np.copysign(np.floor(np.abs(steps) + 0.5), steps) + spec.quantization.zero_point
    return np.clip(rounded, limits.min, limits.max).astype(spec.dtype)


def dequantize(value: Array, spec: TensorSpec) -> Array:
    """The spec's integers to float32; anything that is not quantised is returned as it is."""
    if spec.quantization is None or value.dtype.kind == "f":
        return value
    centred = value.astype(np.float32) - np.float32(spec.quantization.zero_point)
    return centred * np.float32(spec.quantization.scale)


def to_layout(array: Array, source_layout: Layout, model_shape: tuple[int, ...]) -> Array:
    """Bring an array into TFLite's NHWC by its declared layout, never by looking at its shape.

    ``[1, 4, 4, 4]`` is ambiguous by shape and exact by layout. ``other`` is passed unchanged.

    Raises:
        DataError: when the result is not ``model_shape``.
    """
    if source_layout == "NCHW":
        if array.ndim != 4:
            raise DataError(f"layout NCHW needs 4 axes, given shape {array.shape}")
        array = array.transpose(0, 2, 3, 1)
    if array.shape != tuple(model_shape):
        raise DataError(
            f"layout {source_layout}: gives {array.shape} for the model's {tuple(model_shape)}"
        )
    return np.ascontiguousarray(array)
