"""``evidence.json`` beside a bundle: what was measured and decided, for each target.

::

    schema           2
    bundle_sha256    the bundle that all of it is about
    recipe           its recipe's name
    targets
      <name>
        verdict      pass, fail, inconclusive, incomplete or error: the whole run's
        gates        each gate's verdict, checks with bounds and thresholds, figures, provenance
        parity       errors of the float stages
        permissions  what the recipe lets pass that is refused otherwise

Evidence is no part of the bundle: a new measurement changes no byte of it. It is bound to it by
digest. A run for another target adds to the evidence of an equal bundle; with another bundle it
starts anew. Before a target is judged again its earlier verdict is taken out, so that a run which
ends early leaves none. A signature covers the file's bytes: it goes when they change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import digest_file
from edgefuse.bundle.schemas import EVIDENCE, SIGNATURE, read_document
from edgefuse.bundle.signing import Signed, check_signature
from edgefuse.errors import GateFailed, UsageError
from edgefuse.section import Section
from edgefuse.store import raise_disk_error, write_changed

if TYPE_CHECKING:
    from edgefuse.recipe import Gates

SCHEMA = 2
REQUIRED_GATES = ("accuracy", "memory", "latency")
_PERMITTING = ("permit_", "allow_")


@dataclass(frozen=True)
class Cleared:
    """A bundle that may go to a target.

    Attributes:
        sha256: the bundle's.
        target: the target's name.
        permissions: what its recipe lets pass that is refused otherwise, as ``key: value``.
        signed: by whom; None where it is not, and no key is trusted here.
    """

    sha256: str
    target: str
    permissions: tuple[str, ...]
    signed: Signed | None


def permissions(recipe: Section) -> list[str]:
    """Every key of a recipe that permits something by its name, with its value, sorted."""
    return sorted(_permissions(recipe.model_dump(mode="json"), ""))


def waived(gates: Gates, target: str) -> list[str]:
    """The gates that a recipe leaves out on a target by an explicit null, as ``key: null``."""
    own = gates.targets.get(target)
    names = own.model_fields_set if own is not None else ()
    return [_waiver(target, name) for name in sorted(names) if getattr(own, name) is None]


def _waiver(target: str, gate: str) -> str:
    return f"gates.targets.{target}.{gate}: null"


def _permissions(value: Any, place: str) -> list[str]:
    if not isinstance(value, Mapping):
        return []
    found = []
    for key, inner in value.items():
        here = f"{place}.{key}".lstrip(".")
        if str(key).startswith(_PERMITTING):
            found += [f"{here}: {json.dumps(inner, ensure_ascii=False)}"] if inner else []
        else:
            found += _permissions(inner, here)
    return found


def record(
    folder: Path, bundle_sha256: str, recipe: str, target: str, judged: Mapping[str, Any]
) -> None:
    """Write what a run says of a bundle on one target; other targets of an equal bundle stay.

    A verdict that was only read from the store again is the one that was recorded: the file, and
    with it a signature, stays as it is.

    Args:
        judged: verdict, gates, parity, permissions.

    Raises:
        StoreError: full disk, missing permission.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "bundle_sha256": bundle_sha256, "recipe": recipe}
    earlier = _earlier(folder / EVIDENCE)
    targets: dict[str, Any] = {}
    if earlier is not None and all(earlier[key] == document[key] for key in document):
        targets = dict(earlier["targets"])
    before = targets.get(target)
    if before is None or _plain(before) != _plain(judged):
        targets[target] = judged
    _write(folder / EVIDENCE, {**document, "targets": targets})


def _plain(judged: Mapping[str, Any]) -> Any:
    """What was judged, whether or not it came out of the store."""
    gates = [{k: v for k, v in gate.items() if k != "reused"} for gate in judged["gates"]]
    return json.loads(json.dumps({**judged, "gates": gates}))


def withdraw(folder: Path, target: str | None) -> None:
    """Take out a target's verdict before it is judged again; all of them for None.

    What cannot be read goes as a whole, and so does a file that holds no other target.

    Raises:
        StoreError: it cannot be changed.
    """
    path = folder / EVIDENCE
    document = None if target is None else _earlier(path)
    rest = {n: j for n, j in (document or {}).get("targets", {}).items() if n != target}
    if document is not None and rest:
        if len(rest) < len(document["targets"]):
            _write(path, {**document, "targets": rest})
        return
    for gone in (path.with_name(SIGNATURE), path):
        _unlink(gone)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise_disk_error(error, path)


def _earlier(path: Path) -> dict[str, Any] | None:
    try:
        return parsed(read(path), path)
    except UsageError:
        return None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    document = {**document, "targets": dict(sorted(document["targets"].items()))}
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        same = path.read_bytes() == text.encode()
    except OSError:
        same = False
    if not same:
        _unlink(path.with_name(SIGNATURE))
        write_changed(path, text.encode())


def read(path: Path) -> bytes:
    """The bytes of an evidence file.

    Raises:
        UsageError: there is none.
    """
    try:
        return path.read_bytes()
    except OSError:
        raise UsageError(
            "no readable evidence.json beside the bundle",
            where=str(path),
            hint="use the folder that `edgefuse run` or `make release` wrote",
        ) from None


def parsed(data: bytes, path: Path) -> dict[str, Any]:
    """An evidence file whose outer shape is right: targets with a verdict and gates.

    Args:
        path: for messages.

    Raises:
        UsageError: not evidence of this schema.
    """
    document = read_document(data, SCHEMA, EVIDENCE, str(path))
    targets = document.get("targets")
    whole = (
        isinstance(document.get("bundle_sha256"), str)
        and isinstance(document.get("recipe"), str)
        and isinstance(targets, dict)
        and all(_is_judged(judged) for judged in targets.values())
    )
    if not whole:
        raise UsageError(
            "evidence.json is incomplete", where=str(path), hint="run the recipe again"
        )
    return document


def _is_judged(judged: Any) -> bool:
    return (
        isinstance(judged, dict)
        and isinstance(judged.get("verdict"), str)
        and isinstance(judged.get("parity"), list)
        and isinstance(judged.get("permissions"), list)
        and isinstance(judged.get("gates"), list)
        and all(
            isinstance(gate, dict) and {"name", "verdict"} <= gate.keys()
            for gate in judged["gates"]
        )
    )


def require_bound(bundle: Path, evidence: Mapping[str, Any], sha256: str) -> None:
    """Check that evidence is about these very bytes.

    Raises:
        GateFailed: it is about others.
    """
    bound = evidence["bundle_sha256"]
    if bound != sha256:
        raise GateFailed(
            f"the evidence is for bundle {bound[:12]}, this one is {sha256[:12]}",
            where=str(bundle),
            hint="the bundle changed after its gates: run the recipe again",
        )


def require_passing(bundle: Path, target: str, key: Path | None = None) -> Cleared:
    """Check that a bundle passed every gate on a target, by the evidence beside it, and is signed.

    Args:
        key: a file with the only trusted public key; None: those of the user's configuration.

    Raises:
        UsageError: no such bundle, no evidence beside it, evidence or a signature of another
            schema, a key that is none.
        GateFailed: the evidence is about other bytes, says nothing of the target, or not every
            gate passed there; or the signature is missing where keys are trusted, or is wrong.
    """
    if not bundle.is_file():
        raise UsageError(f"no such bundle: {bundle}", hint="make one with `edgefuse run`")
    path = bundle.with_name(EVIDENCE)
    data = read(path)
    document = parsed(data, path)
    sha256 = digest_file(bundle)
    require_bound(bundle, document, sha256)
    signed = check_signature(bundle.with_name(SIGNATURE), sha256, data, key)
    judged = require_judged(document, target, path)
    return Cleared(sha256, target, tuple(map(str, judged["permissions"])), signed)


def require_judged(document: Mapping[str, Any], target: str, path: Path) -> Mapping[str, Any]:
    """What evidence says of a target on which every gate passed.

    Args:
        path: for messages.

    Raises:
        GateFailed: it says nothing of the target, or not every gate passed there.
    """
    judged: Mapping[str, Any] | None = document["targets"].get(target)
    if judged is None:
        others = ", ".join(sorted(document["targets"]))
        on = f"judged on target {others}" if others else "judged nowhere"
        raise GateFailed(
            f"{on}, not on {target}",
            where=str(path),
            hint=f"judge it there first: edgefuse run RECIPE --target {target}",
        )
    if open_gates := not_passed(judged, target):
        raise GateFailed(
            f"gates not passed on {target}: {', '.join(open_gates)}",
            where=str(path),
            hint=f"only a bundle that passed {', '.join(REQUIRED_GATES)} is pushed",
        )
    return judged


def not_passed(judged: Mapping[str, Any], target: str) -> Sequence[str]:
    """What is missing for a pass: gates that were not run, any that did not pass, the run.

    A gate that the recipe leaves out on this target by its own word is not missing.
    """
    permitted = set(map(str, judged["permissions"]))
    needed = [name for name in REQUIRED_GATES if _waiver(target, name) not in permitted]
    said: dict[str, list[Any]] = {name: [] for name in needed}
    for gate in judged["gates"]:
        said.setdefault(str(gate["name"]), []).append(gate["verdict"])
    missing = [name for name, verdicts in said.items() if set(map(str, verdicts)) != {"pass"}]
    if judged["verdict"] != "pass" and not missing:
        missing.append(f"the run ended with {judged['verdict']}")
    return missing
