"""Windows written with SAME or VALID."""

from __future__ import annotations

from edgefuse.memory.shrink.windows import Axis, Placed, placed


def test_zero_taps_stand_for_what_was_padded() -> None:
    assert placed(Axis(size=8, output=8, kernel=3, stride=1, before=1), "SAME") == Placed(3, 0)
    assert placed(Axis(size=8, output=4, kernel=3, stride=2, before=1), "SAME") is not None


def test_extents_of_a_damaged_file_end_soon() -> None:
    """The search goes through kernel sizes: as many as rows, it would take hours."""
    axis = Axis(size=1 << 31, output=49, kernel=3, stride=2, before=1).turned()
    assert abs(axis.before) > 1 << 30
    assert placed(axis, "SAME") is None and placed(axis, "VALID") is None
