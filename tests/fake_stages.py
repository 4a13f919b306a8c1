"""A recipe of six tiny stages, for the runner's tests: no model, no tool, milliseconds.

::

    alpha -> beta -> gate_one, gate_two (a measurement) -> seal
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse import plan, runner
from edgefuse.archive import pack
from edgefuse.artifact import Artifact, Product
from edgefuse.commands.run import run_recipe
from edgefuse.console import Quiet
from edgefuse.data import SampleSet
from edgefuse.fetch import Downloads
from edgefuse.plan import Job, Selection
from edgefuse.recipe import Recipe
from edgefuse.registry import Registry
from edgefuse.stage import Context, Stage
from edgefuse.store import Store
from edgefuse.target import Target
from edgefuse.verdict import Check, evidence

HOST = Target(name="host", summary="here", transport="local", runtime="litert")
EVERYTHING = Selection()
TEXT = """\
schema: 1
name: tiny
model:
  onnx: {path: model.onnx}
  inputs: [{name: x, shape: [1, 2]}]
data:
  calibration: {arrays: data.npz}
  evaluation: {arrays: data.npz}
"""


def recipe(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "schema": 1,
        "name": "tiny",
        "model": {"onnx": {"path": "model.onnx"}, "inputs": [{"name": "x", "shape": [1, 2]}]},
        "data": {"calibration": {"arrays": "data.npz"}, "evaluation": {"arrays": "data.npz"}},
    }
    return Recipe.model_validate({**fields, **changes})


def sample_set(digest: str) -> SampleSet:
    """A set with no samples, known by its digest."""
    return SampleSet(digest, (), (), {}, "nowhere", lambda _: iter(()))


@dataclass
class Fakes:
    """The stages, what they did, and knobs to make them misbehave.

    Attributes:
        ran: names of the stages that did work, in order.
        figures: a gate's figure and bound; its threshold is 10, from below.
        trouble: raised by a stage instead of working.
    """

    folder: Path
    ran: list[str] = field(default_factory=list)
    figures: dict[str, tuple[float, float]] = field(default_factory=dict)
    trouble: dict[str, Callable[[], BaseException]] = field(default_factory=dict)
    fingerprint: str = "machine"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache")

    def job(self, **changes: Any) -> Job:
        return Job(
            recipe=recipe(**changes),
            target=HOST,
            base=self.folder,
            store=self.store,
            samples_of=lambda role: sample_set(f"samples of {role}"),
            fingerprint=lambda: self.fingerprint,
        )

    def run(self, selection: Selection = EVERYTHING, **changes: Any) -> runner.Result:
        self.ran.clear()
        self.out.mkdir(exist_ok=True)
        downloads = Downloads(self.folder / "downloads", self.folder, lambda _: None)
        job = self.job(**changes)
        log = self.folder / "log"
        return runner.Runner(job, selection, self.out, Quiet(), downloads, log).run()

    def status(self, result: runner.Result) -> dict[str, str]:
        return {outcome.stage.name: outcome.status for outcome in result.outcomes}

    def published(self) -> set[str]:
        return {p.relative_to(self.out).as_posix() for p in self.out.rglob("*") if p.is_file()}

    def work(self, name: str, inputs: Mapping[str, Artifact], made: Context) -> Product:
        self.ran.append(name)
        (made.work / "half").write_text("left by a stage")
        if name in self.trouble:
            raise self.trouble[name]()
        path = made.work / made.file_name
        if name.startswith("gate_"):
            value, bound = self.figures.get(name, (11.0, 10.5))
            document = evidence(
                [Check("figure", value, bound, ">=", 10.0, "dB", 8)],
                target="host",
                runtime="none",
                provenance="measured",
                figures={"figure": value},
                hint=f"mend {name}",
            )
            path.write_text(json.dumps(document))
            return Product("verdict", path, evidence=document)
        text = f"{name} of {' '.join(a.sha256[:8] for a in inputs.values())}\n"
        if name == "seal":
            pack({"manifest.json": text.encode(), "models/m": b"model"}, path)
            return Product("bundle", path, evidence={"summary": "sealed"})
        path.write_text(text)
        return Product("onnx", path, evidence={"summary": f"{name} done"})

    def registry(self) -> Registry[Stage]:
        found: Registry[Stage] = Registry("fake_stages")

        def add(name: str, suffix: str, **declared: Any) -> None:
            def run(inputs: Mapping[str, Artifact], _: Recipe, context: Context) -> Product:
                return self.work(name, inputs, context)

            file_name = f"{{name}}_{name}{suffix}" if name != "seal" else "{name}.bundle.tar"
            found.add(Stage(name, f"does {name}", run, file_name, **declared), name)

        add("alpha", ".onnx", sections=("export",))
        add("beta", ".onnx", inputs=("alpha",), sections=("fuse",), samples=("evaluation",))
        add("gate_one", ".json", inputs=("beta",), sections=("gates.memory",), gate=True)
        add(
            "gate_two",
            ".json",
            inputs=("beta",),
            gate=True,
            measures=True,
            target_fields=("threads",),
        )
        add("seal", "", inputs=("alpha", "beta"), after=("gate_one", "gate_two"))
        found._discovered = True
        return found


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """The fake stages in place of the real ones."""
    made = Fakes(tmp_path)
    registry = made.registry()
    for module in (plan, runner):
        monkeypatch.setattr(module, "STAGES", registry)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "recipe.yaml").write_text(TEXT)
    np.savez(tmp_path / "data.npz", x=np.ones((4, 2), np.float32))
    return made


__all__ = ["Fakes", "fakes", "recipe", "run_recipe", "TEXT", "HOST"]
