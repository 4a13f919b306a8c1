"""Kernels of MobileNetV2 compiled for GPUs that are not here: what their machine code shows.

A few of its shapes; all of them, for five architectures, are in ``make bench-cuda``.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from cuda.kernels.cases import BIAS, INTEGERS, RELU6, WINDOW, window
from cuda.kernels.single import Kernel, case
from edgefuse.cuda.architecture import ARCHITECTURES, code_for
from edgefuse.cuda.codegen.machine import GPU, INTERPRETER
from edgefuse.cuda.codegen.source import Source, generate
from edgefuse.cuda.compile import Cubin, Facts, compiled, shortcomings
from edgefuse.cuda.steps import Step
from edgefuse.cuda.storage import Precision
from edgefuse.errors import StageError

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton not found: pip install -c constraints.txt .[cuda]"
)
MIDDLE = [Step("add", ("acc", "c")), RELU6]
KERNELS = (
    Kernel(
        "conv", {"x": (1, 3, 224, 224)}, (1, 112, 112, 32), {"w": (3, 3, 3, 32)},
        {**window((2, 2), (1, 1, 1, 1)), "layout": "NCHW"}, epilogue=[BIAS, RELU6],
        vectors={"b": (32,)}, label="stem",
    ),
    Kernel(
        "conv1x1", {"x": (1, 56, 56, 24)}, (1, 56, 56, 144), {"w": (24, 144)},
        epilogue=[BIAS, RELU6], vectors={"b": (144,)}, label="expansion",
    ),
    Kernel(
        "depthwise", {"x": (1, 28, 28, 192)}, (1, 28, 28, 192), {"w": (3, 3, 192)}, WINDOW,
        epilogue=[BIAS, RELU6], vectors={"b": (192,)}, label="depthwise",
    ),
    Kernel(
        "depthwise_project", {"x": (1, 14, 14, 384)}, (1, 14, 14, 64),
        {"d": (3, 3, 384), "w": (384, 64)}, WINDOW, inner=MIDDLE,
        epilogue=[BIAS, Step("add", ("%0", "r"))], vectors={"b": (64,), "c": (384,)},
        beside={"r": (1, 14, 14, 64)}, label="flagship",
    ),
    Kernel(
        "gemm", {"x": (1, 1280)}, (1, 1000), {"w": (1280, 1000)}, epilogue=[BIAS],
        vectors={"b": (1000,)}, label="classifier",
    ),
)  # fmt: skip


def source(kernel: Kernel, precision: Precision) -> Source:
    program = case(kernel, precision).program
    return generate(program, program.launches[0], GPU)


@needs_triton
@pytest.mark.parametrize("architecture", [87, 90])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.label)
def test_machine_code(kernel: Kernel, architecture: int, tmp_path: Path) -> None:
    made = source(kernel, "fp16")
    cubin = compiled(made, architecture, tmp_path)
    assert list(shortcomings(made, cubin)) == []
    facts = cubin.facts
    assert facts.spills == 0
    assert bool(facts.tensor_core) == made.dot == (kernel.name != "depthwise")
    assert facts.stores_128 == facts.stores
    # The stem gathers single pixels of a picture in NCHW; only its weights come in vectors.
    assert facts.loads_128 > 0 and (kernel.label == "stem" or facts.loads_128 > facts.loads / 8)


@needs_triton
def test_integers_use_tensor_cores(tmp_path: Path) -> None:
    made = source(INTEGERS[0], "int8")
    cubin = compiled(made, 87, tmp_path)
    assert cubin.facts.tensor_core == ("IMMA",)
    assert list(shortcomings(made, cubin)) == []


@needs_triton
def test_compiled_code_is_kept_and_damage_is_seen(tmp_path: Path) -> None:
    made = source(
        replace(KERNELS[4], output=(1, 8), weights={"w": (1280, 8)}, vectors={"b": (8,)}), "fp16"
    )
    first = compiled(made, 80, tmp_path)
    (code,) = tmp_path.glob("*.cubin")
    written = code.stat().st_mtime_ns
    assert compiled(made, 80, tmp_path) == first
    assert code.stat().st_mtime_ns == written
    code.write_bytes(b"damaged")
    assert compiled(made, 80, tmp_path).data == first.data, "the same code is made again"


def test_faults_of_code_are_told() -> None:
    made = source(KERNELS[1], "fp16")
    facts = Facts(200, 3, 200_000, (), 4, 0, 1, 0, 100)
    told = list(shortcomings(made, Cubin(made.name, 89, 512, facts, b"")))
    assert [text.split("for sm_89 ")[1].split(":")[0] for text in told] == [
        "spills registers",
        "needs 200 registers in 512 threads",
        "needs 200000 bytes of shared memory, there are 101376",
        "multiplies matrices without tensor cores",
    ]


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no code is made for sm_75"):
        compiled(source(KERNELS[1], "fp16"), 75, tmp_path)


@pytest.mark.parametrize(
    ("device", "code"), [(75, None), (80, 80), (86, 80), (87, 87), (89, 89), (90, 90), (120, None)]
)
def test_which_code_a_device_runs(device: int, code: int | None) -> None:
    assert code_for(device) == code
    assert code is None or code in ARCHITECTURES


def test_equal_launches_have_equal_texts() -> None:
    first, second = source(KERNELS[1], "fp16"), source(KERNELS[1], "fp16")
    assert first == second and first.digest == second.digest
    other = source(replace(KERNELS[1], epilogue=[BIAS]), "fp16")
    assert other.name != first.name
    program = case(KERNELS[1], "fp16").program
    assert generate(program, program.launches[0], INTERPRETER).text != first.text
