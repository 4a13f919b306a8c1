"""A float .tflite as a torch program: what better rounding and fine-tuning work on.

The file's own graph, so that every tensor and every constant has the index that it has in the file
and in its int8 twin, whichever framework the model came from. Operands are looked up by tensor
index; constants are torch tensors, and may be replaced for a run.

    values[t] = f_operator(values[operands]),  then the fused activation

Left alone: control flow, variables and custom operators: they are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError

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
        from edgefuse.quant.operators import OPERATORS, activated

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


def load_network(model: TfliteModel) -> Network:
    """Read a float .tflite as a torch program.

    Raises:
        StageError: an operator that is not known here.
    """
    import torch
    from ai_edge_litert import schema_py_generated as schema

    from edgefuse.quant.operators import OPERATORS

    unknown = sorted(
        {op.custom_code or op.code for op in model.operators if op.code not in OPERATORS}
    )
    if unknown:
        raise StageError(
            f"rounding, bias correction of layers and fine-tuning do not know {', '.join(unknown)}",
            hint="set quantize.rounding: nearest and quantize.correct_bias: none or head",
            where=Path(model.where).name,
        )
    table = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model.data)).subgraphs[0]
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
        options = table.operators[operator.index].builtinOptions
        steps.append(Step(operator, options, tuple(dying)))
    constants = {}
    for tensor in model.tensors:
        if tensor.is_constant:
            value = torch.from_numpy(model.constant(tensor).copy())
            constants[tensor.index] = value.float() if value.is_floating_point() else value
    return Network(model, tuple(steps), constants)
