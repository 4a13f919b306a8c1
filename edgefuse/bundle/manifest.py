"""``manifest.json``, the bundle's table of contents: what each file is, and what it was made of.

::

    schema          2
    edgefuse        version that packed it
    name            the recipe's
    weights         given, or random: never to be installed
    release         whether the recipe is one that ships
    files           every other member: sha256, bytes
    models          which of them are float, int8 and compiled
    compiled        for which target, by what, and the compiler's facts; null: nothing compiled
    signature, float_signature
                    inputs and outputs: name, shape, dtype, layout, quantisation
    preprocessing   the member with the contract from picture to input; null: arrays
    golden          vectors, whose kernels made their outputs, and how far others were off
    runtime         what the int8 model needs: :mod:`edgefuse.tflite.needs`
    sources         SHA-256 of the weights or model files that the recipe names
    data            each sample set's digest, samples and groups
    lineage         SHA-256 of what each stage made
    toolchain       Python, and every distribution that shaped the files
    evidence        where measurements are: not in here

``golden.kernels`` are ``reference``, bit-identical on every CPU, or ``builtin`` of
``golden.runtime`` where the reference kernels lack an operator. ``golden.deviation`` says how many
LSB the runtime's own choice of kernels was off on these very vectors, for integer outputs; float
outputs have none, since they differ from CPU to CPU.

No measurement, no time, no machine and no path: equal inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.bundle.schemas import read_document
from edgefuse.errors import UsageError

SCHEMA = 2
MANIFEST = "manifest.json"
SBOM = "sbom.cdx.json"
RECIPE = "recipe.json"
_KINDS: Mapping[str, type] = {
    "edgefuse": str, "name": str, "weights": str, "release": bool, "files": dict, "models": dict,
    "signature": dict, "golden": dict, "runtime": dict, "sources": dict, "data": dict,
    "lineage": dict, "toolchain": dict,
}  # fmt: skip


def read_manifest(data: bytes, where: str) -> dict[str, Any]:
    """A manifest whose outer shape is right.

    Args:
        where: for messages.

    Raises:
        UsageError: none of this schema, or incomplete.
    """
    document = read_document(data, SCHEMA, MANIFEST, where)
    wrong = [key for key, kind in _KINDS.items() if not isinstance(document.get(key), kind)]
    rows = document.get("files")
    if not wrong and isinstance(rows, dict):
        wrong = [f"files.{path}" for path, row in rows.items() if not _is_file(row)]
    if not wrong and not _are_vectors(document["golden"].get("vectors")):
        wrong = ["golden.vectors"]
    if wrong:
        raise UsageError(
            f"manifest.json is incomplete: {', '.join(wrong[:3])}",
            where=where,
            hint="run the recipe again",
        )
    return document


def _is_file(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("sha256"), str)
        and isinstance(row.get("bytes"), int)
    )


def _are_vectors(rows: Any) -> bool:
    """A bundle without golden vectors proves nothing, so there is at least one."""
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(
            isinstance(row, dict)
            and all(
                isinstance(row.get(side), dict)
                and row[side]
                and all(isinstance(path, str) for path in row[side].values())
                for side in ("inputs", "outputs")
            )
            for row in rows
        )
    )
