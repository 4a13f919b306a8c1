"""``edgefuse memory``: what a model's arena is made of, and what would make it smaller."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse import console as consoles
from edgefuse.errors import EdgefuseError, GateFailed, StageError, UsageError
from edgefuse.job import make_job, output_folder
from edgefuse.log_file import logged
from edgefuse.plan import Job
from edgefuse.runner import run_aside
from edgefuse.store import Store, default_root, raise_disk_error, write_changed
from edgefuse.target import Target, load_target

if TYPE_CHECKING:
    from edgefuse.artifact import Artifact
    from edgefuse.console import Console
    from edgefuse.memory.files import FileArena, Runtime
    from edgefuse.memory.shrink.wish import Wish
    from edgefuse.tflite.read import TfliteModel

LOG = "memory.log"
PICTURE = "memory.svg"
TOGETHER = "as the recipe would"


@dataclass
class Found:
    """What is told: arenas with what they are arenas of, techniques, warnings.

    Attributes:
        batch: samples of one invoke.
        now: the place, among ``arenas``, of what would ship.
        drawn: arenas of techniques that helped, drawn below the others.
        reachable: the least that a technique reaches whose goal is out of reach, and its name.
        error: what kept the recipe from being followed to its end.
    """

    source: str
    batch: int
    now: int = 0
    arenas: list[tuple[str, FileArena]] = field(default_factory=list)
    techniques: list[dict[str, Any]] = field(default_factory=list)
    drawn: list[tuple[str, FileArena]] = field(default_factory=list)
    reachable: list[tuple[int, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: EdgefuseError | None = None


def memory(
    source: Path,
    *,
    memory_bytes: int | None = None,
    settings: Sequence[str] = (),
    target: str | None = None,
    svg: Path | None = None,
    quiet: bool = False,
) -> tuple[dict[str, Any], Path, EdgefuseError | None]:
    """Plan the arenas of a recipe's graphs and files (made where they are not cached), or of a
    .tflite or .onnx file, try each technique that shrinks one, and draw them.

    Args:
        memory_bytes: what there is; for the largest batch, and the goal of tiles.
        svg: where the picture is written; build/NAME/memory/memory.svg if absent.

    Returns:
        The document, the picture's place, and the error that kept the recipe from being followed
        to its end or that says that nothing fits; None when there is none. The document's keys
        (schema 1): ``source``, ``target``, ``batch``, ``now`` (the place in ``arenas`` of what
        would ship), ``arenas`` (``what``, and the keys of
        :func:`edgefuse.memory.files.from_json`), ``techniques`` (``name``, ``did``,
        ``applies``, ``why_not``, ``arena_bytes``, ``saved_bytes``,
        ``multiply_adds``, ``extra_multiply_adds``, ``extra_share``, ``file_bytes``,
        ``extra_file_bytes``; the last, with ``--memory``, is ``as the recipe would``: the search
        that the stage shrink makes for that goal), ``largest_batch`` (null
        without ``--memory``; ``memory_bytes``, ``batch``, ``arena_bytes``, ``least_bytes``,
        ``least_by``), ``warnings``, ``error``.

    Raises:
        UsageError: neither a recipe nor a model, or no place for a picture.
        EdgefuseError: of a stage that cannot do its work, or memory that cannot be planned.
    """
    gc.enable()
    suffix = source.suffix.lower()
    if suffix not in (".yaml", ".yml", ".onnx", ".tflite"):
        raise UsageError(
            f"{source} is neither a recipe (.yaml) nor a model (.onnx, .tflite)",
            hint="export the model to ONNX, or write a recipe: edgefuse init",
        )
    if not source.is_file():
        raise UsageError(f"there is no file {source}")
    is_recipe = suffix in (".yaml", ".yml")
    if settings and not is_recipe:
        raise UsageError("--set needs a recipe, not a model")
    if svg is not None:
        _check_place(svg)
    job = make_job(source, settings, target) if is_recipe else None
    board = job.target if job else load_target(target, [Path.cwd()]) if target else None
    picture = svg if svg is not None else _default_folder(source, job) / PICTURE
    store = Store(default_root()) if job is None else job.store
    console = consoles.choose(quiet=quiet, verbose=False)
    try:
        with store.work_folder() as work, logged(work / LOG, f"memory {source}"):
            if job is not None:
                found = _of_recipe(job, memory_bytes, work, console)
            elif suffix == ".onnx":
                found = _of_onnx(source, work, console)
            else:
                found = _of_tflite(source, board, memory_bytes, console)
    finally:
        console.close()
    largest = None if memory_bytes is None else _largest_batch(found, memory_bytes)
    error = found.error or (_too_little(found, largest) if largest else None)
    _draw(found, picture)
    document = {
        "schema": 1,
        "source": found.source,
        "target": board.name if board else None,
        "batch": found.batch,
        "now": found.now,
        "arenas": [{"what": what, **held.as_json()} for what, held in found.arenas],
        "techniques": found.techniques,
        "largest_batch": largest,
        "warnings": found.warnings,
        "error": None if error is None else error.message,
    }
    return document, picture, error


def _check_place(svg: Path) -> None:
    """Refuse to write the picture over a model, a device or a folder."""
    if svg.suffix.lower() != ".svg":
        raise UsageError(f"--svg {svg} is no name of an SVG picture", hint="let it end in .svg")
    if svg.exists() and not svg.is_file():
        raise UsageError(f"--svg {svg} is there, and no file", hint="give another place")


def _default_folder(source: Path, job: Job | None) -> Path:
    name = output_folder(job, None) if job is not None else Path("build") / source.stem
    return name / "memory"


def _of_recipe(job: Job, memory_bytes: int | None, work: Path, console: Console) -> Found:
    from edgefuse.memory.files import onnx_file_arena, tensor_modules
    from edgefuse.recipe.memory import Memory
    from edgefuse.stages.shrink import wish_of
    from edgefuse.tflite.read import read_model

    recipe = job.recipe
    found = Found(recipe.name, recipe.model.batch)
    made = _made(job, found, work, console)
    if recipe.model.tflite is None:
        for what, stage in (("unfused", "export"), ("fused", "fuse")):
            found.arenas.append((what, onnx_file_arena(made[stage].path)))
    found.now = len(found.arenas) - 1
    if "quantize" not in made:
        return found
    int8 = read_model(made["quantize"].path)
    nodes = made["trace"].evidence["trace"]["nodes"] if "trace" in made else ()
    modules = tensor_modules(int8, nodes)
    asked = recipe if recipe.memory else recipe.model_copy(update={"memory": Memory()})
    wish = wish_of(asked, job.target)
    _tell_both(found, recipe.quantize.format, int8, wish.arena, modules)
    _try_each(found, int8.data, wish, memory_bytes, modules, console)
    if "shrink" in made:
        _tell_both(found, "shrunk", read_model(made["shrink"].path), wish.arena, modules)
    return found


def _made(job: Job, found: Found, work: Path, console: Console) -> Mapping[str, Artifact]:
    """The recipe's artifacts; what fails behind the fused graph is told, and the rest shown."""
    tflite = job.recipe.model.tflite is not None
    last = "shrink" if job.recipe.memory is not None else "quantize" if tflite else "trace"
    result = run_aside(job, last, work, console, work / LOG)
    found.warnings += result.warnings
    if result.error is not None:
        if ("quantize" if tflite else "fuse") not in result.made:
            raise result.error
        found.error = result.error
    return result.made


def _of_onnx(path: Path, work: Path, console: Console) -> Found:
    from edgefuse.graph.fuse import SEED, fuse_file
    from edgefuse.graph.normalise import load_proto
    from edgefuse.graph.verify import seeded_feed
    from edgefuse.memory.files import onnx_file_arena

    unfused = onnx_file_arena(path)  # Before fusing: what cannot be planned ends here.
    fused, proto = work / "fused.onnx", load_proto(path)
    console.stage_started("fuse", 1, 1, None)
    begun = time.monotonic()
    fuse_file(path, fused, feeds=[seeded_feed(proto, seed=SEED)], progress=console.progress)
    console.stage_ended("fuse", "ran", time.monotonic() - begun, "")
    given = {tensor.name for tensor in proto.graph.initializer}
    shapes = [v.type.tensor_type.shape.dim for v in proto.graph.input if v.name not in given]
    batch = int(shapes[0][0].dim_value) if shapes and len(shapes[0]) else 1
    arenas = [("unfused", unfused), ("fused", onnx_file_arena(fused))]
    return Found(path.name, batch, 1, arenas)


def _of_tflite(
    path: Path, board: Target | None, memory_bytes: int | None, console: Console
) -> Found:
    from edgefuse.memory.shrink.wish import Wish, kernels_of
    from edgefuse.tflite.read import read_model

    model = read_model(path)
    shapes = [model.tensors[index].shape for index in model.inputs]
    found = Found(path.name, batch=shapes[0][0] if shapes and shapes[0] else 1)
    wish = Wish()
    if board is not None:
        operators = board.support.operators
        wish = Wish(
            arena=board.judging_arena,
            operators=None if operators is None else frozenset(operators),
            kernels=kernels_of(board),
        )
    _tell_both(found, "as it is", model, wish.arena, {})
    _try_each(found, model.data, wish, memory_bytes, {}, console)
    return found


def _tell_both(
    found: Found, what: str, model: TfliteModel, judge: Runtime, modules: Mapping[str, str]
) -> None:
    """The arena of a .tflite file under each runtime; that of ``judge`` is the one that counts."""
    from edgefuse.memory.files import RUNTIMES, tflite_arena

    for runtime in RUNTIMES:
        if runtime == judge:
            found.now = len(found.arenas)
        found.arenas.append((what, tflite_arena(model, runtime, modules)))


def _try_each(
    found: Found,
    data: bytes,
    wish: Wish,
    memory_bytes: int | None,
    modules: Mapping[str, str],
    console: Console,
) -> None:
    """Each technique by itself on the file: what it saves and costs, or why it does not apply.

    Tiles are for the memory given, else for half of today's arena or three quarters of it. For the
    memory given also all of them by the search that a recipe's goal makes.
    """
    from edgefuse.memory.files import tflite_arena
    from edgefuse.tflite.read import parse_model

    now = found.arenas[found.now][1].arena.arena_bytes
    goals = [now // 2, now * 3 // 4]
    if memory_bytes is not None and memory_bytes < now:
        goals = [memory_bytes]
    alone = replace(wish, arena_bytes=None, tiles=None, last=None, padding="keep")
    alone = replace(alone, order=False, edges=False)
    ways = {
        "padding, turned": [replace(alone, padding="turned")],
        "padding, wider kernels": [replace(alone, padding="wider_kernels")],
        "order": [replace(alone, order=True)],
        "tiles": [replace(alone, arena_bytes=max(goal, 1)) for goal in goals],
    }
    if memory_bytes is not None and memory_bytes < now:
        ways[TOGETHER] = [replace(wish, arena_bytes=memory_bytes)]
    drawn: dict[str, tuple[int, FileArena]] = {}
    for place, (name, wishes) in enumerate(ways.items(), 1):
        console.stage_started(name, place, len(ways), None)
        begun = time.monotonic()
        for way in wishes:
            made, row, least = _tried(name, data, way, now)
            if least is not None:
                found.reachable.append((least, name))
            if row["applies"]:
                break
        console.stage_ended(name, "ran", time.monotonic() - begun, row["did"] or row["why_not"])
        found.techniques.append(row)
        if made != data and row["saved_bytes"] > 0:
            held = tflite_arena(parse_model(made), wish.arena, modules)
            kind = name.partition(",")[0]
            if kind not in drawn or row["arena_bytes"] < drawn[kind][0]:
                drawn[kind] = (row["arena_bytes"], held)
    found.drawn = [(f"with {kind}", held) for kind, (_, held) in drawn.items()]


def _tried(name: str, data: bytes, way: Wish, now: int) -> tuple[bytes, dict[str, Any], int | None]:
    """The file made, what is told of it, and, of a goal out of reach, the least within reach."""
    from edgefuse.memory.shrink.out_of_reach import OutOfReach
    from edgefuse.memory.shrink.shrink import shrink

    row = {"name": name, "did": "", "applies": False, "why_not": "", "arena_bytes": now}
    row |= {"saved_bytes": 0, "multiply_adds": None, "extra_multiply_adds": 0, "extra_share": 0.0}
    row |= {"file_bytes": len(data), "extra_file_bytes": 0}
    try:
        made, done = shrink(data, way)
    except OutOfReach as error:
        return data, {**row, "why_not": error.message}, error.least_bytes
    except (GateFailed, StageError) as error:
        return data, {**row, "why_not": error.message}, None
    row["multiply_adds"] = done.multiply_adds_before
    steps = [step for step in done.steps if step.kept]
    if not steps:
        nothing = "no PAD stands before a convolution" if way.padding != "keep" else "nothing to do"
        why_not = done.steps[0].why_not if done.steps else nothing
        return data, {**row, "why_not": why_not}, None
    told = {
        **row,
        "did": "; ".join(step.did for step in steps),
        "applies": True,
        "arena_bytes": done.arena_bytes,
        "saved_bytes": done.arena_bytes_before - done.arena_bytes,
        "multiply_adds": done.multiply_adds,
        "extra_multiply_adds": done.multiply_adds - done.multiply_adds_before,
        "extra_share": done.extra_share,
        "file_bytes": done.file_bytes,
        "extra_file_bytes": done.file_bytes - done.file_bytes_before,
    }
    return made, told, None


def _largest_batch(found: Found, memory_bytes: int) -> dict[str, Any]:
    """The plan at batch B, with every size and address times b / B, is a plan at batch b."""
    now = found.arenas[found.now][1].arena
    reached = [(row["arena_bytes"], row["name"]) for row in found.techniques if row["applies"]]
    every = [(now.arena_bytes, ""), *reached, *found.reachable]
    least, by = min(every, key=lambda pair: pair[0])
    return {
        "memory_bytes": memory_bytes,
        "batch": memory_bytes * found.batch // max(now.arena_bytes, 1),
        "arena_bytes": now.arena_bytes,
        "least_bytes": least,
        "least_by": by,
    }


def _too_little(found: Found, largest: Mapping[str, Any]) -> GateFailed | None:
    """An error when neither the file nor any technique by itself keeps to the memory given."""
    if largest["batch"] >= 1 or largest["least_bytes"] <= largest["memory_bytes"]:
        return None
    arena = found.arenas[found.now][1].arena
    alive = ", ".join(
        f"{buffer.name} ({buffer.size_bytes:,})" for buffer in arena.alive_at(arena.peak_step)[:3]
    )
    by = f"; the least that a technique reaches is {largest['least_bytes']:,} bytes"
    by += f" ({largest['least_by']})"
    return GateFailed(
        f"{largest['memory_bytes']:,} bytes of memory hold no batch: "
        f"{arena.bound_bytes:,} bytes are alive at once at {arena.steps[arena.peak_step]}, most of "
        f"them {alive}{by if largest['least_by'] else ''}",
        hint=f"give --memory of at least {largest['least_bytes']} bytes, a smaller input, or a "
        "narrower net",
        where=found.source,
    )


def _draw(found: Found, path: Path) -> None:
    from edgefuse.memory.picture import Panel, picture

    owner = found.arenas[found.now][1].arena.owner
    shown = [
        (what, held)
        for what, held in found.arenas
        if held.arena.owner in (owner, found.arenas[0][1].arena.owner)
    ]
    panels = [Panel(what, held.arena, held.modules) for what, held in (*shown, *found.drawn)]
    text = picture(panels, title=f"{found.source}: memory over time")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_changed(path, text.encode())
    except OSError as error:
        raise_disk_error(error, path)
