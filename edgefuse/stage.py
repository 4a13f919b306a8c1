"""What a stage is: a function from artifacts to one product, and what may change its result.

Everything a stage reads is declared, because the declaration is the cache key: recipe sections,
sample sets, weights, target fields, versions of the libraries it calls. A stage sees only the
sections it declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from edgefuse.artifact import Artifact, Product
from edgefuse.registry import Registry

if TYPE_CHECKING:
    from edgefuse.data import SampleSet
    from edgefuse.fetch import Downloads
    from edgefuse.recipe import Blob, LocalFile, Recipe
    from edgefuse.target import Target


#: Folder beside the log: what a stage leaves there when it fails, to repeat the failure with.
REPRODUCER = "reproducer"


class Progress(Protocol):
    """Report that ``done`` of ``total`` steps of ``what`` are finished."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


@dataclass(frozen=True)
class Context:
    """What the runner lends a stage while it runs.

    Attributes:
        work: a private empty folder, removed afterwards.
        scratch: a folder of this stage and cache key alone, for what lets an interrupted run go
            on; it need not exist, and is removed once the product is stored. What lies there
            must not change the product.
        base: the recipe's folder; relative paths start here.
        log: the run's log file; child processes append their output to it.
        progress: reports progress.
        warn: tells the user something that does not stop the run.
        samples: opens a sample set of the recipe by role (calibration, evaluation, report).
        roles: the roles that the recipe has a sample set for.
        downloads: fetches files by content.
        local: resolves a LocalFile (checked when it has a SHA-256).
        target: the target the gates run on.
        file_name: the name its product shall have.
    """

    work: Path
    scratch: Path
    base: Path
    log: Path
    progress: Progress
    warn: Callable[[str], None]
    samples: Callable[[str], SampleSet]
    roles: frozenset[str]
    downloads: Downloads
    local: Callable[[Blob | LocalFile], Path]
    target: Target
    file_name: str


Run = Callable[[Mapping[str, Artifact], "Recipe", Context], Product]


def shipped(inputs: Mapping[str, Artifact]) -> Artifact:
    """The int8 file that is judged and shipped: rewritten for memory where the recipe asks so."""
    return inputs.get("shrink", inputs["quantize"])


def judged(inputs: Mapping[str, Artifact]) -> Artifact:
    """What the gates judge: the GPU program on a target that runs it, else what is shipped."""
    return inputs.get("lower") or shipped(inputs)


def _always(_: Recipe) -> bool:
    return True


def _serves_all(_: Target) -> bool:
    return True


@dataclass(frozen=True)
class Stage:
    """A registered stage.

    Attributes:
        name: a verb; the file name in ``stages/`` and the recipe section of its options.
        summary: one line for people.
        run: the work.
        inputs: stages whose artifacts it reads (those that apply to the recipe).
        after: stages that must have succeeded before it, though it does not read them.
        sections: recipe sections it reads, dotted.
        samples: sample sets it reads, by role.
        target_fields: fields of the target it reads.
        tools: distributions whose versions enter the key.
        file_name: name of its product, ``{name}`` being the recipe's.
        writes_recipe: whether its product holds the recipe as written, mirrors included.
        applies: whether the recipe has this stage at all.
        serves: whether a target needs it.
        gate: its product is a verdict; only ``pass`` is kept.
        measures: the result depends on the machine and the moment (``--measure`` repeats it).
        cacheable: whether the declared inputs determine the result.
    """

    name: str
    summary: str
    run: Run
    file_name: str
    inputs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    target_fields: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    writes_recipe: bool = False
    applies: Callable[[Recipe], bool] = _always
    serves: Callable[[Target], bool] = _serves_all
    gate: bool = False
    measures: bool = False
    cacheable: Callable[[Recipe], bool] = _always


STAGES: Registry[Stage] = Registry("edgefuse.stages")


def stage(**declared: Any) -> Callable[[Run], Run]:
    """Register a stage: ``@stage(name=..., ...)`` on its run function."""

    def register(run: Run) -> Run:
        STAGES.add(Stage(run=run, **declared), run.__module__)
        return run

    return register


class _Restricted:
    """A recipe that shows only the declared sections."""

    def __init__(self, recipe: Recipe, sections: tuple[str, ...], stage_name: str) -> None:
        self._recipe = recipe
        self._heads = {section.split(".")[0] for section in sections} | {"name", "seed"}
        self._stage = stage_name

    def __getattr__(self, name: str) -> Any:
        if name not in self._heads:
            raise AttributeError(f"stage {self._stage!r} reads {name!r} but does not declare it")
        return getattr(self._recipe, name)


def restricted(recipe: Recipe, declared: Stage) -> Recipe:
    """The recipe as the stage may see it; reading an undeclared section is a bug and raises."""
    return cast("Recipe", _Restricted(recipe, declared.sections, declared.name))
