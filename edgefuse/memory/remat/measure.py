"""The bytes of blocks, each run alone under the meter; of what lies around the chain, in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from edgefuse.errors import UsageError
from edgefuse.memory.remat.chain import Around, Block, Mode
from edgefuse.memory.remat.meter import Levels, levels, mark

if TYPE_CHECKING:
    from torch import Tensor, nn


@cache
def _seed() -> Any:
    """An operator that takes any tensor and makes its gradient, of ones, when backward begins."""
    import torch

    class Seed(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            ctx.like = (y.shape, y.dtype, y.device)
            return y.new_zeros(())

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            shape, dtype, device = ctx.like
            return torch.ones(shape, dtype=dtype, device=device)

    return Seed


def _alone(block: nn.Module, x: Tensor) -> Levels:
    """Forward and backward of one block, with marks."""

    def run() -> None:
        given = x.detach().requires_grad_(x.requires_grad)
        mark("empty")
        own = given.clone()
        mark("given")
        y = block(own)
        mark("forward")
        loss = _seed().apply(y)
        del y
        mark("output")
        del own
        mark("input")
        if loss.requires_grad:
            loss.backward()
        mark("backward")

    found = levels(run)
    for parameter in block.parameters():
        parameter.grad = None
    return found


def measured(block: nn.Module, name: str, x: Tensor, work: int, kept_because: str) -> Block:
    """A block with its plain mode alone."""
    import torch

    mode, holds, parameters = _mode("keep", block, x, 0)
    result = 0

    def bare() -> None:
        nonlocal result
        given = x.detach().requires_grad_(x.requires_grad).clone()
        mark("given")
        with torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: torch.empty(0)):
            y = block(given)
        result = y.numel() * y.element_size()
        mark("forward")

    marks = {name: (held, since) for name, held, since in levels(bare).marks}
    need = max(0, marks["forward"][1] - marks["given"][0])
    state = sum(buffer.numel() * buffer.element_size() for buffer in block.buffers())
    return Block(name, (mode,), result, need, holds, parameters, work, kept_because, state)


def mode_of(name: str, block: nn.Module, x: Tensor, work: int) -> Mode:
    """Another mode of a block, which runs in it now; ``work`` is what it computes twice."""
    return _mode(name, block, x, work)[0]


def _mode(name: str, block: nn.Module, x: Tensor, work: int) -> tuple[Mode, bool, int]:
    marks = {each: (held, since) for each, held, since in _alone(block, x).marks}
    empty, given = marks["empty"][0], marks["given"][0]
    own = given - empty
    holds = marks["output"][0] - marks["input"][0] < own
    saved = marks["input"][0] - empty - (own if holds else 0)
    backward = marks["backward"][1] - marks["input"][0]
    left = marks["backward"][0] - empty - (own if x.requires_grad else 0)
    mode = Mode(
        name,
        max(0, saved),
        max(0, marks["forward"][0] - marks["output"][0]),
        max(0, marks["forward"][1] - given),
        max(0, backward),
        work,
    )
    return mode, holds, max(0, left)


def around(parent: nn.Module, step: Callable[[], object], blocks: Sequence[Block]) -> Around:
    """What a step needs around a chain, from one step that keeps everything."""

    def back_in(grad: Tensor) -> None:
        mark("back in")

    def back_out(grad: Tensor) -> None:
        mark("back out")

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        mark("in")
        if inputs[0].requires_grad:
            inputs[0].register_hook(back_out)

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        mark("out")
        if output.requires_grad:
            output.register_hook(back_in)

    def whole() -> None:
        step()
        mark("end")

    hooks = [
        parent.register_forward_pre_hook(enter),
        parent.register_forward_hook(leave),
    ]
    try:
        found = levels(whole)
    finally:
        for hook in hooks:
            hook.remove()
    held = {name: (now, since) for name, now, since in found.marks}
    if "back in" not in held:
        raise UsageError(
            "the chain of blocks takes no part in the backward: its blocks are frozen, or the loss "
            "does not read what it gives",
            hint="such a chain holds nothing for the backward; no plan is needed",
            where=type(parent).__name__,
        )
    before = held["in"][0]
    inside = _held_after(blocks)
    later, since = held["back in"]
    elsewhere = held["in"][1]
    if "back out" in held:
        elsewhere = max(elsewhere, held["end"][1])
    return Around(
        before_bytes=max(0, before),
        after_bytes=max(0, since - before - inside),
        beside_bytes=max(0, later - before - inside - blocks[-1].result_bytes),
        elsewhere_bytes=max(0, elsewhere),
    )


def _held_after(blocks: Sequence[Block]) -> int:
    """By a chain of which everything is kept, when its forward is over."""
    held = given = 0
    for block in blocks:
        mode = block.modes[0]
        held += mode.saved_bytes + (given if block.holds_input else 0)
        given = mode.output_bytes
    return held
