"""Programs as data: the way through JSON, and every fault that a runner must not meet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgefuse.cuda.lower.choose import every_depthwise
from edgefuse.cuda.lower.graph import lower
from edgefuse.cuda.program import Launch, Program, from_text
from edgefuse.cuda.steps import Step, evaluate
from edgefuse.cuda.storage import decode, encode
from edgefuse.errors import StageError
from edgefuse.graph.shapes import at_shapes

from .nets import BLOCK, fused, graph


@pytest.fixture(scope="module")
def program() -> Program:
    model = at_shapes(fused(graph(BLOCK)), {}).model
    return lower(model, "fp16", name="net", kernels=every_depthwise(model), bucket="batch 2")[0]


def test_json_both_ways(program: Program) -> None:
    again = from_text(program.to_text())
    assert again == program
    assert again.to_text() == program.to_text()


def test_the_same_graph_gives_the_same_program(program: Program) -> None:
    model = at_shapes(fused(graph(BLOCK)), {}).model
    again, _ = lower(model, "fp16", name="net", kernels=every_depthwise(model), bucket="batch 2")
    assert again.to_text() == program.to_text()


def test_every_launch_says_where_it_comes_from(program: Program) -> None:
    assert all(launch.groups and launch.nodes for launch in program.launches)
    merged = next(one for one in program.launches if one.kernel == "depthwise_project")
    assert len(merged.groups) == 2
    # 2 * 5 * 6 pixels: 9 products of 16 channels with bias and Relu; 16 products of 8 channels.
    assert merged.vector_flops == 60 * 16 * (18 + 1 + 1) + 60 * 8
    assert merged.matrix_flops == 60 * 8 * (2 * 16 + 1)
    wide, narrow = 2 * 5 * 6 * 16, 2 * 5 * 6 * 8
    assert merged.bytes_read == 2 * (wide + narrow + 9 * 16 + 16 * 8) + 4 * (16 + 8)
    assert merged.bytes_written == 2 * narrow


def launch_changed(place: int, **changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        launches = list(program.launches)
        launches[place] = replace(launches[place], **changes)
        return replace(program, launches=tuple(launches))

    return change


def tensor_changed(name: str, **changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        changed = (replace(t, **changes) if t.name == name else t for t in program.tensors)
        return replace(program, tensors=tuple(changed))

    return change


def swapped(program: Program) -> Program:
    first, second, *rest = program.launches
    return replace(program, launches=(second, first, *rest))


def over_another(program: Program) -> Program:
    return tensor_changed("a1", offset=program.tensor("a0").offset)(program)


FAULTS: dict[str, Callable[[Program], Program]] = {
    "'a0' is read before it is written": swapped,
    "tensor 'a0' is written twice": launch_changed(1, output="a0"),
    "tensor 'nothing' does not exist": launch_changed(1, inputs=("nothing",)),
    "there is no kernel 'conv2x2'": launch_changed(1, kernel="conv2x2"),
    "takes 1 to 1 weights, not 0": launch_changed(1, weights=()),
    "conv1x1 takes the attributes": launch_changed(1, attributes={"strides": (1, 1)}),
    "conv1x1 cannot make": launch_changed(1, weights=("w2",)),
    "there is no step 'swell'": launch_changed(1, epilogue=(Step("swell"),)),
    "step add takes 2 operands, 0 constants": launch_changed(1, epilogue=(Step("add"),)),
    "reads %1 before it is made": launch_changed(1, epilogue=(Step("relu", ("%1",)),)),
    "does not broadcast": launch_changed(1, epilogue=(Step("add", ("acc", "b0")),)),
    "conv takes no inner steps": launch_changed(0, inner=(Step("relu"),)),
    "share bytes while both live": over_another,
    "beyond the end of the weights": tensor_changed("w1", offset=1 << 30),
    "no multiple of 256": tensor_changed("a1", offset=1),
    "has no elements": tensor_changed("a1", shape=(0, 1, 1, 1)),
    "kernels index with 32 bits": tensor_changed("a1", shape=(2**31, 1, 1, 16)),
    "share a name": lambda p: replace(p, tensors=(*p.tensors, p.tensors[0])),
    "output 'y' is never written": lambda p: replace(p, launches=p.launches[:-1]),
}


@pytest.mark.parametrize("words", FAULTS)
def test_faults(program: Program, words: str) -> None:
    from edgefuse.cuda.faults import faults

    assert not list(faults(program))
    found = [str(fault) for fault in faults(FAULTS[words](program))]
    assert any(words in text for text in found), found


def test_a_text_that_is_no_program(program: Program) -> None:
    row = json.loads(program.to_text())
    with pytest.raises(StageError, match="schema 99"):
        from_text(json.dumps({**row, "schema": 99}))
    for text in ("{}", "[]", program.to_text()[:-9], json.dumps({**row, "launches": [1]})):
        with pytest.raises(StageError, match="not a program"):
            from_text(text, "net.json")


def test_a_view_that_leaves_its_tensor() -> None:
    model = at_shapes(graph("(float[2, 3] x) => (float[3, 2] y) { y = Transpose(x) }"), {}).model
    program, _ = lower(model, "fp32", name="net")
    (launch,) = program.launches
    views = {**launch.attributes, "views": ((1, (1, 3)),)}
    wrong = replace(program, launches=(replace(launch, attributes=views),))
    with pytest.raises(StageError, match="a view reaches element 6 of tensor 'x'"):
        wrong.checked()


def test_bfloat16_rounds_to_even() -> None:
    ones = np.array([1.0, 1.00390625, 1.01171875, -3.4e38, np.nan, np.inf], np.float32)
    held = encode(ones, "bfloat16")
    again = decode(held, "bfloat16")
    assert again[:3].tolist() == [1.0, 1.0, 1.015625]
    assert np.isnan(again[4]) and np.isinf(again[5])
    assert np.array_equal(encode(again[:4], "bfloat16"), held[:4])


def test_requantisation_rounds_ties_to_even_and_clamps() -> None:
    acc = np.array([1, 3, 5, -1, -3, 1000, -1000, 2**31 - 1], np.int32)
    half = np.array([0.5], np.float32)
    steps = (Step("requantize", ("acc", "m"), (3.0, -100.0, 90.0)),)
    made = evaluate(steps, acc, lambda name: half)
    assert made.tolist() == [3, 5, 5, 3, 1, 90, -100, 90]
    other = np.array([10, -10], np.int32)
    add = (Step("requantize_add", ("acc", "b"), (1.0, 0.5, -2.0, 2.0, 4.0, -128.0, 127.0)),)
    made = evaluate(add, np.array([4, 5], np.int32), lambda name: other)
    assert made.tolist() == [round(1.5 + 24) + 4, round(2.0 - 16) + 4]
    with pytest.raises(StageError, match="mixes integers and numbers"):
        evaluate((Step("add", ("acc", "m")),), acc, lambda name: half)


def test_the_error_function() -> None:
    from math import erf

    x = np.linspace(-7, 7, 4001, dtype=np.float32)
    made = evaluate((Step("erf"),), x, lambda name: x)
    assert np.abs(made - np.array([erf(v) for v in x.tolist()])).max() < 1e-7


def test_launches_name_what_their_steps_read() -> None:
    steps = (Step("add", ("acc", "bias")), Step("add", ("%0", "residual")), Step("relu", ("%1",)))
    launch = Launch("n", "gemm", ("x",), ("w",), "y", epilogue=steps)
    assert launch.operands == ("bias", "residual")
    assert launch.reads == ("x", "w", "bias", "residual")
