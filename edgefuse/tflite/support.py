"""What a board's runtime is known not to run, found in a file before it goes there.

A target's ``support`` section says it beforehand: the operators that its runtime has, whether float
tensors, int16 activations and dense layers with a weight scale for each output run. Left alone:
operator versions and shapes, which only the runtime itself or the vendor's compiler knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgefuse.target import Support
    from edgefuse.tflite.read import TfliteModel


def unsupported(model: TfliteModel, support: Support) -> list[str]:
    """One line for each operator that the target does not run, in the file's order, with why."""
    found = []
    floats = {op.index for op in model.float_operators()}
    for op in model.operators:
        held = [model.tensors[i] for i in (*op.inputs, *op.outputs) if i >= 0]
        if support.operators is not None and (op.custom_code or op.code) not in support.operators:
            found.append(f"{op.label}: the target has no such operator")
        elif not support.float_operators and op.index in floats:
            found.append(f"{op.label}: float")
        elif not support.int16_activations and any(
            t.dtype == "int16" and not t.is_constant for t in held
        ):
            found.append(f"{op.label}: int16 activations")
        elif (
            not support.per_channel_dense
            and op.code == "FULLY_CONNECTED"
            and len(model.tensors[op.inputs[1]].scales) > 1
        ):
            found.append(f"{op.label}: a weight scale for each output")
    return found
