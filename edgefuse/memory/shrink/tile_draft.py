"""A tiled segment as a list of operators, before any byte is written.

Problem: hundreds of tilings are judged by their arena; writing each as a file would take minutes.
:func:`draft` lists the operators and tensors of one; :func:`as_model` makes them a
:class:`~edgefuse.tflite.read.TfliteModel` that the arena's planner reads.

For each tile, in rows: a slice of what is read from outside, the segment's operators on regions as
large as the tile needs, PADs where a window reaches past the border of the picture. A row of tiles
is joined when it is complete, the rows at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from edgefuse.memory.shrink.tile_segment import Segment, Step, cut, needed, read_by
from edgefuse.memory.shrink.windows import same_padding
from edgefuse.tflite.read import Operator, TfliteModel

Region = tuple[tuple[int, int], tuple[int, int]]
Kind = Literal["same", "slice", "pad", "join"]
CODES = {"slice": "STRIDED_SLICE", "pad": "PAD", "join": "CONCATENATION"}


@dataclass(frozen=True)
class Piece:
    """A tensor of the draft: its index, the tensor of the file that it is a part of, its extent."""

    index: int
    origin: int
    extent: tuple[int, int]


@dataclass(frozen=True)
class Planned:
    """One operator of the draft.

    Attributes:
        kind: ``same`` is the operator at ``place`` of the file, on other tensors.
        numbers: of a slice the region, of a PAD what is added to rows and columns, of a join the
            axis twice.
        padding: of a convolution, SAME or VALID; empty otherwise.
    """

    kind: Kind
    inputs: tuple[int, ...]
    output: int
    place: int = -1
    numbers: Region = ((0, 0), (0, 0))
    padding: str = ""


@dataclass
class Draft:
    """The tiled segment; ``pieces`` are numbered on from the file's tensors."""

    segment: Segment
    pieces: list[Piece] = field(default_factory=list)
    operators: list[Planned] = field(default_factory=list)


def draft(model: TfliteModel, segment: Segment, grid: tuple[int, int]) -> Draft:
    """The segment of ``model`` cut into ``grid`` rows and columns of tiles."""
    made = Draft(segment)
    shape = model.tensors[segment.result].shape
    rows = []
    for down in cut(shape[1], grid[0]):
        tiles = [_tile(model, made, (down, across)) for across in cut(shape[2], grid[1])]
        rows.append(_join(model, made, tiles, 2, last=grid[0] == 1))
    if grid[0] > 1:
        _join(model, made, rows, 1, last=True)
    return made


def _new(model: TfliteModel, made: Draft, origin: int, extent: tuple[int, int]) -> int:
    made.pieces.append(Piece(len(model.tensors) + len(made.pieces), origin, extent))
    return made.pieces[-1].index


def _extent(region: Region) -> tuple[int, int]:
    return region[0][1] - region[0][0], region[1][1] - region[1][0]


def _join(
    model: TfliteModel, made: Draft, parts: list[tuple[int, int, int]], axis: int, *, last: bool
) -> tuple[int, int, int]:
    """Parts (index, rows, columns) side by side; the last join makes the segment's result."""
    if len(parts) == 1 and not last:
        return parts[0]
    height = parts[0][1] if axis == 2 else sum(part[1] for part in parts)
    width = parts[0][2] if axis == 1 else sum(part[2] for part in parts)
    result = made.segment.result
    if not last:
        result = _new(model, made, result, (height, width))
    both = (axis, axis)
    inputs = tuple(part[0] for part in parts)
    made.operators.append(Planned("join", inputs, result, numbers=(both, both)))
    return result, height, width


def _tile(model: TfliteModel, made: Draft, wanted: Region) -> tuple[int, int, int]:
    """The operators of one tile; its index and extent."""
    segment = made.segment
    regions = tuple(needed(segment, axis, wanted[axis]) for axis in (0, 1))
    shape = model.tensors[segment.source].shape
    held: dict[int, tuple[int, Region]] = {
        segment.source: (segment.source, ((0, shape[1]), (0, shape[2])))
    }
    parts: dict[tuple[int, Region], int] = {}

    def part(index: int, region: Region) -> int:
        piece, have = held[index]
        if have == region:
            return piece
        if (index, region) not in parts:
            cut_out = _new(model, made, index, _extent(region))
            near = tuple((r[0] - h[0], r[1] - h[0]) for r, h in zip(region, have))
            numbers = (near[0], near[1])
            made.operators.append(Planned("slice", (piece,), cut_out, numbers=numbers))
            parts[index, region] = cut_out
        return parts[index, region]

    for step in segment.steps:
        region = (regions[0][step.output], regions[1][step.output])
        reads = [read_by(step, axis, region[axis]) for axis in (0, 1)]
        inside, outside = (reads[0][0], reads[1][0]), (reads[0][1], reads[1][1])
        given = [part(index, inside) for index in step.inputs]
        padding = ""
        if step.windows is not None:
            padding = _padding(step, inside, outside, region)
            if padding == "VALID" and outside != ((0, 0), (0, 0)):
                wide = tuple(e + sum(o) for e, o in zip(_extent(inside), outside))
                padded = _new(model, made, step.inputs[0], (wide[0], wide[1]))
                made.operators.append(Planned("pad", (given[0],), padded, numbers=outside))
                given = [padded]
        result = _new(model, made, step.output, _extent(region))
        held[step.output] = (result, region)
        made.operators.append(
            Planned("same", tuple(given), result, place=step.place, padding=padding)
        )
    return (part(segment.result, wanted), *_extent(wanted))


def _padding(step: Step, inside: Region, outside: Region, region: Region) -> str:
    """SAME where it pads just what lies outside, else VALID."""
    assert step.windows is not None
    for axis, window in enumerate(step.windows):
        size = inside[axis][1] - inside[axis][0]
        outputs = region[axis][1] - region[axis][0]
        fits = same_padding(size, window.kernel, window.stride) == outside[axis]
        if not fits or -(-size // window.stride) != outputs:
            return "VALID"
    return "SAME"


def piece_name(origin: str, piece: Piece) -> str:
    return f"{origin}_piece{piece.index}"


def as_model(model: TfliteModel, made: Draft) -> TfliteModel:
    """The file with the draft in the segment's place, as the arena's planner sees it."""
    tensors = list(model.tensors)
    for piece in made.pieces:
        origin = model.tensors[piece.origin]
        shape = (1, *piece.extent, origin.shape[3])
        nbytes = origin.nbytes // prod(origin.shape) * prod(shape)
        tensors.append(
            replace(
                origin,
                index=piece.index,
                name=piece_name(origin.name, piece),
                shape=shape,
                nbytes=nbytes,
            )
        )
    inner = [
        Operator(
            index=0,
            code=CODES.get(planned.kind) or model.operators[planned.place].code,
            inputs=_inputs(model, planned),
            outputs=(planned.output,),
        )
        for planned in made.operators
    ]
    before, after = model.operators[: made.segment.begin], model.operators[made.segment.end :]
    operators = (replace(operator, index=k) for k, operator in enumerate((*before, *inner, *after)))
    return replace(model, tensors=tuple(tensors), operators=tuple(operators))


def _inputs(model: TfliteModel, planned: Planned) -> tuple[int, ...]:
    """What an operator of the draft reads, the constants of the file's operator with it."""
    if planned.kind != "same":
        return planned.inputs
    moving = iter(planned.inputs)
    return tuple(
        i if i < 0 or model.tensors[i].is_constant else next(moving)
        for i in model.operators[planned.place].inputs
    )
