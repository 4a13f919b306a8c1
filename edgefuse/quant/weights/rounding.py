"""Better weights and biases for a finished int8 file, layer by layer in order.

The calibration samples walk through the simulated int8 file together, one operator at a time, so
that every layer sees the inputs it will have: those of layers whose weights are rounded already.
For each convolution and fully connected layer

    q = round(W / s), by GPTQ on the covariance of its quantised inputs or as the file has it
    b' = round((b + E[(W - s q) x]) / (s_x s))

so that the mean of its output does not move. Both are closed forms: no learning rate, no steps. The
covariance is centred, because the bias takes care of the mean (Nagel et al., 2019,
arXiv:1906.04721, section 4.2, for the bias).

What waits for its readers is held in int8; at most 256 samples are used, so that memory is bounded.
Left alone: layers that stay float, and weights that several layers share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, StageError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from edgefuse.quant.weights.network import Step
    from edgefuse.quant.weights.simulation import Simulation

    Feed = Mapping[str, np.ndarray[Any, Any]]

SAMPLES = 256
_TOGETHER_BYTES = 24 << 20
_ROWS_PER_SAMPLE = 196
_DAMPING = 0.01
_THREADS = 2


@dataclass(frozen=True)
class Rounded:
    """New constants of an int8 file.

    Attributes:
        values: int8 weights and int32 biases, by the int8 file's tensor index.
        samples: how many samples decided them.
        layers: how many layers they belong to.
        changed_fraction: share of the weights that differ from rounding to nearest.
    """

    values: Mapping[int, np.ndarray[Any, Any]]
    samples: int
    layers: int
    changed_fraction: float


def improve(
    float_file: Path,
    int8_file: Path,
    feeds: Iterable[Feed],
    *,
    rounding: bool,
    may_be_none: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Rounded:
    """Rewrite weights (with ``rounding``) and biases of ``int8_file``, in place.

    Args:
        float_file: what the int8 file was made from.
        feeds: calibration samples, float32 by signature name in the files' layout.
        rounding: GPTQ for the weights; without it only biases change.
        may_be_none: a file without int8 layers stays as it is, as when all were raised to float.
        progress: is told layers done and their number.

    Raises:
        DataError: no sample.
        StageError: an operator that torch does not have here, or no layer to improve.
    """
    from edgefuse.quant.weights.network import require_torch

    require_torch()
    import torch

    from edgefuse.quant.weights.simulation import simulate
    from edgefuse.tflite.edit import with_constants
    from edgefuse.tflite.read import read_model

    threads = torch.get_num_threads()
    # Sums depend on how they are shared out: the same number of threads on every machine.
    torch.set_num_threads(_THREADS)
    try:
        simulation = simulate(read_model(float_file), read_model(int8_file))
        with torch.inference_mode():
            found = _walk(simulation, feeds, rounding, may_be_none, progress)
    finally:
        torch.set_num_threads(threads)
    int8_file.write_bytes(with_constants(int8_file.read_bytes(), found.values))
    return found


def _walk(
    simulation: Simulation,
    feeds: Iterable[Feed],
    rounding: bool,
    may_be_none: bool,
    progress: Callable[[int, int], None] | None,
) -> Rounded:
    from edgefuse.quant.weights.layer import layer_of

    network = simulation.network
    layers = {
        step.operator.index: layer
        for step in network.steps
        if (layer := layer_of(simulation, step)) is not None
    }
    if not layers and may_be_none:
        return Rounded({}, 0, 0, 0.0)
    if not layers:
        raise StageError(
            "no int8 convolution or fully connected layer to improve",
            hint="set quantize.rounding: nearest and quantize.correct_bias: none",
        )
    held = _Held(simulation, feeds)
    values: dict[int, np.ndarray[Any, Any]] = {}
    changed = weights = done = 0
    for step in network.steps:
        if (layer := layers.get(step.operator.index)) is not None:
            moments = layer.moments(held.values(layer.input), _ROWS_PER_SAMPLE)
            integers = layer.rounded(moments, _DAMPING) if rounding else layer.nearest()
            changed += int((integers != layer.nearest()).sum())
            weights += integers.numel()
            values |= layer.replace(integers, moments)
            done += 1
            if progress is not None:
                progress(done, len(layers))
        held.advance(step)
    return Rounded(values, held.samples, len(layers), changed / weights)


class _Held:
    """The values of all samples at one place in the network, a few samples a batch."""

    def __init__(self, simulation: Simulation, feeds: Iterable[Feed]) -> None:
        self._simulation = simulation
        self._batches: list[dict[int, Tensor]] = []
        self.samples = 0
        for group in _grouped(_first(feeds), _together(simulation)):
            self.samples += _count(group)
            given = simulation.network.feeds(group)
            self._batches.append({i: self._packed(i, v.clone()) for i, v in given.items()})
        if not self.samples:
            raise DataError("no calibration samples to improve weights with")

    def values(self, index: int) -> Iterator[Tensor]:
        """Real values of one tensor, batch by batch."""
        for batch in self._batches:
            yield self._unpacked(index, batch[index])

    def advance(self, step: Step) -> None:
        """Run one operator on every batch, and forget what nobody reads any more."""
        network, simulation = self._simulation.network, self._simulation
        read = set(step.operator.inputs)
        constants = {**network.constants, **simulation.constants}
        for batch in self._batches:
            values = {i: self._unpacked(i, v) for i, v in batch.items() if i in read}
            results = network.apply(step, values, simulation.constants)
            lent = {v.untyped_storage().data_ptr() for i, v in batch.items() if i in read}
            lent |= {
                v.untyped_storage().data_ptr() for i in read if (v := constants.get(i)) is not None
            }
            for index, result in zip(step.operator.outputs, results):
                # A view of what others read is not for quantising in place.
                own = result.untyped_storage().data_ptr() not in lent
                batch[index] = self._packed(index, result if own else result.clone())
            for index in step.dying:
                batch.pop(index, None)

    def _packed(self, index: int, value: Tensor) -> Tensor:
        """In int8 or int16 where there is a grid: as the file holds it."""
        import torch

        grid = self._simulation.grids.get(index)
        if grid is None:
            return value
        narrow = grid.low >= -128 and grid.high <= 127
        return grid.quantize_(value).to(torch.int8 if narrow else torch.int16)

    def _unpacked(self, index: int, value: Tensor) -> Tensor:
        grid = self._simulation.grids.get(index)
        return value if grid is None else grid.dequantize(value)


def _together(simulation: Simulation) -> int:
    """How many feeds run at once: their largest tensor stays small enough to be reused."""
    if not simulation.network.batches:
        return 1
    tensors = simulation.network.model.tensors
    largest = max(tensors[index].nbytes for index in simulation.grids) if simulation.grids else 1
    return max(1, _TOGETHER_BYTES // max(1, largest))


def _first(feeds: Iterable[Feed]) -> Iterator[Feed]:
    """Feeds of at most SAMPLES samples together, and of one at least."""
    samples = 0
    for feed in feeds:
        samples += _count(feed)
        if samples > SAMPLES and samples > _count(feed):
            return
        yield feed


def _count(feed: Feed) -> int:
    """How many samples lie along the first axis."""
    return len(next(iter(feed.values())))


def _grouped(feeds: Iterable[Feed], count: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    stream = iter(feeds)
    while group := list(islice(stream, count)):
        yield {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}
