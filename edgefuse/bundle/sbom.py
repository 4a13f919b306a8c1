"""``sbom.cdx.json``: a software bill of materials, CycloneDX 1.6 in JSON.

Its subject is the bundle's int8 model. Listed are the models, the weights or model files they were
made of, the sample sets by digest, and every distribution that shaped the files, with its version,
package URL and licence as the distribution's own metadata tells it. Only the runtime is needed on a
device; the toolchain has the scope ``excluded``.

It is deterministic: no time stamp, and a serial number that is a UUID of the content (RFC 9562,
version 5). Left out is what nobody told: licences of weights and data, and vulnerabilities.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from edgefuse.artifact import digest_json
from edgefuse.bundle.schemas import json_bytes

SPEC = "1.6"
RUNTIME = "ai-edge-litert"
_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "edgefuse bundle sbom")
# Trove classifiers and usual spellings that mean exactly one SPDX identifier.
_SPDX = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "MIT License": "MIT",
    "MIT": "MIT",
}
_LONGEST_NAME = 64  # a longer "License" field is the licence's text


def sbom(
    name: str,
    edgefuse: str,
    models: Mapping[str, tuple[str, str]],
    sources: Mapping[str, Mapping[str, str]],
    data: Mapping[str, Mapping[str, Any]],
    toolchain: Mapping[str, str],
) -> bytes:
    """The document's bytes.

    Args:
        name: of the model.
        edgefuse: its version.
        models: (member, SHA-256) by ``float`` and ``int8``.
        sources: file and sha256 by what it is: weights, model.
        data: digest and samples of each sample set by role.
        toolchain: version by distribution, and of ``python``; ``missing`` ones are left out.
    """
    listed = [
        *(_model(kind, *row) for kind, row in sorted(models.items()) if kind != "int8"),
        *(_source(what, row) for what, row in sorted(sources.items())),
        *(_data(role, row) for role, row in sorted(data.items())),
        *(_library(d, v) for d, v in sorted(toolchain.items()) if v != "missing"),
    ]
    subject = {**_model("int8", *models["int8"]), "name": name}
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "component": subject,
            "tools": {
                "components": [{"type": "application", "name": "edgefuse", "version": edgefuse}]
            },
        },
        "components": listed,
        "dependencies": [
            {"ref": subject["bom-ref"], "dependsOn": sorted(part["bom-ref"] for part in listed)}
        ],
    }
    serial = uuid.uuid5(_SPACE, digest_json(body))
    return json_bytes({**body, "serialNumber": f"urn:uuid:{serial}"})


def _model(kind: str, member: str, sha256: str) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{kind}",
        "name": member,
        "description": f"{kind} TensorFlow Lite model",
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


def _source(what: str, row: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"source:{what}",
        "name": row["file"],
        "description": f"{what} that the recipe names",
        "hashes": [{"alg": "SHA-256", "content": row["sha256"]}],
        "scope": "excluded",
    }


def _data(role: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample set; its digest is over contents, labels, crops and preprocessing."""
    return {
        "type": "data",
        "bom-ref": f"data:{role}",
        "name": f"{role} samples",
        "description": f"{row['samples']} samples of {row['groups']} sources",
        "scope": "excluded",
        "data": [{"type": "dataset", "name": f"{role} samples"}],
        "hashes": [{"alg": "SHA-256", "content": row["digest"]}],
    }


def _library(distribution: str, version: str) -> dict[str, Any]:
    if distribution == "python":
        return {
            "type": "platform",
            "bom-ref": f"python@{version}",
            "name": "python",
            "version": version,
            "scope": "excluded",
        }
    plain = re.sub(r"[-_.]+", "-", distribution).lower()
    # A package URL's version is percent-encoded: a local version holds a plus sign.
    purl = f"pkg:pypi/{plain}@{version.replace('+', '%2B')}"
    row: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": distribution,
        "version": version,
        "purl": purl,
        "scope": "required" if distribution == RUNTIME else "excluded",
    }
    if licences := _licences(distribution):
        row["licenses"] = licences
    return row


def _licences(distribution: str) -> list[dict[str, Any]]:
    """What the distribution's metadata tells, as an SPDX expression where it is unambiguous."""
    try:
        told = metadata.metadata(distribution)
    except metadata.PackageNotFoundError:
        return []
    if "License-Expression" in told:
        return [{"expression": told["License-Expression"]}]
    classified = [c for c in told.get_all("Classifier") or () if c.startswith("License ::")]
    known = sorted({_SPDX[c] for c in classified if c in _SPDX})
    if known and len(known) == len(classified):
        return [{"license": {"id": spdx}} for spdx in known]
    text = told["License"].strip() if "License" in told else ""
    if text in _SPDX:
        return [{"license": {"id": _SPDX[text]}}]
    if classified:
        return [{"license": {"name": c.rpartition(" :: ")[2]}} for c in sorted(classified)]
    if text and len(text) <= _LONGEST_NAME and "\n" not in text:
        return [{"license": {"name": text}}]
    return []
