"""What a kernel costs on a machine: launches, bytes moved, FLOPs, and the time they predict.

Problem: whether fusing two operators helps, and whether fusing can help a model at all, depends on
the machine and the shapes. Model: a kernel reads what it takes from outside itself once, writes
what others read, and computes::

    time = launches * launch_s + max(bytes / bytes_per_s, flops / flops_per_s)

FLOPs are those of :mod:`edgefuse.graph.flops`. Dense convolutions and matrix products run at
``flops_per_s``, everything else (depthwise convolutions too) at ``vector_flops_per_s``, which on a
GPU is that of the plain cores. Reads of one tensor by one kernel count once: repeats hit the cache.
A slice or gather reads what it hands out.

Views (Reshape, Flatten, Squeeze, Unsqueeze, Identity) cost nothing, nor does what is computed from
constants and shapes alone, once, when a model is loaded. Operators whose FLOPs are not known cost
their bytes and are named in :attr:`Cost.unknown`.

Scope: graphs with static shapes, their groups spelt out by ``spelt_out`` of
:mod:`edgefuse.graph.shapes`. Left alone: caches between kernels, overlap of kernels, halos.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.errors import StageError
from edgefuse.graph.flops import SHAPE_ONLY, VIEWS, elements, flops, is_dense, is_operator
from edgefuse.graph.values import FLOATS, describe, is_constant

if TYPE_CHECKING:
    import onnx_ir as ir

NO_BALANCE = "the target has no balance"
KERNEL_KEY = "edgefuse.kernel"
_PARTIAL = frozenset({"Slice", "Gather", "GatherElements", "GatherND"})


@dataclass(frozen=True)
class Balance:
    """What a machine can do.

    Attributes:
        launch_s: seconds to start one kernel after another.
        bytes_per_s: to and from memory.
        flops_per_s: of dense convolutions and matrix products.
        vector_flops_per_s: of everything else; None: the same.
        parallel_tiles: tiles of work it runs at once: cores, or multiprocessors of a GPU.
    """

    launch_s: float
    bytes_per_s: float
    flops_per_s: float
    vector_flops_per_s: float | None = None
    parallel_tiles: int = 1

    def __post_init__(self) -> None:
        rates = (self.bytes_per_s, self.flops_per_s, self.vector_flops_per_s or 1.0)
        if self.launch_s < 0 or min(rates) <= 0 or self.parallel_tiles < 1:
            raise ValueError(f"not a machine: {self}")

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity at which computing takes as long as moving."""
        return self.flops_per_s / self.bytes_per_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Cost:
    """What one kernel costs, or the sum over several.

    Attributes:
        matrix_flops: of dense convolutions and matrix products.
        vector_flops: of everything else.
        unknown: operators whose FLOPs are not known and not counted, ``OpType 'name'``.
    """

    launches: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    matrix_flops: int = 0
    vector_flops: int = 0
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.launches + other.launches,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.matrix_flops + other.matrix_flops,
            self.vector_flops + other.vector_flops,
            self.unknown + other.unknown,
        )

    @property
    def flops(self) -> int:
        return self.matrix_flops + self.vector_flops

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs a byte moved; infinite where nothing is moved and something computed."""
        if self.bytes_moved:
            return self.flops / self.bytes_moved
        return inf if self.flops else 0.0

    def memory_s(self, balance: Balance) -> float:
        return self.bytes_moved / balance.bytes_per_s

    def compute_s(self, balance: Balance) -> float:
        vector = balance.vector_flops_per_s or balance.flops_per_s
        return self.matrix_flops / balance.flops_per_s + self.vector_flops / vector

    def time_s(self, balance: Balance, share: float = 1.0) -> float:
        """Predicted time of one kernel.

        Args:
            share: of the machine that the kernel keeps busy, 0 to 1.
        """
        work = max(self.memory_s(balance), self.compute_s(balance))
        return self.launches * balance.launch_s + work / share

    def is_compute_bound(self, balance: Balance) -> bool:
        """Whether computing takes longer than moving the bytes."""
        return self.compute_s(balance) > self.memory_s(balance)

    def bound(self, balance: Balance) -> Literal["launch", "memory", "compute"]:
        """Which of the three takes longest."""
        work = max(self.memory_s(balance), self.compute_s(balance))
        if self.launches * balance.launch_s > work:
            return "launch"
        return "compute" if self.is_compute_bound(balance) else "memory"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "unknown": list(self.unknown)}


def total(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost())


def model_time_s(costs: Iterable[Cost], balance: Balance) -> float:
    """Predicted time of kernels that run one after the other, each alone on the whole machine."""
    return sum(cost.time_s(balance) for cost in costs)


def tensor_bytes(value: ir.Value, float_bytes: int | None = None) -> int:
    """Bytes of a tensor.

    Args:
        float_bytes: bytes of a floating-point element, where it is not the model's own.
    """
    if value.dtype is None or value.dtype.name in ("STRING", "UNDEFINED"):
        raise StageError(f"the type of {value.name!r} is unknown: it has no size in bytes")
    if float_bytes is not None and value.dtype.name in FLOATS:
        return elements(value) * float_bytes
    return -(-elements(value) * int(value.dtype.bitwidth) // 8)


def work(node: ir.Node) -> Cost:
    """FLOPs of one operator as matrix or vector work, without launch and bytes."""
    found = flops(node)
    if found is None:
        return Cost(unknown=(describe(node),))
    return Cost(matrix_flops=found) if is_dense(node) else Cost(vector_flops=found)


def kernels(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Operators by the fused group they belong to, in graph order; views and constants left out.

    Args:
        model: with its groups spelt out; an operator outside any group is one of its own.
    """
    early = load_time(model)
    found: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        if node in early or (node.op_type in VIEWS and node.domain == ""):
            continue
        found.setdefault(kernel_of(node), []).append(node)
    return found


def kernel_of(node: ir.Node) -> str:
    """Name of the fused group that an operator was spelt out of, else its own."""
    return str(node.metadata_props.get(KERNEL_KEY, node.name))


def load_time(model: ir.Model, *, static_shapes: bool = True) -> set[ir.Node]:
    """Nodes that depend on constants and static shapes only: a runtime computes them once.

    Args:
        static_shapes: whether the shape of a computed value counts as a constant.
    """
    early: set[ir.Node] = set()
    for node in model.graph:
        # The second input of CastLike only says a type.
        needed = node.inputs[:1] if is_operator(node, "CastLike") else node.inputs
        if (static_shapes and is_operator(node, *SHAPE_ONLY)) or all(
            v is None or is_constant(v) or v.producer() in early for v in needed
        ):
            early.add(node)
    return early


def kernel_cost(
    nodes: Sequence[ir.Node],
    *,
    float_bytes: int | None = None,
    inner: Collection[ir.Node] = (),
    times: Callable[[ir.Node], int] = lambda _: 1,
) -> Cost:
    """The cost of running these operators as one kernel.

    What one of them makes for another stays inside: it is neither written nor read.

    Args:
        float_bytes: as :func:`tensor_bytes`.
        inner: operators whose results are not written even if others read them, since those
            others compute them too.
        times: how often the kernel computes an operator.
    """
    inside = set(nodes)
    made = {value for node in nodes for value in node.outputs}
    found: dict[ir.Value, int] = {}
    for node in nodes:
        for value, size in _reads(node, float_bytes):
            if value not in made:
                found[value] = max(size, found.get(value, 0))
    written = sum(
        tensor_bytes(value, float_bytes)
        for value in made
        if value.producer() not in inner
        and (value.is_graph_output() or any(use.node not in inside for use in value.uses()))
    )
    cost = Cost(1, sum(found.values()), written)
    for node in nodes:
        one, count = work(node), times(node)
        cost += Cost(
            matrix_flops=one.matrix_flops * count,
            vector_flops=one.vector_flops * count,
            unknown=one.unknown,
        )
    return cost


def model_costs(model: ir.Model, float_bytes: int | None = None) -> dict[str, Cost]:
    """The cost of every kernel of a model whose groups are spelt out, by name, in graph order.

    Raises:
        StageError: a shape or type is not known.
    """
    return {
        name: kernel_cost(nodes, float_bytes=float_bytes) for name, nodes in kernels(model).items()
    }


def _reads(node: ir.Node, float_bytes: int | None) -> Iterator[tuple[ir.Value, int]]:
    """What a node reads, and how many bytes of it."""
    if is_operator(node, *SHAPE_ONLY):
        return
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        size = tensor_bytes(value, float_bytes)
        if index == 0 and is_operator(node, *_PARTIAL):
            size = min(size, tensor_bytes(node.outputs[0], float_bytes))
        yield value, size
