"""``edgefuse memory --training``: a training step's peak and time, within budgets of the peak."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgefuse import console as consoles
from edgefuse.errors import EdgefuseError, GateFailed, RecipeError, UsageError
from edgefuse.job import make_job
from edgefuse.log_file import logged
from edgefuse.sizes import budget_of
from edgefuse.store import Store, default_root

if TYPE_CHECKING:
    from edgefuse.recipe import Recipe
    from edgefuse.stage import Context

LOG = "memory.log"
_ROUNDS = 3
_BATCH = 8
_BUDGETS = ("80%", "60%", "40%")


@dataclass(frozen=True)
class _Lent:
    """The part of a stage's context that building a module reads; its weights are random."""

    base: Path

    def warn(self, text: str) -> None:
        """Left unsaid: that the module was in training mode, which is what is wanted here."""


def training_memory(
    source: Path,
    *,
    budgets: Sequence[str] = (),
    settings: Sequence[str] = (),
    quiet: bool = False,
) -> tuple[dict[str, Any], EdgefuseError | None]:
    """Measure one training step of a recipe's module: eager, checkpointed, compiled, and planned.

    The module has random weights, on which neither bytes nor time depend, and is fed random
    numbers, ``quantize.qat.batch`` samples (8 without that section).

    Args:
        budgets: of the peak, as 40% of eager's or 300MiB; 80%, 60% and 40% without any.

    Returns:
        The document (schema 1: ``source``, ``batch``, ``rounds``, ``rows``: those of
        :class:`edgefuse.memory.remat.compare.Row`; ``error``), and an error when a
        budget cannot be kept.

    Raises:
        UsageError, RecipeError: no torch model, no budget, or no chain of blocks in the module.
    """
    gc.enable()
    wanted = [budget_of(text, "--budget") for text in (budgets or _BUDGETS)]
    if source.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(
            f"{source} has no torch model to train",
            hint="--training needs a recipe (.yaml) whose model.torch names the module",
        )
    job = make_job(source, settings)
    recipe = job.recipe
    if recipe.model.torch is None:
        raise RecipeError(
            f"recipe {recipe.name!r} has no torch model to train: its source is "
            f"{recipe.model.source}",
            where=job.place("model"),
            hint="--training needs a recipe whose model.torch names the module",
        )
    console = consoles.choose(quiet=quiet, verbose=False)
    batch = recipe.quantize.qat.batch if recipe.quantize.qat else _BATCH
    begun = time.monotonic()
    try:
        with Store(default_root()).work_folder() as work, logged(work / LOG, f"memory {source}"):
            console.stage_started("training", 1, 1, None)
            rows = _rows(recipe, _Lent(job.base), wanted, batch, console.progress)
            console.stage_ended("training", "ran", time.monotonic() - begun, f"{len(rows)} ways")
    finally:
        console.close()
    refused = [row for row in rows if row["refused"] and row["name"].startswith("edgefuse")]
    error = None
    if refused:
        error = GateFailed(
            f"{refused[0]['name']}: {refused[0]['refused']}",
            hint="give a larger budget, a smaller batch, or smaller blocks",
            where=recipe.name,
        )
    document = {
        "schema": 1,
        "source": recipe.name,
        "batch": batch,
        "rounds": _ROUNDS,
        "rows": rows,
        "error": None if error is None else error.message,
    }
    return document, error


def _rows(
    recipe: Recipe,
    lent: _Lent,
    budgets: Sequence[int | float],
    batch: int,
    progress: Callable[[int, int, str], None],
) -> list[dict[str, Any]]:
    from edgefuse.memory.remat import compare_step
    from edgefuse.memory.remat.tried import try_forward
    from edgefuse.sources import torch_callable

    assert recipe.model.torch is not None
    torch = torch_callable.import_torch()
    model = recipe.model.torch
    if model.weights != "callable":
        model = model.model_copy(update={"weights": "random"})
    module = torch_callable.load(model, recipe.seed, cast("Context", lent)).train()
    draw = torch.Generator().manual_seed(recipe.seed)
    inputs = tuple(
        torch.randn(batch, *given.shape[1:], generator=draw) for given in recipe.model.inputs
    )
    try_forward(module, inputs, model.callable)
    found = compare_step(module, inputs, budgets=budgets, rounds=_ROUNDS, progress=progress)
    return [row.to_json() for row in found]
