"""Is this bundle what it says it is? Everything that can be told without building it again.

::

    archive    whole, plain files only, nothing escapes, in the one form that edgefuse writes
    manifest   of a schema that this version reads, complete
    members    exactly those of the manifest, each with its length and SHA-256
    evidence   about these very bytes; some target, or the one asked for, passed every gate
    signature  by a trusted key, where any is trusted
    golden     the int8 model answers the golden inputs with the golden outputs, bit for bit

Each check is made where those it builds on hold; what could not be looked at is said to be so. A
flipped byte of any member departs from its SHA-256, one of the manifest from the evidence's digest
of the bundle, one of the evidence from the signature. What is left alone: whether the recipe makes
these bytes, which ``--rebuild`` tells.

Golden outputs of the built-in kernels hold for one runtime version: with another the check is
inconclusive.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgefuse.archive import packed, read_members
from edgefuse.artifact import digest_bytes, digest_file
from edgefuse.bundle import evidence
from edgefuse.bundle.manifest import MANIFEST, read_manifest
from edgefuse.bundle.schemas import EVIDENCE, SIGNATURE
from edgefuse.bundle.signing import Signed, check_signature
from edgefuse.errors import EdgefuseError, GateFailed, Inconclusive, StageError, UsageError

Verdict = Literal["pass", "fail", "inconclusive", "none", "not checked"]
NAMES = ("archive", "manifest", "members", "evidence", "signature", "golden")
_AGAIN = "do not use it: copy it again, or run the recipe that made it"


@dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
        verdict: ``none`` where there is nothing to check and nothing is due.
        error: why it did not pass.
    """

    name: str
    verdict: Verdict
    detail: str = ""
    error: EdgefuseError | None = None


@dataclass
class Verification:
    """A bundle and what was found of it so far.

    Attributes:
        members: by name, once the archive is read.
        manifest: once it is read.
        signed: by whom, once that is known.
    """

    bundle: Path
    sha256: str
    findings: list[Finding] = field(default_factory=list)
    members: Mapping[str, bytes] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    signed: Signed | None = None

    @property
    def error(self) -> EdgefuseError | None:
        """Of the first check that did not pass; None when all did."""
        return next((f.error for f in self.findings if f.error is not None), None)

    def check(self, name: str, look: Callable[[], str | None], *needs: str) -> None:
        """Make one check, unless one that it needs did not pass."""
        held = {f.name for f in self.findings if f.verdict in ("pass", "none")}
        if missing := [need for need in needs if need not in held]:
            self.findings.append(Finding(name, "not checked", f"needs {', '.join(missing)}"))
            return
        try:
            detail = look()
        except EdgefuseError as error:
            verdict: Verdict = "inconclusive" if isinstance(error, Inconclusive) else "fail"
            self.findings.append(Finding(name, verdict, error.message, error))
        else:
            verdict = "none" if detail is None else "pass"
            self.findings.append(Finding(name, verdict, detail or "there is none"))


def verify(bundle: Path, *, key: Path | None = None, target: str | None = None) -> Verification:
    """Check a bundle with what lies beside it.

    Args:
        key: the only trusted public key; None: those of the user's configuration.
        target: that must have passed; None: any.

    Raises:
        UsageError: no such bundle.
    """
    if not bundle.is_file():
        raise UsageError(f"no such bundle: {bundle}", hint="make one with `edgefuse run`")
    made = Verification(bundle, digest_file(bundle))
    made.check("archive", lambda: _archive(made))
    made.check("manifest", lambda: _manifest(made), "archive")
    made.check("members", lambda: _members(made), "manifest")
    made.check("evidence", lambda: _evidence(made, target))
    made.check("signature", lambda: _signature(made, key))
    made.check("golden", lambda: _golden(made), "members")
    return made


def _archive(made: Verification) -> str:
    members = read_members(made.bundle)
    if digest_bytes(packed(members)) != made.sha256:
        raise StageError(
            "not in the form that edgefuse writes: headers, order or padding differ",
            where=str(made.bundle),
            hint=_AGAIN,
        )
    made.members = members
    return f"{len(members)} files, {sum(map(len, members.values())):,} bytes"


def _manifest(made: Verification) -> str:
    data = made.members.get(MANIFEST)
    if data is None:
        raise StageError("no manifest.json in it", where=str(made.bundle), hint=_AGAIN)
    made.manifest = read_manifest(data, f"{made.bundle}: {MANIFEST}")
    return f"schema {made.manifest['schema']}, {made.manifest['name']}"


def _members(made: Verification) -> str:
    files = made.manifest["files"]
    found = made.members.keys() - {MANIFEST}
    for names, what in (
        (files.keys() - found, "misses"),
        (found - files.keys(), "knows nothing of"),
    ):
        if names:
            subject = "archive" if what == "misses" else "manifest"
            raise GateFailed(
                f"the {subject} {what} {', '.join(sorted(names)[:3])}",
                where=str(made.bundle),
                hint=_AGAIN,
            )
    for name, row in sorted(files.items()):
        data = made.members[name]
        if len(data) != row["bytes"] or digest_bytes(data) != row["sha256"]:
            raise GateFailed(
                f"{name} is not the file that the manifest lists: its SHA-256 differs",
                where=str(made.bundle),
                hint=_AGAIN,
            )
    return f"{len(files)} files match their SHA-256"


def _evidence(made: Verification, target: str | None) -> str:
    path = made.bundle.with_name(EVIDENCE)
    document = evidence.parsed(evidence.read(path), path)
    evidence.require_bound(made.bundle, document, made.sha256)
    if target is not None:
        judged = evidence.require_judged(document, target, path)
        return f"passed on {target}" + _permitted(judged)
    passed = [n for n, j in sorted(document["targets"].items()) if not evidence.not_passed(j, n)]
    if not passed:
        raise GateFailed(
            "it passed its gates on no target", where=str(path), hint="run the recipe again"
        )
    return f"passed on {', '.join(passed)}" + _permitted(document["targets"][passed[0]])


def _permitted(judged: Mapping[str, Any]) -> str:
    rows = ", ".join(map(str, judged["permissions"]))
    return f"; permitted: {rows}" if rows else ""


def _signature(made: Verification, key: Path | None) -> str | None:
    beside = made.bundle.with_name(EVIDENCE)
    try:
        data = beside.read_bytes()
    except OSError:
        data = b""  # of which there is no signature
    made.signed = check_signature(made.bundle.with_name(SIGNATURE), made.sha256, data, key)
    return None if made.signed is None else made.signed.summary


def _golden(made: Verification) -> str:
    from edgefuse.tflite.runtime import open_model, runtime_version

    golden, where = made.manifest["golden"], f"{made.bundle}: golden"
    kernels = golden.get("kernels")
    if kernels not in ("reference", "builtin"):
        raise StageError(f"golden outputs of unknown kernels {kernels!r}", where=where)
    used, made_by = runtime_version(), golden.get("runtime")
    if kernels == "builtin" and made_by != used:
        raise Inconclusive(
            f"golden outputs are by the built-in kernels of {made_by}, installed is {used}",
            where=where,
            hint=f"install {str(made_by).replace(' ', '==')} to check them",
        )
    name = made.manifest["models"].get("int8")
    with tempfile.TemporaryDirectory(prefix="edgefuse-verify-") as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(_member(made, name, where))
        model = open_model(path, kernels=kernels, threads=1)
        for index, row in enumerate(golden["vectors"]):
            feeds = {n: _array(made, p, where) for n, p in row["inputs"].items()}
            wanted = {n: _array(made, p, where) for n, p in row["outputs"].items()}
            _require_equal(model.run(feeds), wanted, f"{where}/{index}", kernels)
    return f"{len(golden['vectors'])} vectors bit-exact with the {kernels} kernels of {used}"


def _require_equal(
    found: Mapping[str, Any], wanted: Mapping[str, Any], where: str, kernels: str
) -> None:
    if found.keys() != wanted.keys():
        raise GateFailed(
            f"outputs {sorted(found)}, golden are {sorted(wanted)}", where=where, hint=_AGAIN
        )
    for name, value in found.items():
        golden = wanted[name]
        if value.dtype != golden.dtype or value.shape != golden.shape:
            raise GateFailed(f"output {name!r} has another shape or type", where=where, hint=_AGAIN)
        if value.tobytes() != golden.tobytes():
            share = float((value != golden).mean())
            raise GateFailed(
                f"output {name!r} departs from the golden one in {share:.1%} of its values",
                where=where,
                hint=_AGAIN if kernels == "reference" else "another class of CPU may do this too",
            )


def _member(made: Verification, name: Any, where: str) -> bytes:
    try:
        return made.members[name]
    except (KeyError, TypeError):
        raise GateFailed(
            f"the manifest names {name!r}, which the archive does not hold",
            where=where,
            hint=_AGAIN,
        ) from None


def _array(made: Verification, name: Any, where: str) -> Any:
    import numpy as np

    data = _member(made, name, where)
    try:
        npy: Any = np.lib.format  # np.load would take archives too
        return npy.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, OverflowError) as error:
        raise GateFailed(f"{name} is no array: {error}", where=where, hint=_AGAIN) from None
