"""Random small graphs out of everything that a pass may touch, from an integer.

Equal seeds give equal graphs. Values stay near 1 by construction: weights are scaled by their
fan-in, variances and divisors keep away from zero, nothing is rounded or compared. So a fused graph
must agree with the unfused one as closely as a pass promises, and any gap is a pass's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgefuse.graph.fuse import fuse_file, serialise
from edgefuse.graph.group import inline_groups
from edgefuse.graph.normalise import load_proto, prepare
from edgefuse.graph.verify import compare

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
TYPES = {"float32": 1, "float16": 10, "float64": 11}
Step = Callable[["Net", str], str]
ALLOWED = {"float32": 2e-5, "float16": 1e-2, "float64": 2e-5}
#: Steps that double graphs, which have no spatial axes, leave out.
NOT_DOUBLE = frozenset(("branch", "loop"))


@dataclass(frozen=True)
class RandomGraph:
    """A graph and samples for it.

    Attributes:
        allowed: largest error, relative to the largest |output|.
    """

    seed: int
    proto: onnx.ModelProto
    feeds: list[dict[str, Array]]
    allowed: float


def random_graph(seed: int, opset: int = 0, first: Sequence[Step] = ()) -> RandomGraph:
    """The graph of a seed.

    Args:
        opset: of the default operator set; drawn when 0.
        first: steps to begin with, in float32 on [N, C, H, W].
    """
    net = Net(seed, opset, image=bool(first))
    for step in first:
        net.x = step(net, net.x)
    net.grow()
    return RandomGraph(seed, net.model(), net.feeds(2), ALLOWED[net.dtype])


class Net:
    """Grows one graph, step by step, from its newest value."""

    def __init__(self, seed: int, opset: int = 0, image: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = int(self.pick(range(11, 22)))
        self.opset = opset or self.opset
        self.dtype = str(self.pick(["float32"] * 8 + ["float16", "float64"]))
        self.dtype = "float32" if image else self.dtype
        self.batch = int(self.pick([1, 1, 2, 3]))
        self.dynamic = self.chance(0.2)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[int, Shape]] = {}
        self.shapes: dict[str, Shape] = {}
        self.outputs: list[str] = []
        self.scope = ""
        self.count = 0
        self.weights: dict[Shape, str] = {}
        if self.dtype == "float64":
            rank = int(self.pick([2, 3]))
        else:
            rank = int(self.pick([2, 3, 3, 3, 4, 4, 4, 4, 4, 5]))
        rank = 4 if image else rank
        self.tokens = rank == 3 and (self.dtype == "float64" or self.chance(0.7))
        extents = [int(self.pick([4, 5, 6, 7])) for _ in range(rank - 2)]
        width = int(self.pick([4, 6, 8]))
        shape = (self.batch, *extents, width) if self.tokens else (self.batch, width, *extents)
        self.x = self.input("x", shape)

    # Draws.

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def pick(self, things: Any) -> Any:
        return list(things)[int(self.random.integers(len(things)))]

    # Values.

    def input(self, name: str, shape: Shape, kind: int = 0) -> str:
        self.inputs[name] = (kind or TYPES[self.dtype], shape)
        self.shapes[name] = shape
        return name

    def name(self, hint: str) -> str:
        self.count += 1
        return f"{self.scope}{hint}_{self.count}"

    def op(
        self,
        kind: str,
        *inputs: str,
        shape: Shape | None = None,
        outputs: int = 1,
        **attributes: Any,
    ) -> str:
        """A node; its first output has ``shape``, by default that of its first input."""
        name = self.name(kind.lower())
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name, **attributes))
        for each in names:
            self.shapes[each] = self.shapes[inputs[0]] if shape is None else shape
        return name

    def const(self, value: Any, dtype: str = "", hidden: bool = False) -> str:
        """A constant: an initializer, or now and then a Constant node or behind an Identity."""
        array = np.asarray(value, dtype or self.dtype)
        name = self.name("c")
        self.shapes[name] = array.shape
        tensor = numpy_helper.from_array(array, name)
        if hidden or self.chance(0.1):
            node = helper.make_node("Constant", [], [name], f"{name}_node", value=tensor)
            self.nodes.append(node)
        else:
            self.constants.append(tensor)
        if array.dtype == self.dtype and self.chance(0.05):
            return self.op("Identity", name)
        return name

    def ints(self, *values: int) -> str:
        name = self.name("i")
        array = np.array(values, np.int64)
        self.constants.append(numpy_helper.from_array(array, name))
        self.shapes[name] = array.shape
        return name

    def ints_scalar(self, value: int) -> str:
        name = self.ints(value)
        tensor = next(t for t in self.constants if t.name == name)
        del tensor.dims[:]
        return name

    def normal(self, *shape: int, fan_in: int = 1, share: bool = False) -> str:
        """A weight; with ``share`` maybe one that another node reads too."""
        if share and shape in self.weights and self.chance(0.3):
            return self.weights[shape]
        name = self.const(self.random.normal(size=shape) / np.sqrt(fan_in))
        if share and not self.scope:
            self.weights[shape] = name
        return name

    def away(self, *shape: int) -> Array:
        """Factors that neither vanish nor blow up: 0.5 to 1.5, of either sign."""
        signs = self.random.choice([-1.0, 1.0], shape)
        return np.asarray(self.random.uniform(0.5, 1.5, shape) * signs)

    def per_channel(self, x: str, value: Array | None = None) -> str:
        """A constant that broadcasts over x: a scalar, or along its channels."""
        rank = len(self.shapes[x])
        axis = rank - 1 if self.tokens else 1
        width = self.shapes[x][axis]
        tail = (1,) * (rank - 1 - axis)
        full = (1,) * axis
        shape = self.pick([(), (1,), (width, *tail), (*full, width, *tail), (width, *tail)])
        return self.const(self.away(*shape) if value is None else value)

    # Growing.

    def grow(self) -> None:
        self.x = self.op("Neg", self.x) if self.chance(0.2) else self.x
        for _ in range(int(self.random.integers(2, 9))):
            self.step()
        if self.chance(0.3):
            self.op("Tanh", self.x)  # dead
        if self.x in self.inputs:
            self.x = self.op("Tanh", self.x)
        self.outputs.append(self.x)

    def step(self) -> None:
        from graph import random_steps

        steps = random_steps.of_rank(len(self.shapes[self.x]), self.tokens)
        known = [s for s in steps if self.dtype != "float64" or s.__name__ not in NOT_DOUBLE]
        before = self.x
        self.x = self.pick(known)(self, self.x)
        inner = self.x not in self.inputs and self.x not in self.outputs
        if not self.scope and inner and self.chance(0.12):
            self.outputs.append(self.x)
        if not self.scope and self.shapes[before] == self.shapes[self.x] and self.chance(0.15):
            self.x = self.op(*self.pick([("Add", self.x, before), ("Add", before, self.x)]))

    # The model.

    def model(self) -> onnx.ModelProto:
        batch: Any = "N" if self.dynamic else self.batch
        infos = [
            helper.make_tensor_value_info(n, kind, (batch, *shape[1:]) if shape else shape)
            for n, (kind, shape) in self.inputs.items()
        ]
        free = [t for t in self.constants if t.data_type == TYPES[self.dtype] and t.dims]
        if free and self.chance(0.1):
            tensor = self.pick(free)
            infos.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        outputs = [
            helper.make_tensor_value_info(n, TYPES[self.dtype], (None,) * len(self.shapes[n]))
            for n in dict.fromkeys(self.outputs)
        ]
        graph = helper.make_graph(self.nodes, "net", infos, outputs, self.constants)
        version = int(self.pick([6, 7, 8, 9, 10]))
        imports = [helper.make_opsetid("", self.opset)]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=version)
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)

    def feeds(self, count: int) -> list[dict[str, Array]]:
        return [
            {
                name: self.random.normal(size=shape).astype(self.dtype)
                if kind == TYPES[self.dtype]
                else np.array(bool(index % 2))
                for name, (kind, shape) in self.inputs.items()
            }
            for index in range(count)
        ]


def fuse_and_compare(case: RandomGraph, folder: Path) -> dict[str, Any]:
    """Fuse a random graph and hold it against the unfused one; the evidence of its fusion.

    The fused graph agrees with the unfused one on every feed, the inlined one with the fused one
    bit for bit; no pass fires on the fused one (``fuse_file`` sees to that), and reading it back
    changes nothing.

    Raises:
        AssertionError, EdgefuseError: they do not.
    """
    source, fused, plain = (folder / f"{n}.onnx" for n in ("source", "fused", "plain"))
    onnx.save(case.proto, str(source))
    evidence = fuse_file(source, fused, feeds=case.feeds, max_relative_error=case.allowed)
    again = serialise(prepare(load_proto(fused))).SerializeToString(deterministic=True)
    assert again == fused.read_bytes()
    inline_groups(fused, plain)
    compare(fused, plain, case.feeds[:1], max_relative_error=0.0)
    names = [name for node in onnx.load(str(fused)).graph.node for name in node.output if name]
    assert len(set(names)) == len(names)
    return evidence


def volume(shape: Sequence[int]) -> int:
    return int(np.prod(shape))


BOOL = TensorProto.BOOL
