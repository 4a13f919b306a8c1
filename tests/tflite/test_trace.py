"""Following by value, on the hand-written tiny files: no converter had a hand in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import open_model
from edgefuse.tflite.trace import Landing, Trace, trace

from .conftest import Pair


@dataclass(frozen=True)
class Step:
    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@pytest.fixture
def values(pair: Pair) -> dict[int, np.ndarray[Any, Any]]:
    model = open_model(pair.float_path, kernels="builtin", preserve_all_tensors=True)
    (spec,) = model.signature.inputs
    random = np.random.default_rng(0).normal(size=spec.shape).astype(np.float32)
    model.run({spec.name: random})
    made = [i for op in model.source.operators for i in op.outputs]
    made += [i for _, i in model.source.signature_inputs]
    return {i: model.value(i) for i in made if model.source.tensors[i].is_float}


def follow(pair: Pair, values: dict[int, Any], steps: list[Step], known: dict[str, Any]) -> Trace:
    return trace(steps, known, read_model(pair.float_path), values, read_model(pair.int8_path))


def chain(pair: Pair, values: dict[int, Any]) -> tuple[list[Step], dict[str, Any]]:
    """One step for each float operator, its value with the axes in another order."""
    model = read_model(pair.float_path)
    names = {index: name for name, index in model.signature_inputs}
    steps, known = [], {name: values[index] for index, name in names.items()}
    for op in model.operators:
        if op.outputs[0] not in values:
            continue
        name = f"v{op.outputs[0]}"
        read = tuple(names[i] for i in op.inputs if i in names)
        value = values[op.outputs[0]]
        known[name] = np.moveaxis(value, -1, 1) if value.ndim == 4 else value
        names[op.outputs[0]] = name
        steps.append(Step(f"step{op.index}", "Conv", read, (name,)))
    return steps, known


def test_every_step_lands_on_its_own_operator(pair: Pair, values: dict[int, Any]) -> None:
    steps, known = chain(pair, values)
    found = follow(pair, values, steps, known)
    assert [landing.operators for landing in found.landings] == [
        (int(s.name.removeprefix("step")),) for s in steps
    ]
    assert found.unexplained == () and not any(landing.merged_into for landing in found.landings)


def test_a_step_that_is_nowhere_was_merged_into_the_next(
    pair: Pair, values: dict[int, Any]
) -> None:
    steps, known = chain(pair, values)
    first, second = steps[0], steps[1]
    before = Step("before", "Conv", first.inputs, ("nowhere",))
    after = replace(first, inputs=("nowhere",))
    known["nowhere"] = np.full(known[first.outputs[0]].shape, 7.0, np.float32)
    found = follow(pair, values, [before, after, second, *steps[2:]], known)
    assert found.landings[0] == Landing("before", (0,), first.name)


def test_operators_without_a_step_are_unexplained(pair: Pair, values: dict[int, Any]) -> None:
    steps, known = chain(pair, values)
    found = follow(pair, values, steps[:2], known)
    last = {int(s.name.removeprefix("step")) for s in steps[2:]}
    layout = set(found.layout)
    assert last <= set(found.unexplained) | layout and found.unexplained


def test_one_percent_off_is_not_the_same_value(pair: Pair, values: dict[int, Any]) -> None:
    steps, known = chain(pair, values)
    known[steps[-1].outputs[0]] = known[steps[-1].outputs[0]] * np.float32(1.01)
    found = follow(pair, values, steps, known)
    assert found.landings[-1].operators == () and found.unexplained
