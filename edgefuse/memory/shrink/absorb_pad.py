"""Take the PAD operators out of a .tflite file: the convolutions behind them pad for themselves.

Problem: PyTorch pads a stride-2 convolution on all sides, TFLite's SAME only at the far side. A
converter therefore writes PAD + a VALID convolution, and the copy of a large activation raises the
arena and costs time.

Two exact forms, with y[o] = sum_j w[j] x[2 o - 1 + j] for a kernel of three:

``wider_kernels``  a zero tap behind makes it a kernel of four, whose SAME begins at 2 o - 1. The
    graph's inputs and outputs stay. Costs multiply-adds (16 for 9), and kernels of four may leave a
    runtime's fast path.
``turned``  the network turned by 180 degrees: x'[i] = x[n - 1 - i], y'[o] = y[m - 1 - o], kernels
    turned. The row that PyTorch never reads becomes the near one, and 2 o is where SAME begins. No
    more multiply-adds. REVERSE_V2 turns each picture (and each picture among the outputs back), see
    :mod:`~.reverse`; ``reverse=False`` leaves it out, and whoever feeds the model turns the
    picture.

In int8 both are equal bit by bit: what is padded is the zero point, so that a tap of zero adds
nothing, and sums of integers do not depend on their order. In float the order of a sum changes.

MAX_POOL_2D ignores what lies outside of the picture, so it does without a PAD of the lowest value
where its window lies under SAME; it cannot grow, so that this is mostly the turned network's.

Scope: PAD and PADV2 of rows and columns, with zero, read by CONV_2D and DEPTHWISE_CONV_2D alone, or
with the lowest value, read by MAX_POOL_2D; constant shapes. Left alone, with the reason: everything
else; a graph with an operator that a turn does not commute with stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.memory.shrink.multiply_adds import multiply_adds
from edgefuse.memory.shrink.opened import opened
from edgefuse.memory.shrink.turn import turn
from edgefuse.memory.shrink.windowed import absorbable_pads, axes, fitted, pads_of, place

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit

Form = Literal["wider_kernels", "turned"]


@dataclass(frozen=True)
class Absorbed:
    """What became of the PAD operators.

    Attributes:
        absorbed: labels in the file as it was: ``PAD#5``.
        left: label and reason of each that stays; a refused turn names the operator in its way.
        turned_inputs: names of inputs whose picture must be given turned by 180 degrees.
        turned_outputs: names of outputs that come out turned.
    """

    form: Form
    absorbed: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    multiply_adds_before: int
    multiply_adds: int
    turned_inputs: tuple[str, ...] = ()
    turned_outputs: tuple[str, ...] = ()

    @property
    def extra_share(self) -> float:
        """Multiply-adds more than before, as a share of those before."""
        return self.multiply_adds / max(self.multiply_adds_before, 1) - 1


def absorb_padding(
    data: bytes, form: Form = "wider_kernels", *, reverse: bool = True, one_row: bool = True
) -> tuple[bytes, Absorbed]:
    """The same model without the PADs that its convolutions can do themselves.

    The bytes come back unchanged when nothing was absorbed.

    Args:
        reverse: whether a turned network turns its pictures itself.
        one_row: whether it may do so as one row of values, where that is cheaper.

    Raises:
        SourceError: the file is damaged.
        StageError: it has several subgraphs, or an operator that no runtime runs.
    """
    from edgefuse.tflite.read import parse_model

    model, edit = opened(data)
    pads, left = absorbable_pads(edit)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    absorbed: list[str] = []
    if form == "turned":
        done = turn(edit, [operator for _, operator in pads], reverse=reverse, one_row=one_row)
        if done.refused:
            left += [(name, done.refused) for name, _ in pads]
        else:
            absorbed = [name for name, operator in pads if id(operator) in done.absorbed]
            left += [
                (name, done.absorbed_not[id(operator)])
                for name, operator in pads
                if id(operator) not in done.absorbed
            ]
            inputs, outputs = done.inputs, done.outputs
    else:
        for name, operator in pads:
            reason = _widen(edit, operator)
            if reason:
                left.append((name, reason))
            else:
                absorbed.append(name)
    before = multiply_adds(model)
    if absorbed:
        edit.drop_unread()
        data = edit.packed()
    return data, Absorbed(
        form=form,
        absorbed=tuple(absorbed),
        left=tuple(left),
        multiply_adds_before=before,
        multiply_adds=multiply_adds(parse_model(data)) if absorbed else before,
        turned_inputs=inputs if absorbed else (),
        turned_outputs=outputs if absorbed else (),
    )


def _widen(edit: Edit, pad: Any) -> str:
    """Let the readers of a PAD pad for themselves; why not, else an empty string."""
    pads = pads_of(edit, pad)
    assert not isinstance(pads, str)
    source, result = int(pad.inputs[0]), int(pad.outputs[0])
    readers = [o for o in edit.graph.operators if result in {int(i) for i in o.inputs}]
    fits = []
    for operator in readers:
        fit = fitted(edit, operator, axes(edit, operator, source, pads))
        if isinstance(fit, str):
            return fit
        fits.append(fit)
    for operator, fit in zip(readers, fits):
        operator.inputs = [source, *(int(i) for i in operator.inputs[1:])]
        place(edit, operator, fit)
    edit.graph.operators = [o for o in edit.graph.operators if o is not pad]
    return ""
