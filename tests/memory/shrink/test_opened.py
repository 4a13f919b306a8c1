"""Files by old and by careless writers, before a rewrite touches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgefuse.errors import StageError
from edgefuse.memory.shrink.absorb_pad import absorb_padding
from edgefuse.memory.shrink.opened import opened
from edgefuse.memory.shrink.tile import tile
from edgefuse.tflite.edit import Edit

from ..nets import Net, mobile


def _changed(change: Callable[[Any], None], code: str) -> bytes:
    """A small net, the first operator of that kind changed."""
    edit = Edit(mobile())
    change(next(o for o in edit.graph.operators if edit.code(o) == code))
    return edit.packed()


def _set(name: str, value: int) -> Callable[[Any], None]:
    return lambda operator: setattr(operator.builtinOptions, name, value)


def _without_options(operator: Any) -> None:
    operator.builtinOptions, operator.builtinOptionsType = None, 0


def _without_table(operator: Any) -> None:
    operator.inputs = operator.inputs[:1]


@pytest.mark.parametrize(
    ("code", "change", "message"),
    [
        ("CONV_2D", _without_options, r"CONV_2D#1 has no options"),
        ("CONV_2D", _set("strideH", 0), "has strideH 0"),
        ("DEPTHWISE_CONV_2D", _set("dilationWFactor", -1), "has dilationWFactor -1"),
        ("PAD", _without_table, "PAD#0 lacks an input"),
    ],
)
def test_refused_by_every_rewrite(code: str, change: Callable[[Any], None], message: str) -> None:
    data = _changed(change, code)
    for rewrite in (
        lambda: absorb_padding(data, "turned"),
        lambda: absorb_padding(data, "wider_kernels"),
        lambda: tile(data, grid=(2, 2), last=3),
    ):
        with pytest.raises(StageError, match=message) as caught:
            rewrite()
        assert caught.value.hint


def test_a_file_that_knows_only_the_older_field_of_codes() -> None:
    """Else every operator of it reads as ADD, and a maximum would be tiled without its halo."""
    net = Net((16, 16))
    made = net.made("maximum", (16, 16, 3))
    window = {"filterHeight": 3, "filterWidth": 3, "strideW": 1, "strideH": 1, "padding": 0}
    net.b.op("MAX_POOL_2D", (net.image,), (made,), options=("Pool2DOptions", window))
    for code in net.b.model.operatorCodes:
        code.builtinCode = 0
    data = net.finish(made)
    _, edit = opened(data)
    assert edit.code(edit.graph.operators[0]) == "MAX_POOL_2D"
    with pytest.raises(StageError, match="no operators of the model can be tiled"):
        tile(data, grid=(2, 2), last=0)


def test_an_operator_without_inputs_is_in_nobodys_way() -> None:
    edit = Edit(mobile())
    edit.graph.operators.append(edit.operator("VAR_HANDLE", [], [edit.like(0, "_handle", "int8")]))
    _, facts = absorb_padding(edit.packed(), "wider_kernels")
    assert facts.absorbed


def test_what_nobody_reads_is_not_tiled() -> None:
    net = Net((16, 16))
    first = net.conv(net.image, 4, 3)
    net.conv(first, 4, 3)
    data = net.finish(net.conv(first, 8, 3))
    made, done = tile(data, grid=(2, 2), last=2)
    assert done.grid == (2, 2) and made != data
    codes = [o.code for o in opened(made)[0].operators]
    assert codes.count("CONV_2D") == 8
