"""What a row's module hands to its worker: a model that is ready to run, and what runs in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Feed = Mapping[str, Array]


@dataclass(frozen=True)
class Prepared:
    """A loaded model.

    Attributes:
        bind: takes one sample and returns the invocation that is timed, its input already in
            the form that the tool takes.
        outputs: takes one sample and returns float outputs by name.
        operators: how many operators or kernels run in one invocation; None when not obtainable.
        fusions: what this tool fused, kind -> how often; None when not obtainable.
        versions: distribution -> version of what ran.
        note: what one must know to read the figures.
        device: the name of the GPU that it runs on; empty for the CPU.
    """

    bind: Callable[[Feed], Callable[[], object]]
    outputs: Callable[[Feed], dict[str, Array]]
    operators: int | None
    fusions: Mapping[str, int] | None
    versions: Mapping[str, str]
    note: str = ""
    device: str = ""


@dataclass(frozen=True)
class Unavailable:
    """The tool is installed, and something that it needs beside itself is not there."""

    reason: str


@dataclass(frozen=True)
class Request:
    """What a row's module is given; plain data, since it crosses a pipe.

    Attributes:
        variant: of the row.
        path: the model file; empty for a torch module.
        outputs: names of the model's outputs, in the source's order.
        layouts: of the inputs as the samples have them, by name.
        torch: the recipe's ``model.torch``, with its seed, base folder and weights file.
        fusions: what edgefuse had folded into the weights of this file, pass -> how often.
    """

    variant: str
    path: str = ""
    outputs: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    torch: Mapping[str, Any] = field(default_factory=dict)
    fusions: Mapping[str, int] = field(default_factory=dict)


def without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    """Only what was found, by kind, in the order of the names."""
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind]}
