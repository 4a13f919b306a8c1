"""Quantisation-aware fine-tuning: the weights learn to live with their rounding.

The int8 file learns from the float network, on samples that need no labels:

    minimise over the weights   E[distance(float(x), int8(x))]

with the distance of :mod:`~.lesson`; ``label_weight`` of it may be the cross-entropy
on labels instead. Forward and backward are those of :mod:`~.trainable`; Adam, with a
learning rate that rises over a tenth of the steps and falls to 0 along a cosine, and gradients of
norm 1 at most. The weights kept are those of the least loss, those of the beginning among them.

    new float .tflite = the old one with the trained constants

It is quantised by rounding to nearest, with the same ranges: that is what its weights were trained
for. BatchNorm is folded, hence frozen. Samples come in a seeded order, epoch by epoch, and the
number of threads is fixed, so that a second run gives the same bytes. Left alone: activation ranges
(steps that are learned, Esser et al., 2020, arXiv:1902.08153, would change them).
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.quant.weights.lesson import Lesson
    from edgefuse.quant.weights.trainable import Trainable
    from edgefuse.recipe.quantize import Qat

    Array = np.ndarray[Any, Any]
    Feed = Mapping[str, Array]

_MOST_NORM = 1.0
# The first tenth of the steps are small: Adam knows no gradient's size yet.
_WARM_UP = 10
_LOOKS = 4
_THREADS = 2


@dataclass(frozen=True)
class Tuned:
    """What fine-tuning did.

    Attributes:
        best_step: after which the loss was least, of four looks at it; 0 when it never fell, and
            the weights are those of the beginning.
        layers: how many layers have trained weights.
        samples: how many different samples were drawn.
        first_loss, last_loss: before, and at the best step, on the same training samples.
        seconds: in all.
        memory: peak bytes of a step, with and without the recipe's budget; None without one.
    """

    steps: int
    best_step: int
    layers: int
    samples: int
    first_loss: float
    last_loss: float
    seconds: float
    memory: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **({} if self.memory is None else {"memory": dict(self.memory)}),
            "steps": self.steps,
            "best_step": self.best_step,
            "layers": self.layers,
            "samples": self.samples,
            "first_loss": float(f"{self.first_loss:.5g}"),
            "last_loss": float(f"{self.last_loss:.5g}"),
            "seconds": round(self.seconds, 2),
        }


def fine_tune(
    teacher: Path,
    float_file: Path,
    int8_file: Path,
    samples: Iterable[Feed],
    count: int,
    labels: Sequence[int] | None,
    destination: Path,
    options: Qat,
    *,
    seed: int,
    work: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Write ``float_file`` with weights and biases trained for the scales of ``int8_file``.

    Args:
        teacher: the float network to imitate.
        float_file: what the int8 file was made from: the teacher's graph, equalised or not.
        samples: one sample each, float32 by signature name, in the file's layout.
        count: how many there are.
        labels: class indices, one a sample; needed when ``options.label_weight`` is above 0.
        seed: of the order of the samples.
        work: a folder that does not exist, for the samples; removed in the end.
        progress: is told steps done and their number.

    Raises:
        DataError: no sample; labels that are missing or do not fit the classes.
        StageError: an operator that torch does not have here, or a loss that is no finite number.
        UsageError: a memory budget for a network that is no chain of pieces.
        GateFailed: a memory budget that no plan keeps to.
    """
    import torch

    from edgefuse.quant.weights.budget import within_budget
    from edgefuse.quant.weights.lesson import prepare
    from edgefuse.quant.weights.simulation import simulate
    from edgefuse.quant.weights.trainable import trainable
    from edgefuse.tflite.edit import with_constants
    from edgefuse.tflite.read import read_model

    begin = time.monotonic()
    student = trainable(simulate(read_model(float_file), read_model(int8_file)))
    if not student.parameters:
        raise StageError("no layer with constant weights to fine-tune", where="quantize.qat")
    threads = torch.get_num_threads()
    # Sums depend on how they are shared out: the same number of threads on every machine.
    torch.set_num_threads(_THREADS)
    try:
        lesson = prepare(teacher, samples, count, labels, options, seed, work)
        memory = None
        if options.budget is not None:
            student, plan = within_budget(student, lesson, options.budget)
            memory = {
                "budget_bytes": plan.budget_bytes,
                "peak_bytes": plan.peak_bytes,
                "plain_peak_bytes": plan.eager_peak_bytes,
                "pieces_run_twice": len(set(plan.recomputed)),
            }
        first = lesson.loss_now(student)
        if not math.isfinite(first):
            raise StageError(
                f"the loss is {first:g} before anything is trained: a sample or the float model's "
                "answer to it is no finite number",
                hint="look in data.training for NaN, infinity, and values beyond 1e19",
                where="quantize.qat",
            )
        best_step, last = _train(student, lesson, options, first, progress)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(work, ignore_errors=True)
    data = _unshared(float_file.read_bytes(), student.parameters)
    destination.write_bytes(with_constants(data, student.values()))
    seconds = time.monotonic() - begin
    return Tuned(
        options.steps, best_step, student.layers, lesson.count, first, last, seconds, memory
    )


def _train(
    student: Trainable,
    lesson: Lesson,
    options: Qat,
    first: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[int, float]:
    """Leaves the student as it was at its best; that step, and its loss."""
    import torch

    changes = list(student.changes())
    best_step, best, kept = 0, first, [change.detach().clone() for change in changes]
    warm_up = max(1, options.steps // _WARM_UP)
    marks = {-(-options.steps * k // _LOOKS) for k in range(1, _LOOKS + 1)}
    optimiser = torch.optim.Adam(changes, lr=options.learning_rate)
    for done in range(options.steps):
        rate = options.learning_rate * (1 + math.cos(math.pi * done / options.steps)) / 2
        rate *= min(1.0, (done + 1) / warm_up)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        drawn = lesson.order[done * options.batch : (done + 1) * options.batch]
        loss = 0.0
        for rows, share in lesson.grouped(drawn):
            part = lesson.loss(student, rows) * share
            part.backward()
            loss += float(part.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(changes, _MOST_NORM))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise StageError(
                f"fine-tuning lost its way: at step {done + 1} of {options.steps}, learning rate "
                f"{rate:.3g}, the loss is {loss:g} and its gradient's norm {norm:g}",
                hint="lower quantize.qat.learning_rate",
                where="quantize.qat",
            )
        optimiser.step()
        if done + 1 in marks and (now := lesson.loss_now(student)) < best:
            best_step, best = done + 1, now
            kept = [change.detach().clone() for change in changes]
        if progress is not None:
            progress(done + 1, options.steps)
    with torch.no_grad():
        for change, value in zip(changes, kept):
            change.copy_(value)
    return best_step, best


def _unshared(data: bytes, indices: Iterable[int]) -> bytes:
    """The same file, with bytes of its own for each of these constants: they part in training."""
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import parse_model

    model = parse_model(data)
    users: dict[int, int] = {}
    for tensor in model.tensors:
        if tensor.is_constant:
            users[tensor.buffer] = users.get(tensor.buffer, 0) + 1
    shared = [i for i in indices if users[model.tensors[i].buffer] > 1]
    if not shared:
        return data
    edit = Edit(data)
    for index in shared:
        edit.fill(index, model.constant(model.tensors[index]))
    return edit.packed()
