"""Fused ONNX to float TFLite in an offline child process, proven equal on real samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefuse.artifact import Artifact, Layout, Product, Signature
from edgefuse.errors import ParityError, StageError
from edgefuse.parity import require_parity
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_USE_LEGACY_KERAS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONHASHSEED": "0",
}


@stage(
    name="convert",
    summary="the fused graph as float TFLite, equal to it",
    file_name="{name}_float32.tflite",
    inputs=("fuse",),
    sections=("model.inputs", "model.outputs", "model.tflite", "preprocess", "convert"),
    samples=("evaluation",),
    tools=("onnx", "onnx2tf", "tensorflow", "tf-keras", "ai-edge-litert", "onnxruntime", "numpy"),
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    path = context.work / context.file_name
    if "fuse" in inputs:
        return _convert(inputs["fuse"], path, recipe, context)
    evidence = _given(path, recipe, context)
    return Product("tflite", path, _signature(path), evidence)


def _feeds(recipe: Recipe, context: Context) -> list[dict[str, Any]]:
    from edgefuse.data import take

    samples = context.samples("evaluation")
    return take(samples, context.downloads, recipe.convert.parity_samples, recipe.model.batch)


def _signature(path: Path) -> Signature:
    from edgefuse.tflite.read import read_model, signature_of

    return signature_of(read_model(path))


def _convert(fused: Artifact, path: Path, recipe: Recipe, context: Context) -> Product:
    from edgefuse import child
    from edgefuse.graph.group import inline_groups
    from edgefuse.graph.verify import run_onnx
    from edgefuse.tflite.feeds import (
        aligned,
        run_samples,
        source_layouts,
        turned_outputs,
        with_output_layouts,
    )

    worker = "edgefuse.tflite.convert_worker"
    with child.started(worker, context.log, folder=context.work, environment=_QUIET) as ask:
        feeds = _feeds(recipe, context)
        plain = context.work / "inlined.onnx"
        inline_groups(fused.path, plain)
        _picture_placeholder(feeds, context.work)
        reference = run_onnx(fused.path, feeds)
        ask(
            {
                "onnx": str(plain),
                "tflite": str(path),
                "inputs": [
                    {"name": s.name, "channels_first": s.layout == "NCHW"}
                    for s in fused.signature.inputs
                ],
                "outputs": [s.name for s in fused.signature.outputs],
            },
            recipe.convert.timeout_s,
            lambda gone: context.progress(int(gone), 0, f"converting, {int(gone)} s"),
        )
    if not path.is_file():
        raise StageError("the converter wrote no float model", hint=f"see {context.log}")
    candidate = list(run_samples(path, source_layouts(recipe), feeds))
    turned = turned_outputs(reference, candidate)
    try:
        parity = require_parity(
            reference,
            aligned(candidate, turned),
            limit=recipe.convert.max_relative_error,
            what="float TFLite against the fused ONNX",
        )
    except ParityError as error:
        raise (_equal_axes(error, fused.signature) or error) from None
    layouts: dict[str, Layout] = {
        s.name: "NHWC" if s.name in turned else s.layout
        for s in fused.signature.outputs
        if len(s.shape) == 4
    }
    summary = (
        f"relative error {parity['max_relative_error']:.1e}, {path.stat().st_size / 1e6:.1f} MB"
    )
    evidence = {"parity": parity, "channels_last_outputs": sorted(turned), "summary": summary}
    return Product("tflite", path, with_output_layouts(_signature(path), layouts), evidence)


def _equal_axes(error: ParityError, signature: Signature) -> ParityError | None:
    """The error with its usual reason, where an input's shape allows it: onnx2tf takes a tensor
    for channels-last when its shape reads the same either way."""
    for spec in signature.inputs:
        if spec.layout == "NCHW" and spec.shape[1] in spec.shape[2:]:
            return ParityError(
                error.message,
                hint=f"input {spec.name!r} {list(spec.shape)} has as many channels as rows or "
                "columns, and the converter mixes up axes of equal size: start with a "
                "convolution, or change the size",
                where=error.where,
            )
    return None


def _given(path: Path, recipe: Recipe, context: Context) -> dict[str, Any]:
    """A float .tflite as the source: checked, run on real samples, taken as it is."""
    from edgefuse.tflite.feeds import check_given, run_samples, source_layouts
    from edgefuse.tflite.intact import require_intact
    from edgefuse.tflite.runtime import missing_kernel

    assert recipe.model.tflite is not None
    given = context.local(recipe.model.tflite)
    path.write_bytes(given.read_bytes())
    check_given(given, recipe.model.inputs)
    require_intact(given, context.log)
    layouts, feeds = source_layouts(recipe), _feeds(recipe, context)
    other = "reference"
    try:
        reference = list(run_samples(given, layouts, feeds, kernels=other))
    except StageError as error:
        if not missing_kernel(error):
            raise
        other = "default"
        reference = list(run_samples(given, layouts, feeds, kernels=other))
    parity = require_parity(
        reference,
        list(run_samples(path, layouts, feeds)),
        limit=recipe.convert.max_relative_error,
        what=f"optimised against {other} kernels on the given float TFLite",
    )
    return {"parity": parity, "summary": "taken as given"}


def _picture_placeholder(feeds: list[dict[str, Any]], work: Path) -> None:
    """The sample file that onnx2tf would download, made from our own samples.

    float32 [20, 128, 128, 3] in 0..1, looked for in its working directory.
    """
    import numpy as np

    rows = []
    for feed in feeds:
        for value in feed.values():
            if value.ndim == 4:
                picture = value[0].transpose(1, 2, 0) if value.shape[1] == 3 else value[0]
                if picture.shape[-1] == 3:
                    ys = np.linspace(0, picture.shape[0] - 1, 128).astype(int)
                    xs = np.linspace(0, picture.shape[1] - 1, 128).astype(int)
                    small = picture[ys][:, xs].astype(np.float32)
                    span = max(float(np.ptp(small)), 1e-6)
                    rows.append((small - small.min()) / span)
    if not rows:
        rows = [np.random.default_rng(0).random((128, 128, 3), np.float32)]
    stacked = np.stack([rows[i % len(rows)] for i in range(20)]).astype(np.float32)
    np.save(work / "calibration_image_sample_data_20x128x128x3_float32.npy", stacked)
