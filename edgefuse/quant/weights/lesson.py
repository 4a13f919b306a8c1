"""What a student network is taught: the samples it draws, and how far it is from the float network.

    rows of classes   |float - int8|^2 / |float|^2 + KL(softmax(float) || softmax(int8))
    other outputs     |float - int8|^2 / |float|^2

The divergence decides classes, and does not see what moves all scores alike; the squared error
does. Rows that end in a SOFTMAX are compared before it. Samples that are drawn lie on disk, decoded
once, with the float network's answers; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, StageError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from edgefuse.quant.weights.network import Network
    from edgefuse.quant.weights.trainable import Trainable
    from edgefuse.recipe.quantize import Qat

    Array = np.ndarray[Any, Any]
    Feed = Mapping[str, Array]

_JUDGED_SAMPLES = 64
_LEAST_SIGNAL = 1e-12


@dataclass(frozen=True)
class Output:
    """A tensor to imitate; ``classes`` when it is a row of scores."""

    index: int
    classes: bool


@dataclass(frozen=True)
class Lesson:
    """The samples that are drawn, and what the float network says to them.

    Attributes:
        inputs: [samples, ...] by signature name.
        exact: the float network's, [samples, ...] an output.
        order: which sample is drawn when; batch follows batch.
        group: how many samples may run together.
    """

    outputs: tuple[Output, ...]
    inputs: Mapping[str, Array]
    exact: tuple[Array, ...]
    labels: Array | None
    label_weight: float
    order: Array
    group: int

    @property
    def count(self) -> int:
        """How many different samples there are."""
        return len(self.exact[0])

    def grouped(self, drawn: Array) -> Iterator[tuple[Array, float]]:
        """Samples to run together, and their share of the step."""
        for begin in range(0, len(drawn), self.group):
            rows = drawn[begin : begin + self.group]
            yield rows, len(rows) / len(drawn)

    def feed(self, rows: Array) -> dict[str, Array]:
        return {name: _stacked(held, rows) for name, held in self.inputs.items()}

    def loss(self, student: Trainable, rows: Array) -> Tensor:
        """Of some samples, with gradient."""
        judged = tuple(output.index for output in self.outputs)
        return self.loss_of(student.outputs(self.feed(rows), judged), rows)

    def loss_of(self, found: Sequence[Tensor], rows: Array) -> Tensor:
        """Of what a student said to some samples."""
        import torch
        from torch.nn import functional

        parts = []
        for output, exact, x in zip(self.outputs, self.exact, found):
            wanted = torch.from_numpy(_stacked(exact, rows))
            parts.append(_distance(x, wanted, output.classes))
        loss = torch.stack(parts).mean()
        if self.labels is None:
            return loss
        truth = torch.from_numpy(self.labels[rows])
        share = self.label_weight
        return (1 - share) * loss + share * functional.cross_entropy(found[0], truth)

    def loss_now(self, student: Trainable) -> float:
        """Of the first samples, whatever is drawn next."""
        import numpy as np
        import torch

        rows = np.arange(min(_JUDGED_SAMPLES, self.count))
        with torch.no_grad():
            return sum(float(self.loss(student, r)) * share for r, share in self.grouped(rows))


def _distance(x: Tensor, wanted: Tensor, classes: bool) -> Tensor:
    from torch.nn import functional

    noise = (x - wanted).square().sum() / wanted.square().sum().clamp_min(_LEAST_SIGNAL)
    if not classes:
        return noise
    ours, theirs = functional.log_softmax(x, 1), functional.log_softmax(wanted, 1)
    return noise + functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def prepare(
    teacher: Path,
    samples: Iterable[Feed],
    count: int,
    labels: Sequence[int] | None,
    options: Qat,
    seed: int,
    work: Path,
) -> Lesson:
    """Draw the samples, and ask the float network about each.

    Raises:
        DataError: no sample; labels that are missing or do not fit the classes.
        StageError: an operator that torch does not have here, or samples that cannot be parted.
    """
    import numpy as np
    import torch

    from edgefuse.quant.recording import record
    from edgefuse.quant.weights.network import load_network
    from edgefuse.tflite.read import read_model

    if not count:
        raise DataError("no samples to fine-tune on", where="data.training")
    network = load_network(read_model(teacher))
    shapes = [network.model.tensors[index].shape for index in network.model.inputs]
    if any(shape[:1] > (1,) for shape in shapes) and not network.batches:
        raise StageError(
            f"the model mixes the {shapes[0][0]} samples of its batch, and fine-tuning needs them "
            "one by one",
            hint="set model.batch: 1",
            where="quantize.qat",
        )
    outputs = _outputs(network)
    truth = _truth(labels, count, outputs, network, options.label_weight)
    random = np.random.default_rng(seed)
    wanted = options.steps * options.batch
    epochs = [random.permutation(count) for _ in range(-(-wanted // count))]
    drawn, order = np.unique(np.concatenate(epochs)[:wanted], return_inverse=True)
    chosen = set(drawn.tolist())

    def rows() -> Iterator[dict[str, Array]]:
        for place, feed in enumerate(samples):
            if place in chosen:
                exact = _answers(network, feed, outputs)
                yield {**feed, **{f"output {k}": x for k, x in enumerate(exact)}}

    with torch.inference_mode():
        held = record(rows(), work)
        inputs = {n: x for n, x in held.items() if not n.startswith("output ")}
        answers = tuple(held[f"output {k}"] for k in range(len(outputs)))
    labels_drawn = None if truth is None else truth[drawn]
    group = options.batch if network.batches else 1
    weight = options.label_weight
    return Lesson(outputs, inputs, answers, labels_drawn, weight, order.reshape(-1), group)


def _outputs(network: Network) -> tuple[Output, ...]:
    """The model's outputs; the operand of a SOFTMAX instead of its result."""
    makers = {i: step.operator for step in network.steps for i in step.operator.outputs}
    found = []
    for _, index in network.model.signature_outputs:
        maker = makers.get(index)
        shape = network.model.tensors[index].shape
        classes = len(shape) == 2 and shape[1] > 1 and (maker is None or maker.code != "LOGISTIC")
        if classes and maker is not None and maker.code == "SOFTMAX":
            index = maker.inputs[0]
        found.append(Output(index, classes))
    return tuple(found)


def _truth(
    labels: Sequence[int] | None,
    count: int,
    outputs: Sequence[Output],
    network: Network,
    weight: float,
) -> Array | None:
    """The labels, when they are to count."""
    import numpy as np

    if weight == 0:
        return None
    where = "quantize.qat.label_weight"
    if not outputs[0].classes:
        raise DataError("the model's first output is no row of classes", where=where)
    if labels is None or len(labels) != count:
        raise DataError(
            f"label_weight {weight:g} needs a label for each sample of data.training, and there "
            f"are {len(labels or ())} for {count}",
            hint="give labels, or leave label_weight out: distillation needs none",
            where=where,
        )
    truth = np.asarray(labels, np.int64)
    classes = network.model.tensors[outputs[0].index].shape[1]
    if truth.min() < 0 or truth.max() >= classes:
        raise DataError(
            f"labels {truth.min()}..{truth.max()} do not fit {classes} classes",
            hint="labels are class indices from 0 in the model's own order",
            where="data.training",
        )
    return truth


def _answers(network: Network, feed: Feed, outputs: Sequence[Output]) -> list[Array]:
    """The float network's tensors to imitate."""
    judged = frozenset(output.index for output in outputs)
    found = network.run(network.feeds(feed), keep=judged)
    return [found[output.index].contiguous().numpy() for output in outputs]


def _stacked(held: Array, rows: Array) -> Array:
    """Samples [k, n, ...] as one of [k * n, ...], in memory of its own."""
    import numpy as np

    taken: Array = np.array(held[rows])
    return taken.reshape(-1, *taken.shape[2:]) if taken.ndim > 1 else taken
