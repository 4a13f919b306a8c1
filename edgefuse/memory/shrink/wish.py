"""What a rewrite for memory may do, and what it did: the words between recipe, rewrites, report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgefuse.memory.shrink.judge import Runtime
from edgefuse.target import Target

Padding = Literal["auto", "keep", "wider_kernels", "turned"]
Kernels = Literal["builtin", "legacy", "xnnpack", "reference", "micro", "npu"]


def kernels_of(target: Target) -> Kernels:
    """What runs convolutions on a target."""
    if target.runtime == "tflite_micro":
        return "micro"
    if target.runtime in ("ethos_u", "edgetpu"):
        return "npu"
    if target.kernels == "reference":
        return "reference"
    if target.runtime == "tflite_runtime":
        return "legacy"
    return "xnnpack" if target.kernels == "default" else "builtin"


@dataclass(frozen=True)
class Wish:
    """What is asked for.

    Attributes:
        padding: what becomes of PADs in front of convolutions; ``auto`` chooses by ``kernels``.
        reverse_input: REVERSE_V2 turns a turned network's picture inside the file; without it
            whoever feeds the model turns the picture.
        arena_bytes: the goal; None takes what helps at no cost.
        arena: whose arena is judged.
        operators: what the target's runtime has; None for all.
        kernels: what runs the convolutions there; ``builtin`` are LiteRT's, ``legacy`` those of
            tflite-runtime, its predecessor.
        max_extra_multiply_adds: as a share of those of the file as given.
        order: whether operators may be put in another order.
        edges: whether edges of strided depthwise convolutions may be computed apart.
        tiles: rows and columns, by hand; with ``last``, the place of the last tiled operator
            in the file that is tiled, or with a goal.
    """

    padding: Padding = "auto"
    reverse_input: bool = True
    arena_bytes: int | None = None
    arena: Runtime = "tflite_micro"
    operators: frozenset[str] | None = None
    kernels: Kernels = "builtin"
    max_extra_multiply_adds: float = 0.15
    order: bool = True
    edges: bool = True
    tiles: tuple[int, int] | None = None
    last: int | None = None


@dataclass(frozen=True)
class Choice:
    """What was chosen, in the words of a :class:`Wish`: given as one for the same kernels, it makes
    the same file.

    Attributes:
        tiles: rows and columns; None without tiles.
        last: place of the last tiled operator in the file that was tiled.
    """

    padding: Padding = "keep"
    edges: bool = False
    tiles: tuple[int, int] | None = None
    last: int | None = None


KEPT = Choice()


@dataclass(frozen=True)
class Step:
    """One thing that was tried.

    Attributes:
        name: ``padding``, ``order``, ``tiles``, ``edges``.
        did: for people, one sentence.
        arena_bytes, multiply_adds, operators, file_bytes: behind it, if it had been kept.
        why_not: empty when it was kept.
    """

    name: str
    did: str
    arena_bytes_before: int
    arena_bytes: int
    multiply_adds_before: int
    multiply_adds: int
    operators_before: int
    operators: int
    kept: bool
    why_not: str = ""
    file_bytes_before: int = 0
    file_bytes: int = 0


@dataclass(frozen=True)
class Shrunk:
    """What was tried, in order, and what came of it.

    Attributes:
        goal: in bytes; None without one.
        bound_bytes: no plan of the result, in its order of operators, needs less.
        bytes_moved: what all operators read and write.
        file_bytes: tiles have operators of their own, which the file grows by.
        turned_inputs: names of inputs whose picture must be given turned by 180 degrees.
        turned_outputs: names of outputs that come out turned.
    """

    steps: tuple[Step, ...]
    arena: Runtime
    kernels: Kernels
    goal: int | None
    bound_bytes: int
    arena_bytes_before: int
    arena_bytes: int
    multiply_adds_before: int
    multiply_adds: int
    operators_before: int
    operators: int
    bytes_moved_before: int
    bytes_moved: int
    file_bytes_before: int = 0
    file_bytes: int = 0
    turned_inputs: tuple[str, ...] = ()
    turned_outputs: tuple[str, ...] = ()
    choice: Choice = KEPT

    @property
    def extra_share(self) -> float:
        """Multiply-adds more than before, as a share of those before."""
        return self.multiply_adds / max(self.multiply_adds_before, 1) - 1

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "extra_share": self.extra_share}
