"""Does the recipe in a bundle make this bundle? Build it again from nothing, and compare the bytes.

Everything is made anew in a store of its own: ``recipe.json`` of the bundle, run without gates,
against the same sources. Downloads are shared with other runs, since they are known by their
SHA-256. Then each stage's product is compared with the manifest's lineage, in the order they ran,
and the first that departs is named; last the archive, byte by byte.

The sources (sample lists, pictures, files and modules beside the recipe) are no part of a bundle.
They are looked for in the folder given, else in the working folder, its ``configs``, and where
edgefuse's own recipes lie; the first in which every sample set has the manifest's digest is taken.

A recipe names code. Of a bundle that no trusted key signed, only modules of that folder and of
edgefuse's own zoo are called. Equality is promised on one class of CPU with equal versions: what
differs is told when the bytes do.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgefuse.archive import read_members
from edgefuse.artifact import Artifact
from edgefuse.bundle.manifest import MANIFEST, RECIPE
from edgefuse.bundle.verify import Verification
from edgefuse.console import Console
from edgefuse.errors import DataError, EdgefuseError, GateFailed, RecipeError, StageError
from edgefuse.fetch import Downloads
from edgefuse.job import make_job
from edgefuse.keys import versions
from edgefuse.plan import Job, Selection
from edgefuse.runner import Runner
from edgefuse.store import Store

_STAGE = "package"
_ZOO = "edgefuse.zoo."
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # a target's name, never a path


def rebuild(
    made: Verification, sources: Path | None, work: Path, console: Console, log: Path
) -> str:
    """Build a verified bundle again; says what was equal.

    Args:
        sources: the folder that the recipe's relative paths start at; None: looked for.
        work: an empty folder.

    Raises:
        GateFailed: a stage, or the archive, departs.
        RecipeError, DataError: the recipe cannot be used, or its sources are not there.
        EdgefuseError: of a stage that cannot do its work.
    """
    path = work / "recipe.yaml"
    try:
        path.write_bytes(made.members[RECIPE])
    except KeyError:
        raise StageError(f"no {RECIPE} in it", where=str(made.bundle)) from None
    job = _job(path, sources, made.manifest)
    if made.signed is None or not made.signed.trusted:
        _require_known_code(job)
    downloads = Downloads(job.store.root / "downloads", job.base, console.tell)
    own = replace(job, store=Store(work / "store"))
    published = work / "published"
    published.mkdir()
    selection = Selection(until=_STAGE, ungated=True)
    result = Runner(own, selection, published, console, downloads, log).run()
    if result.error is not None:
        raise result.error
    order = [outcome.stage.name for outcome in result.outcomes]
    _compare(made, result.made, order)
    return f"same bytes, {len(order)} stages made anew from {job.base}"


def _job(path: Path, sources: Path | None, manifest: Mapping[str, Any]) -> Job:
    """The recipe with the first folder in which its sample sets are those of the manifest."""
    first: EdgefuseError | None = None
    for folder in [sources] if sources is not None else _folders():
        try:
            job = make_job(path, target=_target(manifest), base=folder)
            _require_data(job, manifest)
        except (RecipeError, DataError) as error:
            first = first or error
            continue
        return job
    assert first is not None
    if not first.hint:
        first.hint = "give the folder of the recipe by --sources"
    raise first


def _target(manifest: Mapping[str, Any]) -> str | None:
    """That whose compiled model it holds; None: the recipe's, which then changes no byte."""
    compiled = manifest.get("compiled")
    target = compiled.get("target") if isinstance(compiled, dict) else None
    if not isinstance(target, str) or not _NAMED.fullmatch(target):
        return None
    return None if target.endswith((".yaml", ".yml")) else target


def _folders() -> Iterator[Path]:
    here = Path.cwd()
    yield here
    beside = Path(__file__).resolve().parent.parent
    installed = Path(sys.prefix) / "share" / "edgefuse"
    yield from (root / "configs" for root in (here, beside, installed))


def _require_data(job: Job, manifest: Mapping[str, Any]) -> None:
    for role, row in sorted(manifest["data"].items()):
        found = job.samples_of(role).digest
        if found != row["digest"]:
            raise DataError(
                f"data.{role} is not that of the bundle: digest {found[:12]}, "
                f"the manifest says {row['digest'][:12]}",
                where=str(job.base),
                hint="give the folder of the recipe by --sources, with the same pictures",
            )


def _require_known_code(job: Job) -> None:
    """Refuse to call what neither edgefuse nor the sources bring."""
    torch = job.recipe.model.torch
    if torch is None:
        return
    module, _, attribute = torch.callable.partition(":")
    file = job.base.joinpath(*module.split("."))
    beside = file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()
    # A dotted attribute would reach what a module merely imports.
    if "." in attribute or not (beside or module.startswith(_ZOO)):
        raise RecipeError(
            f"the recipe calls {torch.callable}, which is neither edgefuse's nor in {job.base}",
            where="model.torch.callable",
            hint="rebuild it with a trusted signature (--key), or in the recipe's own folder",
        )


def _compare(made: Verification, found: Mapping[str, Artifact], order: list[str]) -> None:
    lineage = made.manifest["lineage"]
    for stage in order:
        if stage in lineage and found[stage].sha256 != lineage[stage]:
            raise _departs(made, f"first at stage {stage}")
    bundle = found[_STAGE]
    if bundle.sha256 == made.sha256:
        return
    members = read_members(bundle.path)
    names = [n for n in sorted({*members, *made.members}) if members.get(n) != made.members.get(n)]
    told = [name for name in names if name != MANIFEST] or names
    raise _departs(made, f"only at stage {_STAGE}, in {', '.join(told[:3])}")


def _departs(made: Verification, where: str) -> GateFailed:
    toolchain = made.manifest["toolchain"]
    names = tuple(name for name in toolchain if name != "python")
    here = {"python": platform.python_version(), **versions(names)}
    other = [f"{n} {toolchain[n]}, here {here[n]}" for n in here if here[n] != toolchain[n]]
    return GateFailed(
        f"the rebuild departs, {where}",
        where=str(made.bundle),
        hint=f"other versions: {'; '.join(other)}"
        if other
        else "the versions are equal: another class of CPU or another edgefuse does this, or the "
        "bundle is not what its recipe makes",
    )
