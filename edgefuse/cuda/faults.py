"""Whether a program holds together: every rule that a runner relies on, checked from the launches.

Everything is written once, before it is read; shapes follow from the kernels' contracts; views and
steps stay within what they name, indices fit 32 bits, and in the arena no two tensors that are
alive at once share bytes, but for a result over an operand that is read element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgefuse.cuda.contract import breaches, read_by_element
from edgefuse.cuda.program import ARENA_ALIGNMENT, Program, Tensor, indexable
from edgefuse.errors import StageError
from edgefuse.memory.arena import aligned


def faults(program: Program) -> Iterator[StageError]:
    """Everything that is wrong with a program, in order; each as the error that names it."""
    if len(program.by_name) != len(program.tensors):
        yield StageError(f"two tensors of program {program.name!r} share a name")
    for tensor in program.tensors:
        yield from _tensor_faults(program, tensor)
    for launch in program.launches:
        unknown = [n for n in (*launch.reads, launch.output) if n not in program.by_name]
        if unknown:
            yield StageError(f"tensor {unknown[0]!r} does not exist", where=launch.place)
            return
    yield from _arena_faults(program)
    written = {t.name for t in program.tensors if t.role in ("input", "weight")}
    for launch in program.launches:
        for name in launch.reads:
            if program.root(name).name not in written:
                yield StageError(
                    f"tensor {name!r} is read before it is written", where=launch.place
                )
        output = program.root(launch.output)
        if output.name in written:
            yield StageError(f"tensor {output.name!r} is written twice", where=launch.place)
        written.add(output.name)
        for text in breaches(program, launch):
            yield StageError(text, where=launch.place)
    for tensor in program.outputs:
        if program.root(tensor.name).name not in written:
            yield StageError(f"output {tensor.name!r} is never written")


def _tensor_faults(program: Program, tensor: Tensor) -> Iterator[StageError]:
    try:
        indexable(tensor.name, tensor.shape)
    except StageError as error:
        yield error
    if any(extent < 1 for extent in tensor.shape):
        yield StageError(f"tensor {tensor.name!r} {list(tensor.shape)} has no elements")
    if not tensor.alias_of:
        if tensor.role == "weight" and tensor.offset % ARENA_ALIGNMENT:
            yield StageError(
                f"weight {tensor.name!r} begins at byte {tensor.offset}, no multiple of "
                f"{ARENA_ALIGNMENT}"
            )
        if tensor.role == "weight" and tensor.offset + tensor.nbytes > program.weights_bytes:
            yield StageError(f"weight {tensor.name!r} reaches beyond the end of the weights")
        return
    whole = program.by_name.get(tensor.alias_of)
    same = whole is not None and (whole.elements, whole.dtype) == (tensor.elements, tensor.dtype)
    if whole is None or whole.alias_of or not same or whole.offset != tensor.offset:
        yield StageError(f"tensor {tensor.name!r} is no alias of {tensor.alias_of!r}")


def _arena_faults(program: Program) -> Iterator[StageError]:
    """The plan against the launches: lifetimes are worked out again, from the launches alone."""
    if len(program.arena.offsets) != len(program.arena.buffers):
        yield StageError("the arena has not one offset for each buffer")
        return
    side_by_side = sum(aligned(b.size_bytes, ARENA_ALIGNMENT) for b in program.arena.buffers)
    if program.arena.arena_bytes > side_by_side:
        yield StageError(
            f"the arena has {program.arena.arena_bytes} bytes, {side_by_side} would hold every "
            "buffer by itself"
        )
    placed = {
        name: (offset, buffer)
        for buffer, offset in zip(program.arena.buffers, program.arena.offsets, strict=True)
        for name in (buffer.tensors or (buffer.name,))
    }
    lives: dict[str, tuple[int, int]] = {t.name: (0, 0) for t in program.inputs}
    end = max(len(program.launches) - 1, 0)
    for step, launch in enumerate(program.launches):
        for name in (*launch.reads, launch.output):
            root = program.root(name) if name in program.by_name else None
            if root is not None and root.role != "weight":
                lives[root.name] = (lives.get(root.name, (step, step))[0], step)
    for tensor in program.outputs:
        root = program.root(tensor.name)
        lives[root.name] = (lives.get(root.name, (end, end))[0], end)
    for name, (first, last) in lives.items():
        tensor = program.by_name[name]
        if name not in placed:
            yield StageError(f"tensor {name!r} has no place in the arena")
            continue
        offset, buffer = placed[name]
        within = buffer.first <= first and last <= buffer.last
        if offset != tensor.offset or tensor.nbytes > buffer.size_bytes or not within:
            yield StageError(f"tensor {name!r} does not fit its buffer {buffer.name!r}")
        if tensor.offset % ARENA_ALIGNMENT:
            yield StageError(
                f"tensor {name!r} begins at byte {tensor.offset}, no multiple of {ARENA_ALIGNMENT}"
            )
    yield from _overlaps(program, lives)


def _overlaps(program: Program, lives: Mapping[str, tuple[int, int]]) -> Iterator[StageError]:
    """Tensors that are alive at once in the same bytes, but for a result over its own operand."""
    makers = {program.root(launch.output).name: launch for launch in program.launches}
    ordered = sorted(lives, key=lambda name: lives[name])
    for place, late in enumerate(ordered):
        b = program.by_name[late]
        for early in ordered[:place]:
            a = program.by_name[early]
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            if apart or lives[early][1] < lives[late][0] or late not in makers:
                continue
            over = {program.root(n).name for n in read_by_element(program.by_name, makers[late])}
            same = a.offset == b.offset and a.nbytes == b.nbytes
            if not (same and lives[early][1] == lives[late][0] and early in over):
                yield StageError(f"tensors {early!r} and {late!r} share bytes while both live")
