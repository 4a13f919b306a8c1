"""Which layers to raise to float together, so that a tensor's rounding vanishes.

Between two int8 layers lies an int8 tensor, so one layer in float between int8 neighbours only
saves the rounding of its weights: what it reads was rounded, what it writes will be. A tensor keeps
its float values when its maker *and* all its readers are float. So islands grow by tensors:

    next = argmax_T  share(T) / |needed(T) - raised|,   needed(T) = {maker of T} + readers of T

with the share of the output's noise that blame found for the maker of T. Layers are all that a
tensor still needs, so a growing island gets its neighbours cheaper than a new one far away. What
remains at the end are layers whose tensors can never be freed; they come one by one, by share.

Left alone: tensors at the model's boundary, and those with a maker or reader that may not be float.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgefuse.tflite.read import Operator, TfliteModel


def islands(
    model: TfliteModel, shares: Mapping[str, float], permitted: Collection[str]
) -> list[tuple[str, ...]]:
    """Groups of layers in the order of raising: each is what the next tensor still needs.

    Args:
        model: the float file.
        shares: of the output's noise, by a layer's output tensor, in percent.
        permitted: TFLite operators that may become float.

    Returns:
        The output tensors of the layers of each group, in the file's order; no layer twice.
    """
    needed = _needed(model, permitted)
    left = {i: shares.get(model.tensors[i].name, 0.0) for i in needed}
    raised: set[int] = set()
    found: list[tuple[str, ...]] = []

    def take(steps: Collection[int]) -> None:
        raised.update(steps)
        names = [model.tensors[model.operators[k].outputs[0]].name for k in sorted(steps)]
        found.append(tuple(names))

    while left:
        missing = {i: needed[i] - raised for i in left}
        free = [i for i in left if not missing[i] or left[i] <= 0]
        if free:
            for i in free:
                del left[i]
            continue
        best = max(left, key=lambda i: (left[i] / len(missing[i]), -i))
        take(missing[best])
    rest = [
        (shares.get(model.tensors[op.outputs[0]].name, 0.0), -k)
        for k, op in enumerate(model.operators)
        if k not in raised and op.code in permitted
    ]
    for share, place in sorted(rest, reverse=True):
        if share > 0:
            take({-place})
    return found


def _needed(model: TfliteModel, permitted: Collection[str]) -> dict[int, set[int]]:
    """For each tensor that can be freed: the places of its maker and of its readers."""
    boundary = {*model.inputs, *model.outputs}
    makers = {i: k for k, op in enumerate(model.operators) for i in op.outputs}
    readers: dict[int, set[int]] = {}
    for k, op in enumerate(model.operators):
        for i in op.inputs:
            readers.setdefault(i, set()).add(k)

    def may(operator: Operator) -> bool:
        return operator.code in permitted

    found = {}
    for i, maker in makers.items():
        steps = {maker} | readers.get(i, set())
        if i not in boundary and i in readers and all(may(model.operators[k]) for k in steps):
            found[i] = steps
    return found
