"""What was chosen can be asked for by hand, and gives the same bytes."""

from __future__ import annotations

import pytest

from edgefuse.memory.shrink.shrink import Kernels, Wish, shrink

from ..nets import Net, mobile


def _again(data: bytes, wish: Wish) -> None:
    made, done = shrink(data, wish)
    chosen = Wish(
        padding=done.choice.padding,
        edges=done.choice.edges,
        kernels=done.kernels,
        tiles=done.choice.tiles,
        last=done.choice.last,
        arena_bytes=wish.arena_bytes,
        max_extra_multiply_adds=1.0,
    )
    again, told = shrink(data, chosen)
    assert again == made and told.choice == done.choice and made != data


@pytest.mark.parametrize("goal", [None, 4000, 3000, 2600])
def test_a_choice_given_as_a_wish_makes_the_same_file(goal: int | None) -> None:
    _again(mobile(), Wish(arena_bytes=goal, max_extra_multiply_adds=1.0))


@pytest.mark.parametrize("kernels", ["builtin", "legacy", "reference", "micro"])
@pytest.mark.parametrize("edges", [True, False])
def test_kernels_are_part_of_it(kernels: Kernels, edges: bool) -> None:
    net = Net((64, 48))
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 24, 3, 2, "VALID", "RELU6")
    _again(net.finish(net.pooled(net.block(x, 12, 2))), Wish(kernels=kernels, edges=edges))
