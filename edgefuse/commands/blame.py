"""``edgefuse blame``: which layer of the int8 model costs what, and what is wrong with it."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse import __version__
from edgefuse import console as consoles
from edgefuse.errors import RecipeError, UsageError
from edgefuse.fetch import Downloads
from edgefuse.job import make_job, output_folder
from edgefuse.log_file import logged
from edgefuse.plan import Job
from edgefuse.runner import Result, run_aside
from edgefuse.store import raise_disk_error, write_changed

if TYPE_CHECKING:
    from edgefuse.artifact import Artifact
    from edgefuse.console import Console
    from edgefuse.data import Sample, SampleSet
    from edgefuse.quant.blame.blame import Blame

LOG = "blame.log"
FILES = ("blame.json", "blame.html")


def blame_recipe(
    recipe: Path,
    *,
    int8_file: Path | None = None,
    samples: int = 32,
    settings: Sequence[str] = (),
    target: str | None = None,
    out: Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    command: str = "",
) -> tuple[dict[str, Any], Path]:
    """Make the recipe's float and int8 files where they are not cached, and blame every layer.

    Args:
        int8_file: somebody else's int8 file of the same model, blamed instead of the recipe's.
        samples: of data.evaluation, spread over the whole set.

    Returns:
        The document (schema 1: ``full``, ``layers``, ``moves``, ``left_float``, ``strangers``,
        ``warnings``; ``float_stage``: whose file is the reference), and the folder that holds it as
        blame.json and blame.html.

    Raises:
        RecipeError, UsageError: before anything is run.
        EdgefuseError: of the stage that could not make a file, or of a file that does not run.
        StoreError: the output folder cannot be written.
    """
    from edgefuse.tflite.intact import require_intact

    begun = time.monotonic()
    if int8_file is not None and not int8_file.is_file():
        raise UsageError(f"--int8 {int8_file}: there is no such file")
    job = make_job(recipe, settings, target)
    if int8_file is None and (held := job.recipe.quantize.format) in ("dynamic_range", "float16"):
        raise RecipeError(
            f"nothing to blame: the activations of format {held} stay float",
            where="quantize.format",
            hint="--set quantize.format=int8 blames the layers of an int8 file",
        )
    folder = _emptied(out if out is not None else output_folder(job, None) / "blame")
    gc.enable()
    console = consoles.choose(quiet=quiet, verbose=verbose)
    try:
        log = (folder / LOG).absolute()
        with logged(log, command), job.store.work_folder() as work:
            result = _made(job, int8_file is not None, work, console, log)
            float_stage = _reference(result, int8_file)
            reference = result.made[float_stage]
            if int8_file is not None:
                require_intact(int8_file, log)
            found = _blamed(job, reference, result.made, int8_file, samples, work, console)
            modules = _modules(result.made, int8_file)
    finally:
        console.close()
    document = {
        "schema": 1,
        "recipe": job.recipe.name,
        "int8_file": str(int8_file) if int8_file is not None else "",
        "float_stage": float_stage,
        "target": job.target.name,
        "edgefuse": __version__,
        "command": command,
        "seconds": time.monotonic() - begun,
        "warnings": result.warnings,
        **_figures(found, modules, job.recipe.model.batch),
    }
    _write(document, folder)
    return document, folder


def _emptied(folder: Path) -> Path:
    """The output folder, without the results of an earlier run."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file", hint="give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise_disk_error(error, folder)
    return folder


def _made(job: Job, given: bool, work: Path, console: Console, log: Path) -> Result:
    """The float and the int8 file, and where each node went; without the latter, modules have no
    names, which is a warning. A given int8 file needs no other."""
    tflite = job.recipe.model.source == "tflite"
    last = ("convert" if given else "quantize") if tflite else "trace"
    result = run_aside(job, last, work, console, log)
    needed = "convert" if given else "quantize"
    if result.error is not None:
        if needed not in result.made:
            raise result.error
        result.warnings.append(f"layers have no module names: {result.error.message}")
    return result


def _reference(result: Result, int8_file: Path | None) -> str:
    """The stage whose float file the int8 file was quantised from. In that of ``convert`` the
    channels of an equalised model have other scales, and every layer would look wrong."""
    if int8_file is not None:
        return "convert"
    evidence = result.made["quantize"].evidence
    if "fine_tuning" in evidence:
        result.warnings.append(
            "the weights were fine-tuned: what training changed counts as noise of the layers too"
        )
    return "equalize" if evidence.get("equalized") else "convert"


def _blamed(
    job: Job,
    float_model: Artifact,
    made: Mapping[str, Artifact],
    int8_file: Path | None,
    count: int,
    work: Path,
    console: Console,
) -> Blame:
    from edgefuse.data import batches
    from edgefuse.quant.blame.blame import blame
    from edgefuse.tflite.feeds import source_layouts, streamed

    recipe = job.recipe
    downloads = Downloads(job.store.root / "downloads", job.base, console.tell)
    chosen = _spread(job.samples_of("evaluation"), downloads, max(count, recipe.model.batch))
    feeds = (feed for feed, _ in batches(chosen, recipe.model.batch))
    scratch = work / "blame"
    scratch.mkdir()
    console.stage_started("blame", 1, 1, None)
    begun = time.monotonic()
    found = blame(
        float_model.path,
        int8_file or made["quantize"].path,
        streamed(float_model.signature, source_layouts(recipe), feeds),
        scratch,
        runtime=job.target.judging_runtime,
        kernels=job.target.judging_kernels,
        clipped_low=int8_file is None and recipe.quantize.head == "classes",
        progress=console.progress,
    )
    summary = f"{len(found.rows)} layers and inputs, {found.samples} samples"
    console.stage_ended("blame", "ran", time.monotonic() - begun, summary)
    return found


def _spread(samples: SampleSet, downloads: Downloads, count: int) -> Iterator[Sample]:
    """``count`` samples (or all), evenly spread: the first ones may be crops of one picture."""
    wanted = {number * samples.count // count for number in range(min(count, samples.count))}
    if count > samples.count:
        wanted = set(range(samples.count))
    for place, sample in enumerate(samples.samples(downloads)):
        if place in wanted:
            yield sample


def _modules(made: Mapping[str, Artifact], int8_file: Path | None) -> dict[str, list[str]]:
    """The torch modules (or ONNX nodes) of each operator of the blamed int8 file, by label."""
    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.trace import partners

    if "trace" not in made:
        return {}
    found: dict[str, list[str]] = {}
    for node in made["trace"].evidence["trace"]["nodes"]:
        for label in node["ends_in"]:
            name = str(node["module"] or node["node"])
            held = found.setdefault(str(label).partition("+")[0], [])
            if name not in held and not node["merged_into"]:
                held.append(name)
    if int8_file is None:
        return found
    source = read_model(made["convert"].path)
    ours, theirs = read_model(made["quantize"].path), read_model(int8_file)
    own = {old: ours.operators[new].label for old, new in partners(source, ours).items()}
    return {
        theirs.operators[new].label: found.get(own.get(old, ""), [])
        for old, new in partners(source, theirs).items()
    }


def _figures(found: Blame, modules: Mapping[str, list[str]], batch: int) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "samples": found.samples * batch,
        "classifier": found.classifier,
        "ranked_by": "noise_share_percent",
        "full": asdict(found.full),
        "layers": [
            {"rank": rank, "modules": modules.get(row.operator, []), **row.to_json()}
            for rank, row in enumerate(found.rows, 1)
        ],
        "moves": list(found.moves),
        "left_float": list(found.left_float),
        "strangers": list(found.strangers),
    }


def _write(document: dict[str, Any], folder: Path) -> None:
    from edgefuse.report.blame import render

    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_changed(folder / FILES[0], text.encode())
    write_changed(folder / FILES[1], render(document).encode())
