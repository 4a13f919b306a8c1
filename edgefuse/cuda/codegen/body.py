"""One kernel's text while it is written: arguments, loads, steps, the store.

Arguments are named ``a0``, ``a1`` ... in the order in which the launch names its tensors, so that
equal kernels of different layers give equal text. All sizes are numbers in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from edgefuse.cuda.codegen.axes import Axis, address, broadcast_strides, contiguous
from edgefuse.cuda.codegen.machine import Machine
from edgefuse.cuda.codegen.steps import expression
from edgefuse.cuda.program import Launch, Program, Tensor
from edgefuse.cuda.steps import FROM_INTEGERS, KINDS, TO_INTEGERS, Step
from edgefuse.cuda.storage import ITEM_BYTES, Dtype
from edgefuse.errors import StageError

#: Triton's name of a dtype, and the one of its pointer.
TRITON: dict[Dtype, tuple[str, str]] = {
    "float32": ("tl.float32", "*fp32"),
    "float16": ("tl.float16", "*fp16"),
    "bfloat16": ("tl.bfloat16", "*bf16"),
    "int8": ("tl.int8", "*i8"),
    "int32": ("tl.int32", "*i32"),
}
INTEGERS = ("int8", "int32")


@dataclass(frozen=True)
class Value:
    """A value in the text."""

    name: str
    integer: bool


@dataclass
class Body:
    """Text of a kernel in the making.

    Attributes:
        lines: without the indentation of the function.
        programs: instances to launch.
        stages: how deep loads of a loop are pipelined.
        dot: whether it holds a matrix product.
    """

    program: Program
    launch: Launch
    machine: Machine
    lines: list[str] = field(default_factory=list)
    programs: int = 1
    warps: int = 4
    stages: int = 3
    dot: bool = False
    indent: int = 0

    def __post_init__(self) -> None:
        self.arguments = tuple(dict.fromkeys((*self.launch.reads, self.launch.output)))

    @property
    def output(self) -> Tensor:
        return self.program.tensor(self.launch.output)

    @property
    def item_bytes(self) -> int:
        """Of an element of the first input."""
        return ITEM_BYTES[self.tensor(self.launch.inputs[0]).dtype]

    def tensor(self, name: str) -> Tensor:
        return self.program.tensor(name)

    def argument(self, name: str) -> str:
        return f"a{self.arguments.index(name)}"

    def say(self, *lines: str) -> None:
        self.lines.extend("    " * self.indent + line for line in lines)

    def load(self, name: str, offset: str, mask: str = "", other: str = "0") -> str:
        """Text that reads elements as they are held."""
        pointer = self.argument(name) + (f" + {offset}" if offset else "")
        guard = f", mask={mask}, other={other}" if mask else ""
        return f"tl.load({pointer}{guard})"

    def computed(self, name: str, text: str) -> Value:
        """Loaded text as kernels compute with it: float32, or int32 of integers."""
        dtype = self.tensor(name).dtype
        if dtype in INTEGERS:
            return Value(f"{text}.to(tl.int32)" if dtype == "int8" else text, True)
        return Value(text if dtype == "float32" else f"{text}.to(tl.float32)", False)

    def operand(self, name: str, axes: Sequence[Axis]) -> Value:
        """An operand of a step, read where the tile lies."""
        space = [extent for axis in axes for extent in axis.extents]
        offset, mask = address(axes, broadcast_strides(self.tensor(name).shape, space))
        return self.computed(name, self.load(name, offset, mask))

    def steps(
        self,
        steps: Sequence[Step],
        accumulator: Value,
        axes: Sequence[Axis],
        prefix: str,
        reading: Callable[[int], Value] | None = None,
    ) -> Value:
        """Write steps; gives the last one's value.

        Args:
            axes: of the space that named operands broadcast to.
            prefix: of the names of values.
            reading: the value of ``$i``.
        """
        values: list[Value] = []
        named: dict[str, Value] = {}
        for place, step in enumerate(steps):
            given: list[Value] = []
            for operand in step.operands:
                if operand == "acc":
                    value = accumulator
                elif operand[0] == "%":
                    value = values[int(operand[1:])]
                elif operand in named:
                    value = named[operand]
                else:
                    if operand[0] == "$":
                        assert reading is not None
                        read = reading(int(operand[1:]))
                    else:
                        read = self.operand(operand, axes)
                    value = named[operand] = Value(f"{prefix}n{len(named)}", read.integer)
                    self.say(f"{value.name} = {read.name}")
                given.append(value)
            integer = self._integer(place, step, given)
            text = expression(step, [value.name for value in given], integer)
            values.append(Value(f"{prefix}{place}", integer or step.kind in TO_INTEGERS))
            self.say(f"{values[-1].name} = {text}")
        return values[-1] if values else accumulator

    def _integer(self, place: int, step: Step, given: Sequence[Value]) -> bool:
        """Whether the step computes in integers alone.

        Raises:
            StageError: it mixes them with numbers.
        """
        whole = [value.integer for value in given]
        pure = KINDS[step.kind].integers and all(whole)
        if not (whole[0] if step.kind in FROM_INTEGERS else pure) and any(whole):
            raise StageError(
                f"step {place} ({step.kind}) mixes integers and numbers",
                hint="a dequantize or requantize step has to come between",
                where=self.launch.place,
            )
        return pure

    def finish(
        self,
        accumulator: Value,
        axes: Sequence[Axis],
        reading: Callable[[int], Value] | None = None,
    ) -> None:
        """The epilogue and the store; ``axes`` run over the space of the epilogue."""
        value = self.steps(self.launch.epilogue, accumulator, axes, "e", reading)
        self.store(value, axes)

    def store(self, value: Value, axes: Sequence[Axis]) -> None:
        space = [extent for axis in axes for extent in axis.extents]
        offset, _ = address(axes, contiguous(space))
        masks = " & ".join(axis.spread_mask for axis in axes if axis.mask)
        guard = f", mask={masks}" if masks else ""
        # An axis of one element gives no offset, and yet the tile spreads along it.
        below = prod(space)
        for axis in axes:
            below //= prod(axis.extents)
            if axis.suffix and prod(axis.extents) == 1:
                offset = f"{axis.name}{axis.suffix} * {below}" + (f" + {offset}" if offset else "")
        pointer = self.argument(self.launch.output) + (f" + {offset}" if offset else "")
        self.say(f"tl.store({pointer}, {self.cast(value, self.output.dtype)}{guard})")

    def cast(self, value: Value, dtype: Dtype) -> str:
        """A value rounded to what is stored."""
        if value.integer != (dtype in INTEGERS):
            raise StageError(
                f"{'integers' if value.integer else 'numbers'} cannot be stored as {dtype}",
                hint="a quantize or dequantize step has to come last",
                where=self.launch.place,
            )
        if dtype in ("float32", "int32"):
            return value.name
        nearest = ', fp_downcast_rounding="rtne"' if dtype == "bfloat16" else ""
        return f"({value.name}).to({TRITON[dtype][0]}{nearest})"

    def axis(self, name: str, tile: str, size: int, extents: tuple[int, ...], suffix: str) -> Axis:
        """An index variable: the ``tile``-th piece of ``size`` of the flattened extents."""
        extent = prod(extents)
        start = f"{tile} * {size} + " if extent > size else ""
        self.say(f"{name} = {start}tl.arange(0, {size})")
        return Axis(name, extents, suffix, f"{name} < {extent}" if extent % size else "")

    def cut(self, rows: int, height: int, columns: int, width: int) -> None:
        """Programs of a tile each, columns first; names the tile's place ``tr`` and ``tc``."""
        across = ceil(columns / width)
        self.programs = ceil(rows / height) * across
        self.say("pid = tl.program_id(0)", f"tr = pid // {across}", f"tc = pid % {across}")

    def product(self, left: str, right: str, dtype: Dtype, accumulator: str = "acc") -> str:
        """Text of ``accumulator + left @ right``, exact enough for the dtype of both."""
        self.dot = True
        if dtype == "int8":
            return f"tl.dot({left}, {right}, acc={accumulator}, out_dtype=tl.int32)"
        if dtype == "bfloat16" and self.machine.interpreted:
            left, right = f"({left}).to(tl.float32)", f"({right}).to(tl.float32)"
        precise = ', input_precision="tf32x3"' if dtype == "float32" else ""
        return f"tl.dot({left}, {right}, acc={accumulator}{precise})"

    def zeros(self, height: int, width: int, integer: bool) -> Value:
        kind = "tl.int32" if integer else "tl.float32"
        self.say(f"acc = tl.zeros(({height}, {width}), dtype={kind})")
        return Value("acc", integer)
