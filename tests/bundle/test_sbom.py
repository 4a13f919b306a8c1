"""The bill of materials: valid CycloneDX, equal for equal content, honest about licences."""

from __future__ import annotations

import json
from email.message import Message
from importlib import metadata
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from edgefuse.bundle import sbom as sboms
from edgefuse.bundle.sbom import sbom

A, B, C = "a" * 64, "b" * 64, "c" * 64
MODELS = {"float": ("models/f.tflite", A), "int8": ("models/q.tflite", B)}
SOURCES = {"weights": {"file": "w.pth", "sha256": C}}
DATA = {"evaluation": {"digest": C, "samples": 200, "groups": 20}}
TOOLS = {
    "python": "3.11.7", "numpy": "1.26.4", "ai-edge-litert": "2.1.0", "torch": "2.1.0+cpu",
    "tensorflow": "missing", "tf_keras": "2.19.0", "no-such-distribution": "1",
}  # fmt: skip


def made(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": "net", "edgefuse": "1.0", "models": MODELS, "sources": SOURCES, "data": DATA,
        "toolchain": TOOLS,
    }  # fmt: skip
    data = sbom(**{**fields, **changes})
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    return dict(json.loads(data))


def test_the_validator_refuses_what_is_none() -> None:
    broken = {**made(), "serialNumber": "7"}
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(broken)) is not None


def test_models_sources_data_and_libraries_are_listed() -> None:
    document = made()
    listed = {part["bom-ref"]: part for part in document["components"]}
    assert set(listed) == {
        "model:float", "source:weights", "data:evaluation", "python@3.11.7",
        "pkg:pypi/numpy@1.26.4", "pkg:pypi/ai-edge-litert@2.1.0", "pkg:pypi/torch@2.1.0%2Bcpu",
        "pkg:pypi/tf-keras@2.19.0", "pkg:pypi/no-such-distribution@1",
    }  # fmt: skip
    subject = document["metadata"]["component"]
    assert subject["name"] == "net" and subject["hashes"][0]["content"] == B
    assert listed["data:evaluation"]["hashes"][0]["content"] == C
    needed = [ref for ref, part in listed.items() if part.get("scope") == "required"]
    assert needed == ["pkg:pypi/ai-edge-litert@2.1.0"]
    assert document["dependencies"] == [{"ref": "model:int8", "dependsOn": sorted(listed)}]


def test_its_number_is_that_of_its_content() -> None:
    number = made()["serialNumber"]
    assert made()["serialNumber"] == number and "timestamp" not in json.dumps(made())
    changed: list[dict[str, Any]] = [
        {"name": "other"}, {"edgefuse": "2"}, {"sources": {}}, {"data": {}},
        {"models": {**MODELS, "int8": ("models/q.tflite", A)}}, {"toolchain": {"numpy": "1.26.5"}},
    ]  # fmt: skip
    assert len({number, *(made(**one)["serialNumber"] for one in changed)}) == 1 + len(changed)


@pytest.mark.parametrize(
    ("told", "licences"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "x")],
         [{"expression": "MIT OR Apache-2.0"}]),
        ([("Classifier", "License :: OSI Approved :: MIT License")], [{"license": {"id": "MIT"}}]),
        ([("License", "Apache 2.0"), ("Classifier", "Topic :: x")],
         [{"license": {"id": "Apache-2.0"}}]),
        ([("Classifier", "License :: OSI Approved :: BSD License")],
         [{"license": {"name": "BSD License"}}]),
        ([("Classifier", "License :: OSI Approved :: MIT License"),
          ("Classifier", "License :: Other")],
         [{"license": {"name": "MIT License"}}, {"license": {"name": "Other"}}]),
        ([("License", "Free for all")], [{"license": {"name": "Free for all"}}]),
        ([("License", "Permission is hereby granted\nto anyone")], None),
        ([("License", "x" * 65)], None),
        ([], None),
    ],
)  # fmt: skip
def test_licences_as_the_metadata_tells(
    told: list[tuple[str, str]], licences: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message()
    for name, value in told:
        message[name] = value
    monkeypatch.setattr(metadata, "metadata", lambda _: message)
    (part,) = (p for p in made(toolchain={"x": "1"})["components"] if p["type"] == "library")
    assert part.get("licenses") == licences
    assert sboms.SPEC == "1.6"
