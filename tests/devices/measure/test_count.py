from __future__ import annotations

import pytest

from edgefuse.devices.measure.count import Operator, invokes, operators
from edgefuse.errors import ToolError


def lines(*marks: tuple[int, int]) -> str:
    return "".join(f"{kind} {count}\n" for kind, count in marks)


def test_invokes_are_told_apart_and_clock_readings_do_not_matter() -> None:
    text = lines((5, 10), (1, 100), (5, 120), (2, 150), (5, 160), (1, 200), (2, 251))
    assert invokes(text) == [50, 51]


def test_operators_of_a_delegate_lie_between_readings_of_the_clock() -> None:
    text = lines((1, 100), (5, 110), (5, 150), (5, 151), (2, 160), (5, 170))
    events = [{"name": "Convolution", "delegate_us": 7}, {"name": "Reshape", "delegate_us": 0}]
    assert operators(text, events) == (Operator("Convolution", 40), Operator("Reshape", 1))


def test_operators_of_the_interpreter_have_marks_and_the_clock_is_the_runners() -> None:
    text = lines(
        *((1, 100), (5, 105), (3, 110), (5, 115), (4, 150), (5, 155)),
        *((5, 156), (3, 160), (4, 190), (5, 195), (2, 200), (5, 205)),
    )
    events = [{"name": "CONV_2D", "ns": 1}, {"name": "MEAN", "ns": 1}]
    assert operators(text, events) == (Operator("CONV_2D", 40), Operator("MEAN", 30))


def test_a_delegate_between_operators() -> None:
    text = lines(
        *((1, 0), (5, 5), (3, 10), (4, 20), (5, 25)),
        *((5, 30), (5, 37), (5, 49)),
        *((5, 52), (3, 60), (4, 65), (5, 70), (2, 80)),
    )
    events = [
        {"name": "QUANTIZE", "ns": 1},
        {"name": "Convolution", "delegate_us": 1},
        {"name": "Add", "delegate_us": 1},
        {"name": "SOFTMAX", "ns": 1},
    ]
    assert operators(text, events) == (
        Operator("QUANTIZE", 10),
        Operator("Convolution", 7),
        Operator("Add", 12),
        Operator("SOFTMAX", 5),
    )


def test_only_the_last_invoke_is_told() -> None:
    text = lines((1, 0), (5, 1), (5, 9), (2, 10), (1, 20), (5, 21), (5, 24), (2, 30))
    assert operators(text, [{"name": "Add", "delegate_us": 1}]) == (Operator("Add", 3),)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_nothing_is_told_when_marks_and_operators_do_not_add_up(count: int) -> None:
    text = lines((1, 100), (5, 110), (5, 150), (5, 151), (2, 160))
    assert operators(text, [{"name": "Add", "delegate_us": 1}] * count) == ()


def test_a_line_that_is_no_mark() -> None:
    with pytest.raises(ToolError, match="no mark at all"):
        invokes("1 100\nno mark at all\n")
