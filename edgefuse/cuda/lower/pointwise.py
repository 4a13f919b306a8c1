"""Pointwise ONNX operators as steps, and groups that have no others as launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from edgefuse.cuda.lower.build import Build, refuse
from edgefuse.cuda.lower.view import View, merged
from edgefuse.cuda.steps import Step
from edgefuse.graph.flops import extents
from edgefuse.graph.values import attribute, constant, module_path, read

if TYPE_CHECKING:
    import onnx_ir as ir

LARGEST = 3.4028234663852886e38
_UNARY: Mapping[str, str] = {
    "Relu": "relu", "HardSwish": "hard_swish", "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf",
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Abs": "abs", "Neg": "neg", "Softplus": "softplus",
    "Swish": "silu",
}  # fmt: skip
_BINARY: Mapping[str, str] = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Max": "max", "Min":
    "min", "Sum": "add",
}  # fmt: skip
# The step that a scalar constant at the left, or at the right, asks for.
_CONSTANT: Mapping[str, tuple[str, str]] = {
    "Add": ("add_constant", "add_constant"),
    "Sum": ("add_constant", "add_constant"),
    "Mul": ("mul_constant", "mul_constant"),
    "Sub": ("rsub_constant", "add_constant"),
    "Div": ("rdiv_constant", "div_constant"),
    "Pow": ("", "pow_constant"),
}
STEPPED = frozenset(
    {*_UNARY, *_BINARY, "Clip", "HardSigmoid", "LeakyRelu", "Elu", "Gelu", "Cast", "Reciprocal"}
)


@dataclass
class Chain:
    """The steps of a kernel, in the order of their nodes.

    Attributes:
        operand: how a value from outside is named in a step; None for a value that is not.
        known: the names of values from inside: ``acc``, ``%k``.
    """

    operand: Callable[[ir.Value], str]
    known: dict[ir.Value, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def add(self, node: ir.Node) -> None:
        """The steps of one node.

        Raises:
            StageError: an operator that has none.
        """
        kind, value = node.op_type, node.outputs[0]
        if node.domain not in ("", "ai.onnx") or kind not in STEPPED:
            refuse(node, "it is no pointwise operator that kernels compute")
        if kind == "Cast":
            self._cast(node)
            return
        given = [v for v in node.inputs if v is not None]
        if kind in _BINARY:
            if len(given) == 1:
                self.known[value] = self._name(given[0])
                return
            left = given[0]
            name = self._binary(node, left, given[1])
            for other in given[2:]:
                name = self._step(_BINARY[kind], (name, self._name(other)))
            self.known[value] = name
            return
        x = self._name(given[0])
        if kind in _UNARY:
            name = self._step(_UNARY[kind], (x,))
        elif kind == "Clip":
            low, high = self._bound(node, 1), self._bound(node, 2)
            limits = (-LARGEST if low is None else low, LARGEST if high is None else high)
            name = self._step("clip", (x,), limits)
        elif kind == "HardSigmoid":
            constants = (attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5))
            name = self._step("hard_sigmoid", (x,), constants)
        elif kind == "Gelu":
            exact = attribute(node, "approximate", "none") == "none"
            name = self._step("gelu" if exact else "gelu_tanh", (x,))
        elif kind == "Reciprocal":
            name = self._step("rdiv_constant", (x,), (1.0,))
        else:
            alpha = attribute(node, "alpha", 0.01 if kind == "LeakyRelu" else 1.0)
            name = self._step("leaky_relu" if kind == "LeakyRelu" else "elu", (x,), (alpha,))
        self.known[value] = name

    def _cast(self, node: ir.Node) -> None:
        source, result = node.inputs[0], node.outputs[0]
        kinds = ("FLOAT", "FLOAT16", "BFLOAT16")
        names = [v.dtype.name for v in (source, result) if v is not None and v.dtype is not None]
        if any(name not in kinds for name in names):
            refuse(node, f"it converts {' to '.join(names)}")
        assert source is not None
        self.known[result] = self._name(source)

    def _binary(self, node: ir.Node, left: ir.Value, right: ir.Value) -> str:
        numbers = [scalar(v) if v not in self.known else None for v in (left, right)]
        sides = _CONSTANT.get(node.op_type)
        if sides is not None:
            if numbers[1] is not None and sides[1]:
                number = -numbers[1] if node.op_type == "Sub" else numbers[1]
                return self._step(sides[1], (self._name(left),), (number,))
            if numbers[0] is not None and sides[0]:
                return self._step(sides[0], (self._name(right),), (numbers[0],))
        elif numbers[1] is not None or numbers[0] is not None:
            value = left if numbers[1] is not None else right
            number = float(numbers[0] or 0.0) if numbers[1] is None else numbers[1]
            bounds = (number, LARGEST) if node.op_type == "Max" else (-LARGEST, number)
            return self._step("clip", (self._name(value),), bounds)
        return self._step(_BINARY[node.op_type], (self._name(left), self._name(right)))

    def _bound(self, node: ir.Node, place: int) -> float | None:
        value = read(node, place)
        if value is None:
            given = attribute(node, ("", "min", "max")[place], None)
            return None if given is None else float(given)
        number = scalar(value)
        if number is None:
            refuse(node, f"its bound {value.name!r} is computed at run time")
        return max(-LARGEST, min(LARGEST, number))

    def _name(self, value: ir.Value) -> str:
        return self.known[value] if value in self.known else self.operand(value)

    def _step(self, kind: str, operands: tuple[str, ...], constants: tuple[float, ...] = ()) -> str:
        self.steps.append(Step(kind, operands, tuple(float(c) for c in constants)))
        return f"%{len(self.steps) - 1}"


def scalar(value: ir.Value) -> float | None:
    """The number of a constant with one element, else None."""
    array = constant(value)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def finished(steps: Sequence[Step], last: str) -> tuple[Step, ...]:
    """The steps such that the last one makes ``last``; what it does not need is left out."""
    if last == "acc":
        return ()
    needed, waiting = set[int](), [last]
    while waiting:
        name = waiting.pop()
        if name.startswith("%") and int(name[1:]) not in needed:
            needed.add(int(name[1:]))
            waiting += steps[int(name[1:])].operands
    order = sorted(needed)
    places = {old: new for new, old in enumerate(order)}
    assert order[-1] == int(last[1:])
    return tuple(
        Step(
            steps[k].kind,
            tuple(f"%{places[int(o[1:])]}" if o[0] == "%" else o for o in steps[k].operands),
            steps[k].constants,
        )
        for k in order
    )


def operand_name(
    build: Build, value: ir.Value, result: ir.Value, order: Sequence[int], node: ir.Node
) -> str:
    """The tensor that an epilogue reads for a value that broadcasts to a kernel's result.

    Args:
        order: the result's axes in memory order.
    """
    view = build.view(value)
    rank = len(extents(result))
    missing = rank - len(view.shape)
    padded = View(view.tensor, (1,) * missing + view.shape, (0,) * missing + view.strides,
                  view.offset)  # fmt: skip
    shape = [padded.shape[a] for a in order]
    while len(shape) > 1 and shape[0] == 1 and build.tensors[view.tensor].role == "weight":
        shape = shape[1:]
    if not build.is_whole(padded, order):
        padded = build.copy(padded, order, [node])
    return build.alias(padded.tensor, shape)


def lower_pointwise(build: Build, nodes: Sequence[ir.Node]) -> None:
    """One launch for operators that are all pointwise; the last one's result is handed out."""
    result = nodes[-1].outputs[0]
    inside = {v for node in nodes for v in node.outputs}
    outside = [
        v
        for v in dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
        if v not in inside and scalar(v) is None
    ]
    if not outside:
        refuse(nodes[-1], "all it reads are constants", hint="fold constants before")
    shape = extents(result)
    views = {v: build.view(v).broadcast(shape) for v in outside}
    largest = max(views.values(), key=lambda v: v.distinct)
    outside.sort(key=lambda v: -views[v].distinct)
    order = largest.memory_order()
    turned = [views[v].transposed(order) for v in outside]
    names = {v: f"${place}" for place, v in enumerate(outside)}
    names[outside[0]] = "acc"
    chain = Chain(operand=names.__getitem__)
    for node in nodes:
        chain.add(node)
    space, strides = merged([shape[a] for a in order], turned)
    output = build.output(result, order, module_path(nodes[-1]))
    build.launch(
        "pointwise",
        [view.tensor for view in turned],
        (),
        output,
        epilogue=finished(chain.steps, chain.known[result]),
        nodes=nodes,
        shape=space,
        views=tuple((v.offset, tuple(s)) for v, s in zip(turned, strides, strict=True)),
    )
    assert prod(space) == prod(shape)
