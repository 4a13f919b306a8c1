"""Boxes beside scores: what joining costs, and what returning them apart saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import Builder

from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.lint.lint import uneven_joins
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import open_model

FEEDS = [
    {"x": row.astype(np.float32)[None]} for row in np.random.default_rng(2).normal(size=(24, 8))
]


def _detector(path: Path, *, joined: bool) -> None:
    """x [1, 8] to boxes 0..640 and scores 0..1, in one output or in two."""
    draw = np.random.default_rng(1)
    b = Builder()
    x = b.tensor("x", (1, 8))
    parts = {}
    for name, scale, offset in (("boxes", 60.0, 320.0), ("scores", 0.1, 0.5)):
        weight = b.tensor(f"{name}_w", value=(draw.normal(size=(4, 8)) * scale).astype(np.float32))
        bias = b.tensor(f"{name}_b", value=np.full(4, offset, np.float32))
        parts[name] = b.tensor(name, (1, 4))
        b.op("FULLY_CONNECTED", (x, weight, bias), (parts[name],), "RELU")
    if joined:
        together = b.tensor("joined", (1, 8))
        b.op("CONCATENATION", tuple(parts.values()), (together,))
        options = b.schema.ConcatenationOptionsT()
        options.axis = 1
        b.graph.operators[-1].builtinOptions = options
        b.graph.operators[-1].builtinOptionsType = b.schema.BuiltinOptions.ConcatenationOptions
        parts = {"joined": together}
    path.write_bytes(b.finish({"x": x}, parts))


@pytest.mark.parametrize("joined", [True, False])
def test_case_26_scores_are_lost_when_joined_and_right_when_apart(
    tmp_path: Path, joined: bool
) -> None:
    paths = tmp_path / "float.tflite", tmp_path / "int8.tflite"
    _detector(paths[0], joined=joined)
    source = read_model(paths[0])
    whole = {source.tensors[i].name for i in (*source.inputs, *source.outputs)}
    ranges = choose(calibrate(paths[0], FEEDS), "minmax", 0.0, whole)
    quantize_file(paths[0], paths[1], ranges)
    pair = [open_model(path, kernels="builtin") for path in paths]
    rows = [[model.run_float(feed) for feed in FEEDS] for model in pair]
    if joined:
        (found,) = uneven_joins(source, ranges)
        assert found.code == "joined_ranges" and "separate outputs" in found.remedy
        scores = np.stack([row["joined"][0, 4:] for row in rows[1]])
        # The step is above 1: a score is nothing, or as much as the step.
        assert len(np.unique(scores)) <= 2
        return
    assert uneven_joins(source, ranges) == []
    for name, limit in (("scores", 0.02), ("boxes", 10.0)):
        was, now = (np.stack([row[name] for row in side]) for side in rows)
        assert np.abs(was - now).max() < limit, name
