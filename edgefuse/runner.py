"""Run a plan: take each stage's result from the store or make it, publish it, gather a report.

Knows no stage by name. A gate's verdict other than ``pass`` is never stored; all gates are heard
before the run stops, and nothing that comes after them is made. The output folder holds only what
this run stands for: whatever is not taken from the store is withdrawn before anything runs.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from edgefuse import publish
from edgefuse.artifact import Artifact
from edgefuse.console import Console
from edgefuse.errors import (
    EdgefuseError,
    GateFailed,
    Inconclusive,
    RecipeError,
    StoreError,
    UsageError,
)
from edgefuse.fetch import Downloads
from edgefuse.keys import key_of, local_file
from edgefuse.plan import Job, Selection, Step, make_plan, needed_blobs, parts_of
from edgefuse.recipe import SAMPLE_ROLES, Blob, LocalFile
from edgefuse.stage import STAGES, Context, Stage, restricted
from edgefuse.store import Damaged, disk_error, is_disk_error
from edgefuse.verdict import stated

log = logging.getLogger("edgefuse")

# Of several gates' errors the one that is told: a failed tool, a failed gate, an undecided one.
_WEIGHT = {1: 1, 4: 2}


@dataclass
class Outcome:
    """What became of one stage: ``ran``, ``reused``, ``failed``, or ``blocked`` by another."""

    stage: Stage
    status: Literal["ran", "reused", "failed", "blocked"] = "blocked"
    artifact: Artifact | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    file: str | None = None


@dataclass
class Result:
    """A whole run: one outcome a stage, the warnings, and the error that ended it, if any."""

    outcomes: list[Outcome] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: EdgefuseError | None = None

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error else 0

    @property
    def made(self) -> dict[str, Artifact]:
        """The artifacts by stage, reused ones too."""
        return {o.stage.name: o.artifact for o in self.outcomes if o.artifact is not None}


def run_aside(job: Job, until: str, work: Path, console: Console, log: Path) -> Result:
    """Run a job up to a stage for its artifacts alone: what it publishes lies in ``work``."""
    published = work / "published"
    published.mkdir()
    downloads = Downloads(job.store.root / "downloads", job.base, console.tell)
    return Runner(job, Selection(until=until), published, console, downloads, log).run()


@dataclass
class Runner:
    """Runs a job into an output folder."""

    job: Job
    selection: Selection
    out: Path
    console: Console
    downloads: Downloads
    log_file: Path
    result: Result = field(default_factory=Result)

    def run(self) -> Result:
        """Run every step; failures are in the result, not raised.

        Raises:
            KeyboardInterrupt: Ctrl-C, after temporary files are gone.
        """
        try:
            self._run()
        except EdgefuseError as error:
            log.exception("run ended: %s", error.message)
            if isinstance(error, RecipeError):
                error.where = self.job.place(error.where)
            self.result.error = error
            # Bad input that no plan is made of says nothing of what lies there.
            if self.result.outcomes or error.exit_code != UsageError.exit_code:
                with contextlib.suppress(StoreError):
                    self._withdraw()
        finally:
            self.console.close()
        return self.result

    def warn(self, text: str) -> None:
        self.result.warnings.append(text)
        log.warning("%s", text)
        self.console.warn(text)

    def _run(self) -> None:
        steps = make_plan(self.job, self.selection)
        self.result.outcomes = [Outcome(step.stage) for step in steps]
        certain = _certain(steps)
        publish.withdraw_reproducer(self.out)
        if len(certain) < len(steps):
            publish.withdraw_report(self.out)
        self._withdraw(keep=certain)
        self.downloads.get_all(needed_blobs(self.job, steps))
        done: dict[str, Artifact] = {}
        failed: list[Outcome] = []
        errors: list[EdgefuseError] = []
        for index, (step, outcome) in enumerate(zip(steps, self.result.outcomes)):
            needs = {*step.stage.inputs, *step.stage.after} & {s.stage.name for s in steps}
            if not needs <= done.keys():
                continue
            try:
                self._perform(step, outcome, done, index + 1, len(steps))
            except EdgefuseError as error:
                if not step.stage.gate:
                    raise
                log.exception("%s: %s", step.stage.name, error.message)
                errors.append(error)
                continue
            if outcome.artifact is not None:
                done[step.stage.name] = outcome.artifact
            else:
                failed.append(outcome)
        self._withdraw()
        if failed:
            errors.append(_verdict_error(failed))
        if errors:
            raise min(errors, key=lambda error: _WEIGHT.get(error.exit_code, 0))

    def _withdraw(self, keep: Collection[str] = ()) -> None:
        """Remove earlier files of the recipe's stages, except those made or named in ``keep``."""
        made = self.result.made
        gone = [s for s in STAGES.all().values() if s.name not in made and s.name not in keep]
        publish.withdraw(self.out, self.job.recipe.name, gone, self.job.target.name)

    def _perform(
        self, step: Step, outcome: Outcome, done: Mapping[str, Artifact], index: int, count: int
    ) -> None:
        stage, job = step.stage, self.job
        inputs = {name: done[name] for name in stage.inputs if name in done}
        parts = parts_of(job, stage, {name: a.sha256 for name, a in inputs.items()})
        key = key_of(parts)
        start = time.monotonic()
        with job.store.lock(key, lambda: self.console.tell(f"{stage.name}: another run makes it")):
            artifact = None if step.forced else self._cached(stage, key)
            if artifact is None:
                previous = job.store.latest(stage.name, job.recipe.name)
                estimate = previous["seconds"] if previous else None
                self.console.stage_started(stage.name, index, count, estimate)
                outcome.status = "failed"
                try:
                    artifact = self._make(stage, key, parts, inputs, outcome, step.forced)
                finally:
                    outcome.seconds = time.monotonic() - start
                    if artifact is None:
                        said = outcome.evidence.get("verdict", "failed")
                        self.console.stage_ended(stage.name, said, outcome.seconds, "")
        if artifact is None:
            return
        outcome.artifact = artifact
        outcome.evidence = artifact.evidence
        outcome.status = "reused" if artifact.reused else "ran"
        if artifact.reused:
            for text in artifact.evidence.get("warnings", ()):
                self.warn(text)
        outcome.file = publish.put(self.out, job.recipe.name, stage, artifact)
        summary = str(artifact.evidence.get("summary", ""))
        self.console.stage_ended(stage.name, outcome.status, outcome.seconds, summary)

    def _cached(self, stage: Stage, key: str) -> Artifact | None:
        if not self.job.store.has(stage.name, key):
            return None
        try:
            return self.job.store.get(stage.name, key)
        except Damaged as damage:
            self.warn(f"{stage.name}: damaged entry dropped, made anew ({damage})")
            self.job.store.drop(stage.name, key)
            return None

    def _make(
        self,
        stage: Stage,
        key: str,
        parts: Mapping[str, Any],
        inputs: Mapping[str, Artifact],
        outcome: Outcome,
        forced: bool,
    ) -> Artifact | None:
        gc.enable()
        job = self.job
        start = time.monotonic()
        log.info("%s: started, key %s", stage.name, key)
        with job.store.work_folder() as work:
            scratch = job.store.scratch_folder(key)
            if forced:
                shutil.rmtree(scratch, ignore_errors=True)
            context, said = self._context(stage, work, scratch), len(self.result.warnings)
            try:
                product = stage.run(inputs, restricted(job.recipe_of(stage), stage), context)
            except EdgefuseError as error:
                self._name_files(error, inputs)
                raise
            except OSError as error:
                if not is_disk_error(error):
                    raise
                raise disk_error(error, work) from error
            warnings = {"warnings": self.result.warnings[said:]}
            product = replace(product, evidence={**product.evidence, **warnings})
            outcome.evidence = product.evidence
            if stage.gate and product.evidence.get("verdict") != "pass":
                job.store.drop(stage.name, key)
                return None
            artifact = job.store.put(
                product,
                stage=stage.name,
                key=key,
                parts=parts,
                parents={name: a.sha256 for name, a in inputs.items()},
                recipe=job.recipe.name,
                seconds=time.monotonic() - start,
            )
            shutil.rmtree(scratch, ignore_errors=True)
            return artifact

    def _name_files(self, error: EdgefuseError, inputs: Mapping[str, Artifact]) -> None:
        """Call files of the store in a message as the output folder calls them."""
        for name, artifact in inputs.items():
            published = STAGES.all()[name].file_name.format(name=self.job.recipe.name)
            for field_name in ("message", "where"):
                text = getattr(error, field_name).replace(str(artifact.path), published)
                setattr(error, field_name, text)

    def _context(self, stage: Stage, work: Path, scratch: Path) -> Context:
        job = self.job

        def local(file: Blob | LocalFile) -> Path:
            if isinstance(file, Blob):
                return self.downloads.get(file)
            return local_file(job.base, file)[0]

        return Context(
            work=work,
            scratch=scratch,
            base=job.base,
            log=self.log_file,
            progress=self.console.progress,
            warn=self.warn,
            samples=job.samples_of,
            roles=frozenset(
                role for role in SAMPLE_ROLES if getattr(job.recipe.data, role) is not None
            ),
            downloads=self.downloads,
            local=local,
            target=job.target,
            file_name=stage.file_name.format(name=job.recipe.name),
        )


def _certain(steps: Sequence[Step]) -> set[str]:
    """Stages whose stored results this run will take, since all before them are stored too."""
    certain: set[str] = set()
    names = {step.stage.name for step in steps}
    for step in steps:
        if step.status == "cached" and {*step.stage.inputs, *step.stage.after} & names <= certain:
            certain.add(step.stage.name)
    return certain


def _verdict_error(failed: list[Outcome]) -> EdgefuseError:
    """One error for all gates that did not pass; a failure outweighs an inconclusive gate."""
    texts = []
    for outcome in failed:
        checks = [c for c in outcome.evidence.get("checks", ()) if c.get("verdict") != "pass"]
        texts += [f"{outcome.stage.name}: {stated(check)}" for check in checks]
    verdicts = {o.evidence.get("verdict") for o in failed}
    hint = next((h for o in failed if (h := o.evidence.get("hint"))), "")
    kind = GateFailed if verdicts - {"inconclusive"} else Inconclusive
    return kind("; ".join(texts) or "a gate did not pass", hint=hint)
