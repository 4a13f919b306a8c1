"""What a device answers, sample by sample, beside the reference on this machine.

The int8 model, or the GPU program, runs on the device; what it is judged against, which a device
need not know, here, on the same samples and in the same pass: the float .tflite in the target's
runtime, for a GPU program the fused ONNX in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError
from edgefuse.stage import judged, shipped

if TYPE_CHECKING:
    from edgefuse.artifact import Artifact
    from edgefuse.devices.device import Device
    from edgefuse.recipe import Recipe
    from edgefuse.stage import Context


@dataclass
class SameAsHere:
    """The device's int8 outputs beside those of this machine's LiteRT, value for value.

    Attributes:
        batches: how many were run.
        bit_identical: those of which every output is equal.
        max_lsb: the largest difference of an integer output.
    """

    batches: int = 0
    bit_identical: int = 0
    max_lsb: int = 0

    def add(self, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        """One batch's raw outputs by name."""
        import numpy as np

        self.batches += 1
        self.bit_identical += all(np.array_equal(here[name], there[name]) for name in here)
        for name, value in here.items():
            if value.dtype.kind in "iu":
                apart = np.abs(value.astype(np.int64) - there[name].astype(np.int64)).max()
                self.max_lsb = max(self.max_lsb, int(apart))


@dataclass(frozen=True)
class _Sides:
    """What stands against what, sample by sample, outputs by name as real numbers.

    Attributes:
        names: of the outputs, in order.
        reference: outputs of the model that is judged against, on this machine.
        given: a sample as the device takes it.
        read: the device's raw outputs as real numbers.
    """

    names: list[str]
    reference: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    given: Callable[[Mapping[str, Any]], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def _program_sides(inputs: Mapping[str, Artifact]) -> _Sides:
    """The fused ONNX in onnxruntime, and the GPU program: both take a sample as it is."""
    from edgefuse.graph.verify import Runner

    names = [spec.name for spec in inputs["fuse"].signature.outputs]
    return _Sides(names, Runner(inputs["fuse"].path), dict, dict)


def _file_sides(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> _Sides:
    """The float .tflite and the int8 one."""
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.read import read_model, signature_of
    from edgefuse.tflite.runtime import dequantize, open_model, to_input

    target, layouts = context.target, source_layouts(recipe)
    runtime, kernels = target.judging_runtime, target.judging_kernels
    exact = open_model(inputs["convert"].path, runtime=runtime, kernels=kernels, threads=2)
    signature = signature_of(read_model(shipped(inputs).path))

    def given(feed: Mapping[str, Any]) -> dict[str, Any]:
        (values,) = streamed(signature, layouts, [feed])
        return {spec.name: to_input(values[spec.name], spec) for spec in signature.inputs}

    return _Sides(
        names=[spec.name for spec in exact.signature.outputs],
        reference=lambda feed: exact.run_float(*streamed(exact.signature, layouts, [feed])),
        given=given,
        read=lambda raw: {s.name: dequantize(raw[s.name], s) for s in signature.outputs},
    )


def answers(
    inputs: Mapping[str, Artifact],
    recipe: Recipe,
    context: Context,
    role: str,
    device: Device,
    like_here: SameAsHere | None = None,
) -> tuple[list[Any], list[Any]]:
    """Per output, the reference's and the device's results: each [samples, values], float.

    Args:
        inputs: of the stage: the float and the int8 file, or the fused ONNX and the GPU program.
        role: whose samples: ``evaluation`` or ``report``.
        like_here: filled with how the device's results stand to those of this machine.

    Raises:
        StageError: the device answers more or fewer samples than it was given.
        DeviceUnavailable, ToolError: see :class:`~edgefuse.devices.device.Device`.
    """
    import numpy as np

    from edgefuse.data import batches
    from edgefuse.tflite.runtime import open_model

    samples = context.samples(role)
    sides = _program_sides(inputs) if "lower" in inputs else _file_sides(inputs, recipe, context)
    twin = open_model(shipped(inputs).path, threads=2) if like_here is not None else None
    rows: list[list[list[Any]]] = [[[] for _ in sides.names] for _ in range(2)]
    held: list[int] = []
    here: list[dict[str, Any]] = []

    def keep(outputs: Mapping[str, Any], count: int, columns: list[list[Any]]) -> None:
        for name, column in zip(sides.names, columns):
            column.extend(outputs[name].reshape(recipe.model.batch, -1)[:count])

    def feeding() -> Iterator[dict[str, Any]]:
        """What the device takes; the reference runs beside, on the same samples."""
        for feed, kept in batches(samples.samples(context.downloads), recipe.model.batch):
            keep(sides.reference(feed), len(kept), rows[0])
            held.append(len(kept))
            fed = sides.given(feed)
            if twin is not None:
                here.append(twin.run(fed))
            yield fed

    done = 0
    for place, raw in enumerate(device.outputs(judged(inputs).path, feeding())):
        keep(sides.read(raw), held[place], rows[1])
        if like_here is not None:
            like_here.add(here[place], raw)
        done += held[place]
        context.progress(done, samples.count, f"{role} samples")
    if done != samples.count:
        raise StageError(f"the device answered {done} of {samples.count} samples")
    reference, candidate = ([np.stack(column) for column in columns] for columns in rows)
    return reference, candidate
