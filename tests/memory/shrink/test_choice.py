"""What was chosen can be asked for by hand, and gives the same bytes."""

from __future__ import annotations

import pytest

from edgefuse.memory.shrink.shrink import Wish, shrink

from ..nets import mobile


@pytest.mark.parametrize("goal", [None, 4000, 3000, 2600])
def test_a_choice_given_as_a_wish_makes_the_same_file(goal: int | None) -> None:
    data = mobile()
    made, done = shrink(data, Wish(arena_bytes=goal, max_extra_multiply_adds=1.0))
    chosen = Wish(
        padding=done.choice.padding,
        tiles=done.choice.tiles,
        last=done.choice.last,
        arena_bytes=goal,
        max_extra_multiply_adds=1.0,
    )
    again, told = shrink(data, chosen)
    assert again == made and told.choice == done.choice and made != data
