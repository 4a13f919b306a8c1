"""A float .tflite as a torch program: what better rounding and fine-tuning work on.

The file's own graph, so that every tensor and every constant has the index that it has in the file
and in its int8 twin, whichever framework the model came from. Operands are looked up by tensor
index; constants are torch tensors, and may be replaced for a run.

    values[t] = f_operator(values[operands]),  then the fused activation

Left alone: control flow, variables and custom operators: they are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError, ToolError

if TYPE_CHECKING:
    from torch import Tensor

    from edgefuse.tflite.read import Operator, TfliteModel

    Values = dict[int, Tensor]
    OnValue = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Step:
    """One operator, ready to run.

    Attributes:
        operator: as the file has it.
        options: the schema's table of its options, or None.
        dying: tensors that nobody reads after it.
    """

    operator: Operator
    options: Any
    dying: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A float .tflite in torch.

    Attributes:
        model: the file.
        steps: its operators in order.
        constants: float constants as float32, others as they are, by tensor index.
    """

    model: TfliteModel
    steps: tuple[Step, ...]
    constants: Mapping[int, Tensor]

    @cached_property
    def batches(self) -> bool:
        """Whether samples may go together along the first axis: tried on two, step by step.

        A file of static shapes may fold its batch of one into another axis, as attention does with
        its heads; together, samples would be mixed.
        """
        import torch

        source = torch.Generator().manual_seed(0)
        singles: list[Values] = [{}, {}]
        for index in self.model.inputs:
            tensor = self.model.tensors[index]
            for single in singles:
                if tensor.is_float:
                    single[index] = torch.randn(tensor.shape, generator=source)
                else:
                    single[index] = torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype))
        if any(not value.ndim for value in singles[0].values()):
            return False
        both = {i: torch.cat([single[i] for single in singles]) for i in self.model.inputs}
        with torch.inference_mode():
            return all(self._alike(step, both, singles) for step in self.steps)

    def _alike(self, step: Step, both: Values, singles: list[Values]) -> bool:
        """Run one step on samples together and apart; whether the results are the same."""
        import torch

        try:
            together = self.apply(step, both)
        except (RuntimeError, IndexError):
            return False
        apart = [self.apply(step, single) for single in singles]
        for place, index in enumerate(step.operator.outputs):
            held, (one, other) = together[place], [results[place] for results in apart]
            constant = held.shape == one.shape and torch.equal(one, other)
            wanted = one if constant or not one.ndim else torch.cat([one, other])
            if held.shape != wanted.shape:
                return False
            peak = float(wanted.abs().max()) if wanted.numel() else 0.0
            if not torch.allclose(
                held.double(), wanted.double(), 1e-3, 1e-4 * peak, equal_nan=True
            ):
                return False
            both[index], singles[0][index], singles[1][index] = held, one, other
        for index in step.dying:
            for values in (both, *singles):
                values.pop(index, None)
        return True

    def feeds(self, feed: Mapping[str, Any]) -> Values:
        """A sample by signature name as values by tensor index."""
        import torch

        named = self.model.signature_inputs
        return {index: torch.from_numpy(feed[name]) for name, index in named}

    def run(
        self,
        values: Values,
        begin: int = 0,
        end: int | None = None,
        *,
        constants: Mapping[int, Tensor] | None = None,
        on_value: OnValue | None = None,
        keep: frozenset[int] = frozenset(),
    ) -> Values:
        """Run the steps ``begin`` to ``end`` (excluded) on ``values``, which hold what they read.

        Args:
            constants: instead of the file's, by tensor index.
            on_value: sees each float result, and gives what the following operators read.
            keep: tensors to keep though nobody reads them any more.

        Returns:
            What is still needed after the last step, and the model's outputs.
        """
        live = dict(values)
        for step in self.steps[begin:end]:
            results = self.apply(step, live, constants)
            for index, result in zip(step.operator.outputs, results):
                is_float = on_value is not None and result.is_floating_point()
                live[index] = on_value(index, result) if on_value and is_float else result
            for index in step.dying:
                if index not in keep:
                    live.pop(index, None)
        return live

    def apply(
        self, step: Step, values: Values, constants: Mapping[int, Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """The results of one operator."""
        from edgefuse.quant.weights.operators import OPERATORS, activated

        operands = []
        for index in step.operator.inputs:
            if constants is not None and index in constants:
                operands.append(constants[index])
            elif index < 0:
                operands.append(None)
            else:
                operands.append(values[index] if index in values else self.constants[index])
        found = OPERATORS[step.operator.code](step.options, operands)
        results = found if isinstance(found, tuple | list) else (found,)
        if step.operator.activation != "NONE":
            results = tuple(activated(r, step.operator.activation) for r in results)
        return tuple(results)


def require_torch() -> None:
    """Raises ToolError with the remedy where torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ToolError(
            f"torch cannot be loaded: {error}",
            hint='pip install "edgefuse[torch]", or set quantize.equalize: false, '
            "quantize.rounding: nearest and quantize.correct_bias: none or head",
        ) from error


def load_network(model: TfliteModel) -> Network:
    """Read a float .tflite as a torch program.

    Raises:
        StageError: an operator that is not known here.
        ToolError: torch is missing.
    """
    require_torch()
    import torch

    from edgefuse.quant.weights.operators import OPERATORS, unknown_option
    from edgefuse.tflite.edit import Edit

    _require_known({op.custom_code or op.code for op in model.operators} - OPERATORS.keys())
    edit = Edit(model.data)
    last: dict[int, int] = {}
    for operator in model.operators:
        for index in (*operator.inputs, *operator.outputs):
            last[index] = operator.index
    steps = []
    for operator in model.operators:
        touched = {*operator.inputs, *operator.outputs} - {-1, *model.outputs}
        dying = sorted(
            i for i in touched if last[i] == operator.index and not model.tensors[i].is_constant
        )
        options = edit.graph.operators[operator.index].builtinOptions
        if operator.code == "RESHAPE":
            wanted = _reshaped(model, operator, options)
            options = edit.schema.ReshapeOptionsT()
            options.newShape = wanted
        elif what := unknown_option(operator.code, options):
            _require_known({f"{operator.code} with {what}"})
        steps.append(Step(operator, options, tuple(dying)))
    constants = {}
    for tensor in model.tensors:
        if tensor.is_constant:
            value = torch.from_numpy(model.constant(tensor).copy())
            constants[tensor.index] = value.float() if value.is_floating_point() else value
    return Network(model, tuple(steps), constants)


def _require_known(unknown: set[str]) -> None:
    if unknown:
        raise StageError(
            "equalisation, rounding, bias correction of layers and fine-tuning do not know "
            f"{', '.join(sorted(unknown))}",
            hint="set quantize.equalize: false, quantize.rounding: nearest and "
            "quantize.correct_bias: none or head",
            where="quantize",
        )


def _reshaped(model: TfliteModel, operator: Operator, options: Any) -> Sequence[int]:
    """The shape that a RESHAPE gives, without -1, for the file's own batch.

    Raises:
        StageError: it is computed while the model runs.
    """
    given = options.newShape if options is not None else None
    if len(operator.inputs) > 1:
        held = model.tensors[operator.inputs[1]]
        if not held.is_constant:
            _require_known({"RESHAPE to a shape that is computed"})
        given = model.constant(held).reshape(-1)
    elif given is None:
        given = model.tensors[operator.outputs[0]].shape
    wanted = [int(n) for n in given]
    if -1 in wanted:
        count = math.prod(model.tensors[operator.inputs[0]].shape)
        wanted[wanted.index(-1)] = count // -math.prod(wanted)
    return wanted
