"""Operators named by a recipe, and the names that the quantiser works with."""

from __future__ import annotations

import pytest
from tflite.tiny import float_file, weights

from edgefuse.errors import RecipeError
from edgefuse.quant.writing.formats import named_operators, number, numbered, restore_names
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import parse_model

MODEL = parse_model(float_file(weights()))


def test_patterns_find_operators_by_their_first_output() -> None:
    assert named_operators(MODEL, ["map[12]$", "^out"], "quantize.keep_float") == {1, 2, 6}
    assert named_operators(MODEL, [], "quantize.keep_float") == frozenset()


def test_a_pattern_that_finds_nothing_is_an_error_with_a_name_that_exists() -> None:
    with pytest.raises(RecipeError) as caught:
        named_operators(MODEL, ["map1", "poled"], "quantize.int16")
    assert caught.value.where == "quantize.int16"
    assert "'poled'" in caught.value.message and "'pooled'" in caught.value.hint


def test_names_come_back_after_numbers() -> None:
    data = numbered(MODEL)
    assert [t.name for t in parse_model(data).tensors] == [number(t.index) for t in MODEL.tensors]
    edit = Edit(data)
    restore_names(edit, MODEL)
    assert parse_model(edit.packed()).tensors == MODEL.tensors
