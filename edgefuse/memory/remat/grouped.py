"""A row of layers that runs in groups of samples, kept or computed again.

What a BatchNorm needs of the whole batch is two numbers a channel. All else in a row of
:mod:`~.stages` is each sample's own, so it runs a few samples after the other, and what one layer
makes lies in the processor's cache when the next one reads it:

    first    a = norm(a)                       over a, but for what backward reads
             b[group] = conv(relu(a[group]))   the same for the next stage
    again    z[group] = relu(norm(a[group]))   with the first time's statistics,
             b[group] = conv(z[group])         through all stages
    back     dw = conv_backward(db, z)         the whole batch: its sum is one
             dz[group] = relu_backward(conv_backward(db[group]))
             da = norm_backward(dz, a)

A row that runs again holds its input and the statistics from forward to backward, and in its
backward, stage by stage, what is still to be read. Kept are single convolutions, each with the
activation before it: they hold what torch's layers hold, and take less while they run.

All arithmetic is by torch's kernels. Whether a library computes a group as it computes the batch
is no promise of anybody: a row is tried on its example, and runs in groups only if output,
gradients and statistics are the same to the bit; else as one group, if that is. It serves batches
of such samples, up to as many; others, other dtypes, autocast, and layers that have changed since
run as torch runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from edgefuse.memory.remat.frozen import Given
from edgefuse.memory.remat.norm import Normalise, given_statistics, norms
from edgefuse.memory.remat.stages import Stage, convolves, stages_of, watched

if TYPE_CHECKING:
    from torch import Tensor, nn

    Forward = Callable[[Tensor], Tensor]
    #: Of a stage: its input, where backward reads it, and what the convolution reads.
    Values = list[tuple[Tensor | None, Tensor]]

#: Bytes of what a group's norms and convolutions read, a thread: it stays in the cache, and a call
#: is worth its while. Of 1.3 MB a sample, a convolution alone took 0.71 of the batch's time with
#: two samples at once, 0.80 with one; a whole inverted residual 0.96 with one of that with two.
_GROUP_BYTES = 3 * 2**20


class InARow:
    """Forwards, one after the other."""

    def __init__(self, steps: Sequence[Forward]) -> None:
        self.steps = tuple(steps)

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class Grouped:
    """The forward of a row of layers.

    Args:
        example: a batch of the most samples.
        samples: of a group.
        again: their forward when they are computed again in another way; None when the row is kept.
        over: a layer before the row, whose result may be written over; None without.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        stages: Sequence[Stage],
        example: Tensor,
        samples: int,
        again: Forward | None,
        over: nn.Module | None,
    ) -> None:
        self.layers, self.stages, self.samples = tuple(layers), tuple(stages), samples
        self.shape, self.dtype = tuple(example.shape), example.dtype
        self.runs_again, self.over = again is not None, over
        self.otherwise = again or InARow(layers)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._serves(x):
            return self.otherwise(x)
        found: Tensor = _function().apply(x, self, *self.parameters())
        return found

    def _serves(self, x: Tensor) -> bool:
        import torch

        return (
            tuple(x.shape[1:]) == self.shape[1:]
            and 0 < len(x) <= self.shape[0]
            and x.dtype == self.dtype
            and x.is_contiguous()
            and not torch.is_autocast_enabled(x.device.type)
            and stages_of(self.layers) == self.stages
            and (self.over is None or not watched(self.over))
        )

    def parameters(self) -> list[Tensor | None]:
        return [p for stage in self.stages for p in stage.parameters]

    def groups(self, count: int) -> Iterator[slice]:
        for begin in range(0, count, self.samples):
            yield slice(begin, begin + self.samples)

    def first(self, x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """The result, mean and 1/deviation of every norm, and what the last convolution reads."""
        statistics: list[Tensor] = []
        own = self.over is not None
        x = z = x.detach()
        for stage in self.stages:
            z = x
            if stage.norm is not None:
                z, *found = Normalise(stage.norm).take(x, over=own and self.runs_again)
                statistics += found
            elif stage.most is not None and not own:
                z = x.clone()
            whole = _Whole(len(x))
            for part in self.groups(len(x)):
                stage.activate(z[part])
                whole.put(part, stage.convolve(z[part]))
            x, own = whole.joined(), True
        return x, statistics, z

    def again(self, x: Tensor, statistics: Sequence[Tensor]) -> Values:
        """The values for backward, computed anew."""
        count = len(x)
        inputs = [_Whole(count) for _ in self.stages]
        read = [_Whole(count) for _ in self.stages]
        inputs[0].put(slice(0, count), x)
        for part in self.groups(count):
            a, given = x[part], iter(statistics)
            for place, stage in enumerate(self.stages):
                z = a
                if stage.norm is not None:
                    into = read[place].place(part, a)
                    z = given_statistics(stage.norm, a, next(given), next(given), into)
                elif stage.most is not None and place == 0:
                    z = read[place].place(part, a).copy_(a)
                stage.activate(z)
                if place + 1 < len(self.stages):
                    a = inputs[place + 1].put(part, stage.convolve(z))
        return [
            (a.joined(), z.joined()) if stage.norm is not None
            else (None, (z if stage.most is not None and place == 0 else a).joined())
            for place, (stage, a, z) in enumerate(zip(self.stages, inputs, read))
        ]  # fmt: skip

    def back(
        self, values: Values, statistics: Sequence[Tensor], grad: Tensor, asked: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of the input and of the parameters, as far as asked for; empties ``values``."""
        import torch

        left, known = list(asked), list(statistics)
        found: list[Tensor | None] = []
        for stage in reversed(self.stages):
            a, z = values.pop()
            found[:0] = stage.of_weights(grad, z, _last_two(left))
            if not any(left):
                found = [*[None] * len(left), *found]
                break
            fresh = self.runs_again and (values or stage.norm is not None or stage.most is not None)
            grad = self._of_input(stage, grad, z, over=bool(fresh))
            del z
            if stage.norm is not None:
                mean, invstd = known[-2:]
                del known[-2:]
                masks = _last_two(left)
                grad, *others = torch.ops.aten.native_batch_norm_backward(
                    grad, a, stage.norm.weight, None, None, mean, invstd, True, stage.norm.eps,
                    [any(left), *masks],
                )  # fmt: skip
                found[:0] = others
        else:
            found[:0] = [grad if left[0] else None]
        return found

    def _of_input(self, stage: Stage, grad: Tensor, z: Tensor, *, over: bool) -> Tensor:
        """The gradient of what a stage's activation reads; ``over``: where ``z`` lay."""
        whole = _Whole(len(z))
        if over:
            whole.put(slice(0, len(z)), z)
        for part in self.groups(len(z)):

            def place(of_z: Tensor, part: slice = part) -> Tensor:
                alone = len(of_z) == len(z) and not over
                return of_z if alone else whole.place(part, of_z)

            whole.put(part, stage.of_input(grad[part], z[part], place))
        return whole.joined()


def _last_two(values: list[bool]) -> list[bool]:
    """Taken off the end: of a weight and a bias."""
    found = values[-2:]
    del values[-2:]
    return found


class _Whole:
    """A batch made of its groups; where there is but one, that is it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._whole: Tensor | None = None

    def place(self, part: slice, like: Tensor) -> Tensor:
        """Where a group lies."""
        if self._whole is None:
            self._whole = like.new_empty((self.count, *like.shape[1:]))
        return self._whole[part]

    def put(self, part: slice, value: Tensor) -> Tensor:
        """A group, and where it lies afterwards."""
        if self._whole is None and len(value) == self.count:
            self._whole = value
        place = self.place(part, value)
        return place if place.data_ptr() == value.data_ptr() else place.copy_(value)

    def joined(self) -> Tensor:
        assert self._whole is not None
        return self._whole


@cache
def _function() -> Any:
    import torch

    class Row(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor, row: Grouped, *parameters: Any) -> Tensor:
            y, statistics, z = row.first(x)
            ctx.row, ctx.given = row, Given(parameters)
            # What is kept is a single stage without a norm: that is all its backward reads.
            ctx.save_for_backward(*statistics, x if row.runs_again else z)
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *grads: Tensor) -> Any:
            row = ctx.row
            *statistics, held = ctx.saved_tensors
            ctx.given.check(row.parameters())
            values = row.again(held, statistics) if row.runs_again else [(None, held)]
            del held
            asked = [ctx.needs_input_grad[0], *ctx.needs_input_grad[2:]]
            of_input, *others = row.back(values, statistics, grads[0].contiguous(), asked)
            return of_input, None, *others

    return Row


def in_groups(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> list[Forward]:
    """Forwards of layers in a row that are kept: groups where that takes less, else the layers.

    Args:
        inputs: of each layer, in an example.
    """
    found: list[Forward] = []
    known = norms(layers)
    for place, layer in enumerate(layers):
        stages = stages_of(layers[place - 1 : place + 1]) if place else None
        if stages is not None and stages[-1].most is not None:
            over = layers[place - 2] if place > 1 else None
            if over is None or watched(over) or not (over in known or convolves(over)):
                over = None
            # What works in place writes over what somebody else may read.
            alone = over is None and getattr(layers[place - 1], "inplace", False)
            few = slice(place - 1, place + 1)
            row = None if alone else _grouped(layers[few], inputs[few], over=over)
            if row is not None:
                found[-1:] = [row]
                continue
        alone = getattr(layer, "groups", 1) > 1
        row = _grouped([layer], inputs[place : place + 1]) if alone else None
        found.append(row or layer)
    return found


def again_in_groups(
    layers: Sequence[nn.Module], inputs: Sequence[Tensor], otherwise: Forward
) -> Forward:
    """The forward of layers in a row that are computed again: in groups, or ``otherwise``."""
    return _grouped(layers, inputs, again=otherwise) or otherwise


def _grouped(
    layers: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    *,
    again: Forward | None = None,
    over: nn.Module | None = None,
) -> Grouped | None:
    """A row, tried on its inputs, else as one group of all samples; None where neither will do."""
    import torch

    stages, x = stages_of(layers), inputs[0]
    if stages is None or x.device.type != "cpu" or not x.is_contiguous() or not x.numel():
        return None
    if x.ndim != stages[0].conv.weight.ndim:
        return None

    plain = InARow(layers)
    few = _samples(layers, inputs)
    wanted = _results(layers, plain, x)
    for samples in (few, len(x)) if few < len(x) else (len(x),):
        row = Grouped(layers, stages, x, samples, again, over)
        if all(map(torch.equal, wanted, _results(layers, row, x))):
            return row
    return None


def _samples(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> int:
    """Of a group; activations work in place and need no bytes of their own."""
    import torch

    read = [x[:1] for layer, x in zip(layers, inputs) if any(True for _ in layer.parameters())]
    most = _GROUP_BYTES * torch.get_num_threads()
    return max(1, int(most // sum(x.numel() * x.element_size() for x in read)))


def _results(layers: Sequence[nn.Module], forward: Forward, x: Tensor) -> list[Tensor]:
    """Output, gradients and buffers of a step through layers; the buffers stay as they are."""
    import torch

    asked = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    buffers = [b for layer in layers for b in layer.buffers()]
    before = [b.clone() for b in buffers]
    given = x.detach().requires_grad_(True)
    # A layer that works in place may not write over what it is given.
    y = forward(given.clone())
    # As different as the input's own values, and no random numbers are drawn.
    grad = torch.sin(y.detach() * 12.9898)
    found = [y.detach(), *torch.autograd.grad(y, [given, *asked], grad)]
    found += [b.clone() for b in buffers]
    for buffer, was in zip(buffers, before):
        buffer.copy_(was)
    return found
