"""From a recipe to what would run: stages in order, their keys, cached or not. No side effects."""

from __future__ import annotations

import difflib
import graphlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgefuse.data import SampleSet
from edgefuse.errors import RecipeError, UsageError
from edgefuse.keys import blobs_in, content, differences, key_of, section, static_parts, versions
from edgefuse.recipe import Blob, Recipe
from edgefuse.stage import STAGES, Stage
from edgefuse.store import Damaged, Store
from edgefuse.target import Target

Status = Literal["cached", "run", "depends"]


@dataclass(frozen=True)
class Job:
    """One recipe against one target, with the store and the folder its relative paths start at.

    Attributes:
        samples_of: the sample set of a role (calibration, evaluation, report), opened once.
        place: a dotted key of the recipe with its file:line; anything else unchanged.
        fingerprint: the digest of the machine and runtime that measurements depend on.
    """

    recipe: Recipe
    target: Target
    base: Path
    store: Store
    samples_of: Callable[[str], SampleSet]
    fingerprint: Callable[[], str]
    place: Callable[[str], str] = str

    def recipe_of(self, stage: Stage) -> Recipe:
        """The recipe as a stage sees it: a gate finds the thresholds of its target."""
        return judged_on(self.recipe, self.target.name) if stage.gate else self.recipe


@dataclass(frozen=True)
class Selection:
    """Which stages to run: up to ``until``, anew from ``start``, measuring anew.

    ``ungated`` leaves out every gate: for rebuilding what passed them before, never for a release.
    """

    until: str | None = None
    start: str | None = None
    measure: bool = False
    ungated: bool = False


@dataclass(frozen=True)
class Step:
    """A stage in a plan.

    Attributes:
        key: its cache key; None while it depends on a stage that is yet to run.
        status: ``cached``; ``run``; ``depends`` on what the stages before it will produce.
        why: the reason for not being cached.
        forced: whether a stored result is not to be used.
    """

    stage: Stage
    status: Status
    key: str | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    forced: bool = False


def judged_on(recipe: Recipe, target: str) -> Recipe:
    """The recipe with the gates that it has on a target."""
    return recipe.model_copy(update={"gates": recipe.gates.on(target)})


def stages_of(
    recipe: Recipe, selection: Selection = Selection(), target: Target | None = None
) -> list[Stage]:
    """The stages that apply to a recipe, in order, cut by the selection.

    Args:
        target: where the gates run; None: the recipe's, and every stage that some target needs.

    Raises:
        UsageError: an unknown stage name, or one that this recipe does not have.
    """
    judged = judged_on(recipe, target.name if target is not None else recipe.target)
    stages = {
        name: s
        for name, s in STAGES.all().items()
        if s.applies(judged if s.gate else recipe) and (target is None or s.serves(target))
    }
    graph = {name: {n for n in (*s.inputs, *s.after) if n in stages} for name, s in stages.items()}
    for option, name in (("--until", selection.until), ("--from", selection.start)):
        if name is not None and name not in stages:
            close = difflib.get_close_matches(name, stages, n=1)
            raise UsageError(
                f"{option} {name}: no such stage in this recipe",
                hint=(f"did you mean {close[0]}? " if close else "")
                + f"stages: {', '.join(ordered(graph))}",
            )
    wanted = set(stages) if selection.until is None else _ancestors(graph, selection.until)
    if selection.start is not None and selection.start not in wanted:
        raise UsageError(f"--from {selection.start} lies after --until {selection.until}")
    if selection.ungated:
        wanted = {name for name in wanted if not stages[name].gate}
    return [stages[name] for name in ordered(graph) if name in wanted]


def ordered(graph: Mapping[str, set[str]]) -> list[str]:
    """Names in the order their dependencies allow, ties by name."""
    sorter = graphlib.TopologicalSorter(graph)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order.extend(ready)
        sorter.done(*ready)
    return order


def _ancestors(graph: Mapping[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending.extend(graph[current])
    return found


def _forced(stages: Sequence[Stage], selection: Selection) -> set[str]:
    """Stages to run though cached: ``--from`` with all that follows it; measurements."""
    names = {s.name for s in stages}
    graph = {s.name: names & {*s.inputs, *s.after} for s in stages}
    return {
        s.name
        for s in stages
        if (selection.measure and s.measures)
        or (selection.start is not None and selection.start in _ancestors(graph, s.name))
    }


def parts_of(job: Job, stage: Stage, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Everything that can change a stage's result, given its inputs' SHA-256."""
    parts = static_parts(job.recipe_of(stage), stage, job.base)
    parts["inputs"] = dict(inputs)
    parts["samples"] = {
        role: job.samples_of(role).digest
        for role in stage.samples
        if section(job.recipe, f"data.{role}") is not None
    }
    if stage.samples:
        parts["tools"] |= versions(("numpy", "pillow"))
    fields = {name: getattr(job.target, name) for name in stage.target_fields}
    parts["target"] = content(fields, job.base)
    if stage.measures:
        parts["machine"] = job.fingerprint()
    return parts


def make_plan(job: Job, selection: Selection = Selection()) -> list[Step]:
    """What would run. Reads the recipe's files and the store; changes nothing.

    Raises:
        RecipeError, SourceError, DataError: a file that the recipe names cannot be used.
    """
    try:
        return _make_plan(job, selection)
    except RecipeError as error:
        error.where = job.place(error.where)
        raise


def _make_plan(job: Job, selection: Selection) -> list[Step]:
    stages = stages_of(job.recipe, selection, job.target)
    forced = _forced(stages, selection)
    known: dict[str, str] = {}
    steps: list[Step] = []
    for stage in stages:
        afar = stage.gate and job.target.device == "remote"
        anew = stage.name in forced or afar or not stage.cacheable(job.recipe)
        present = [n for n in stage.inputs if any(n == s.name for s in stages)]
        waiting = [n for n in present if n not in known]
        if waiting:
            why = f"on the result of {', '.join(waiting)}"
            steps.append(Step(stage, "depends", why=why, forced=anew))
            continue
        parts = parts_of(job, stage, {n: known[n] for n in present})
        key = key_of(parts)
        if anew:
            why = (
                "asked for"
                if stage.name in forced
                else "never cached: on a device"
                if afar
                else "never cached: its inputs are unknown"
            )
            steps.append(Step(stage, "run", key, parts, why, forced=True))
        else:
            try:
                known[stage.name] = job.store.entry(stage.name, key)["sha256"]
                steps.append(Step(stage, "cached", key, parts))
            except Damaged:
                steps.append(Step(stage, "run", key, parts, _first_change(job, stage, parts)))
    return steps


def needed_blobs(job: Job, steps: Sequence[Step]) -> list[Blob]:
    """What the stages that will run need downloaded, so that a missing network shows at once."""
    found: dict[str, Blob] = {}
    for step in steps:
        if step.status == "cached":
            continue
        for name in step.stage.sections:
            for blob in blobs_in(section(job.recipe, name)):
                found.setdefault(blob.sha256, blob)
        for role in step.stage.samples:
            if section(job.recipe, f"data.{role}") is not None:
                for blob in job.samples_of(role).blobs:
                    found.setdefault(blob.sha256, blob)
    return list(found.values())


def _first_change(job: Job, stage: Stage, parts: Mapping[str, Any]) -> str:
    if job.store.has(stage.name, key_of(parts)):
        return "its stored result is damaged"
    previous = job.store.latest(stage.name, job.recipe.name)
    if previous is None:
        return "never run"
    changed = [path for path, _, _ in differences(previous["parts"], parts)]
    return f"changed: {', '.join(changed[:3])}" if changed else "its stored result is gone"
