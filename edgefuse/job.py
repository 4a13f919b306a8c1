"""From command-line words to a job: recipe, target, store, and what keys need to know of data."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from edgefuse.data import SampleSet, open_samples, require_labels
from edgefuse.errors import RecipeError
from edgefuse.keys import version
from edgefuse.plan import Job
from edgefuse.recipe import Recipe, Samples
from edgefuse.store import Store, default_root
from edgefuse.target import Target, load_target
from edgefuse.yaml_file import read_yaml, validate, with_overrides

_DISTRIBUTIONS = {"litert": "ai-edge-litert", "tflite_runtime": "tflite-runtime"}


def make_job(
    path: Path,
    settings: Sequence[str] = (),
    target: str | None = None,
    base: Path | None = None,
) -> Job:
    """Read a recipe and its target.

    Args:
        base: where its relative paths start; None: beside the recipe.

    Raises:
        RecipeError: anything wrong in either, with file:line.
    """
    document = with_overrides(read_yaml(path), settings)
    recipe = validate(document, Recipe)
    base = (base if base is not None else path.parent).absolute()
    store = Store(default_root())
    try:
        board = load_target(target or recipe.target, [base])
    except RecipeError as error:
        if error.where:
            raise
        where = "--target" if target else document.where(("target",))
        raise RecipeError(error.message, hint=error.hint, where=where) from None
    if board.runtime == "cuda":
        _require_program(recipe, board, "--target" if target else document.where(("target",)))

    @functools.cache
    def samples_of(role: str) -> SampleSet:
        try:
            found = open_samples(
                getattr(recipe.data, role),
                preprocess=recipe.preprocess,
                inputs=recipe.model.inputs,
                base=base,
                memo=store.root / "memo.json" if store.root.is_dir() else None,
            )
        except RecipeError as error:
            if error.where in Samples.model_fields:
                error.where = f"data.{role}.{error.where}"
            raise
        accuracy, goal, qat = recipe.gates.accuracy, recipe.quantize.goal, recipe.quantize.qat
        if role == "report":
            require_labels(found, "data.report")
        elif role == "evaluation" and accuracy and accuracy.max_drop_points is not None:
            require_labels(found, "gates.accuracy.max_drop_points")
        elif role == "validation" and goal and goal.max_drop_points is not None:
            require_labels(found, "quantize.goal.max_drop_points")
        elif role == "training" and qat and qat.label_weight > 0:
            require_labels(found, "quantize.qat.label_weight")
        return found

    @functools.cache
    def fingerprint() -> str:
        from edgefuse.devices.measure.fingerprint import fingerprint as machine

        distribution = _DISTRIBUTIONS[board.judging_runtime]
        facts = machine(f"{distribution} {version(distribution)}")
        return str(facts["sha256"])

    def place(where: str) -> str:
        keys = tuple(where.split("."))
        is_key = ":" not in where and keys[0] in Recipe.model_fields
        return f"{document.where(keys)}: {where}" if is_key else where

    return Job(
        recipe,
        board,
        base,
        store,
        samples_of=samples_of,
        fingerprint=fingerprint,
        place=place,
    )


def _require_program(recipe: Recipe, board: Target, where: str) -> None:
    """Refuse a recipe of which no GPU program is made: the gates would judge another file."""
    if recipe.model.tflite is not None:
        raise RecipeError(
            f"target {board.name} runs the fused graph, and a .tflite source has none",
            hint="give model.onnx or model.torch, or a target that runs .tflite files",
            where=where,
        )
    if recipe.cuda is None:
        raise RecipeError(
            f"target {board.name} runs a GPU program, and the recipe has no section cuda",
            hint="add it: cuda: {precision: fp16}",
            where=where,
        )


def output_folder(job: Job, out: Path | None) -> Path:
    """``--out``, else ``build/<recipe>/`` in the working folder."""
    return out if out is not None else Path("build") / job.recipe.name
