"""Operators that a target is known not to run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgefuse.errors import StageError
from edgefuse.stages.check import _require_supported
from edgefuse.target import Support
from edgefuse.tflite.read import TfliteModel, read_model
from edgefuse.tflite.support import unsupported
from tflite.tiny import float_file, int8_file, weights


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[TfliteModel, TfliteModel]:
    path = tmp_path_factory.mktemp("support") / "float.tflite"
    path.write_bytes(float_file(weights()))
    other = path.with_name("int8.tflite")
    other.write_bytes(int8_file(path))
    return read_model(path), read_model(other)


def test_nothing_is_refused_by_default(models: tuple[TfliteModel, TfliteModel]) -> None:
    for model in models:
        assert unsupported(model, Support()) == []


def test_operators_that_the_target_lacks_are_named(models: tuple[TfliteModel, TfliteModel]) -> None:
    float_model, int8_model = models
    codes = int8_model.operator_counts()
    lacking = sorted(codes)[0]
    support = Support(operators=tuple(code for code in codes if code != lacking))
    found = unsupported(int8_model, support)
    assert len(found) == codes[lacking] and all(line.startswith(lacking) for line in found)
    assert unsupported(float_model, Support(float_operators=False))
    assert not unsupported(int8_model, Support(float_operators=False))


def test_dense_layers_with_a_scale_for_each_output(models: tuple[TfliteModel, TfliteModel]) -> None:
    support = Support(per_channel_dense=False)
    dense = [
        op.label
        for op in models[1].operators
        if op.code == "FULLY_CONNECTED" and len(models[1].tensors[op.inputs[1]].scales) > 1
    ]
    assert dense and [line.partition(":")[0] for line in unsupported(models[1], support)] == dense


def test_the_check_stage_refuses_by_name(models: tuple[TfliteModel, TfliteModel]) -> None:
    target: Any = SimpleNamespace(name="board", support=Support(operators=("ADD",)))
    with pytest.raises(StageError, match=r"board does not run .*: the target has no such operator"):
        _require_supported(models[1], target)
