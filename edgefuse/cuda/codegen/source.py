"""A launch as the text of a Triton kernel: the door to one file a kernel.

All shapes are numbers in the text and every argument is a pointer to a multiple of 16 bytes, so
that the compiler proves alignment and leaves out masks: code for run-time shapes spills registers
and loads element by element. Equal launches of different layers have equal texts, so they are
compiled, and stored, once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from edgefuse.cuda.codegen import (
    attention,
    concat,
    conv,
    conv1x1,
    depthwise,
    depthwise_project,
    norm,
    pointwise,
    pool,
    reduce,
    softmax,
)
from edgefuse.cuda.codegen.body import TRITON, Body
from edgefuse.cuda.codegen.machine import Machine
from edgefuse.cuda.program import Launch, Program
from edgefuse.errors import StageError

#: Who writes each kernel of :data:`edgefuse.cuda.contract.KERNELS`.
WRITERS: Mapping[str, Callable[[Body], None]] = {
    "attention": attention.write,
    "concat": concat.write,
    "conv": conv.write,
    "conv1x1": conv1x1.write,
    "depthwise": depthwise.write,
    "depthwise_project": depthwise_project.write,
    "gemm": conv1x1.write,
    "norm": norm.write,
    "pointwise": pointwise.write,
    "pool": pool.write,
    "reduce": reduce.write,
    "softmax": softmax.write,
}
_HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


@dataclass(frozen=True)
class Source:
    """The Triton kernel of one launch.

    Attributes:
        kernel: of the launch.
        name: of the function, and of the symbol in a cubin.
        text: a whole Python module; defines the function of that name and nothing else.
        arguments: names of the program's tensors, a pointer each, in order.
        types: Triton's types of them.
        programs: instances to launch, along the first axis of the grid.
        warps: of an instance.
        stages: depth of the pipeline.
        exact: products and sums must not be contracted.
        dot: whether it holds a matrix product.
    """

    kernel: str
    name: str
    text: str
    arguments: tuple[str, ...]
    types: tuple[str, ...]
    programs: int
    warps: int
    stages: int
    exact: bool
    dot: bool

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that a compiler sees."""
        seen = (self.text, self.types, self.warps, self.stages, self.exact)
        return hashlib.sha256(repr(seen).encode()).hexdigest()

    def written(self, folder: Path) -> Path:
        """The text as a file; Triton reads a function's source from its file."""
        path = folder / f"{self.name}.py"
        if not path.is_file() or path.read_text("utf-8") != self.text:
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_text(self.text, "utf-8")
            part.replace(path)
        return path


def generate(program: Program, launch: Launch, machine: Machine) -> Source:
    """The kernel of a launch; the same text whenever it is asked for.

    Raises:
        StageError: the launch asks for what no code is generated for.
    """
    writer = WRITERS.get(launch.kernel)
    if writer is None:
        raise StageError(
            f"no code is generated for kernel {launch.kernel!r}",
            hint=f"there are {', '.join(WRITERS)}",
            where=launch.place,
        )
    body = Body(program, launch, machine)
    body.indent = 1
    writer(body)
    lines = "\n".join(body.lines) + "\n"
    names = ", ".join(f"a{place}" for place in range(len(body.arguments)))
    types = tuple(TRITON[program.tensor(name).dtype][1] for name in body.arguments)
    exact = program.precision == "int8"
    made = Source(
        kernel=launch.kernel,
        name="",
        text=lines,
        arguments=body.arguments,
        types=types,
        programs=body.programs,
        warps=body.warps,
        stages=body.stages,
        exact=exact,
        dot=body.dot,
    )
    name = f"{launch.kernel}_{made.digest[:16]}"
    return replace(made, name=name, text=f"{_HEAD}def {name}({names}):\n{lines}")
