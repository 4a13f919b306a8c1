"""Every kernel in Triton's interpreter against its NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest

from cuda.kernels.cases import FLOATS, INTEGERS
from cuda.kernels.single import Case, Kernel, case
from edgefuse.cuda.contract import KERNELS
from edgefuse.cuda.run_interp import Interpreter
from edgefuse.cuda.run_numpy import Runner
from edgefuse.cuda.steps import KINDS, Step
from edgefuse.cuda.storage import Array, Precision
from edgefuse.errors import DataError

#: Largest difference over the largest magnitude.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 2e-2}
#: Enough to see every kernel in the half precisions too.
HALF = tuple({kernel.name: kernel for kernel in FLOATS}.values())


def apart(made: Array, wanted: Array) -> float:
    """The largest difference over the largest magnitude; NaN counts as infinite."""
    difference = np.abs(made.astype(np.float64) - wanted)
    worst = float(np.max(difference)) / max(float(np.max(np.abs(wanted))), 1e-30)
    return worst if np.isfinite(worst) else float("inf")


def both(running: Interpreter, built: Case) -> tuple[Array, Array]:
    made = running.run(built.program, built.weights, built.inputs)
    return made["y"], Runner(built.program, built.weights)(built.inputs)["y"]


def named(kernel: Kernel) -> str:
    return f"{kernel.name}-{kernel.label}".replace(" ", "_")


def test_every_kernel_has_a_case() -> None:
    assert {kernel.name for kernel in FLOATS} == set(KERNELS)


@pytest.mark.parametrize("kernel", FLOATS, ids=named)
def test_fp32(kernel: Kernel, triton_interpreter: Interpreter) -> None:
    made, wanted = both(triton_interpreter, case(kernel, "fp32"))
    assert float(np.std(wanted)) > 0
    assert apart(made, wanted) <= TOLERANCE["fp32"]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("kernel", HALF, ids=named)
def test_half(kernel: Kernel, precision: Precision, triton_interpreter: Interpreter) -> None:
    made, wanted = both(triton_interpreter, case(kernel, precision))
    assert apart(made, wanted) <= TOLERANCE[precision]


@pytest.mark.parametrize("kernel", INTEGERS, ids=named)
def test_int8_is_exact(kernel: Kernel, triton_interpreter: Interpreter) -> None:
    made, wanted = both(triton_interpreter, case(kernel, "int8"))
    assert len(np.unique(wanted)) > 20, "saturated: the case says nothing"
    assert int(np.count_nonzero(made != wanted)) == 0


def steps_case(precision: Precision, steps: list[Step], reach: float = 1.0) -> Case:
    kernel = Kernel(
        "pointwise",
        {"x": (7, 33), "z": (7, 33)},
        (7, 33),
        attributes={"shape": (7, 33), "views": ((0, (33, 1)), (0, (33, 1)))},
        epilogue=steps,
        label=steps[-1].kind,
        output_dtype="float32",
    )
    built = case(kernel, precision)
    scaled = {name: (values * np.float32(reach)) for name, values in built.inputs.items()}
    return Case(built.program, built.weights, scaled)


CONSTANTS = {
    "clip": (-0.3, 0.4), "leaky_relu": (0.1,), "elu": (1.3,), "hard_sigmoid": (0.2, 0.5),
    "add_constant": (0.7,), "mul_constant": (-1.7,), "div_constant": (3.0,),
    "rsub_constant": (2.0,), "rdiv_constant": (2.0,), "pow_constant": (3.0,),
}  # fmt: skip
POSITIVE = ("log", "sqrt", "pow", "div", "rdiv_constant")
INTEGER_KINDS = ("requantize", "requantize_add", "dequantize", "quantize")


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in INTEGER_KINDS])
def test_every_step(kind: str, triton_interpreter: Interpreter) -> None:
    steps = []
    names = ["$0", "$1"]
    if kind in POSITIVE:  # Away from zero.
        for place in range(2):
            steps += [
                Step("abs", (names[place],)),
                Step("add_constant", (f"%{len(steps)}",), (0.5,)),
            ]
            names[place] = f"%{len(steps) - 1}"
    steps.append(Step(kind, tuple(names[: KINDS[kind].operands]), CONSTANTS.get(kind, ())))
    made, wanted = both(triton_interpreter, steps_case("fp32", steps, reach=4.0))
    assert float(np.std(wanted)) > 0
    assert apart(made, wanted) <= TOLERANCE["fp32"]


def test_a_wrong_weight_shows(triton_interpreter: Interpreter) -> None:
    built = case(FLOATS[0], "fp32")
    made = triton_interpreter.run(built.program, built.weights, built.inputs)["y"]
    damaged = {**built.inputs, "x": built.inputs["x"] * np.float32(1.01)}
    other = Runner(built.program, built.weights)(damaged)["y"]
    assert apart(made, other) > TOLERANCE["fp32"]


def test_an_input_of_another_shape_is_refused(triton_interpreter: Interpreter) -> None:
    built = case(FLOATS[0], "fp32")
    wrong = {**built.inputs, "x": built.inputs["x"][:1]}
    with pytest.raises(DataError, match="input 'x' has to be"):
        triton_interpreter.run(built.program, built.weights, wrong)
