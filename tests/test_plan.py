"""Plans: which stages, in which order, cached or not and why; nothing is changed by asking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import edgefuse
from fake_stages import EVERYTHING, Fakes, fakes, recipe

from edgefuse.errors import UsageError
from edgefuse.plan import Selection, make_plan, stages_of

__all__ = ["fakes"]

ALL = ["alpha", "beta", "gate_one", "gate_two", "seal"]
GATES = {
    "accuracy": {"min_sqnr_db": 10},
    "memory": {"max_arena_bytes": 1},
    "latency": {"max_ratio_to_float": 1},
}


def rows(fakes: Fakes, selection: Selection = EVERYTHING, **changes: object) -> dict[str, str]:
    return {s.stage.name: s.status for s in make_plan(fakes.job(**changes), selection)}


def test_an_empty_store(fakes: Fakes) -> None:
    steps = make_plan(fakes.job())
    assert [s.stage.name for s in steps] == ALL
    assert [s.status for s in steps] == ["run", "depends", "depends", "depends", "depends"]
    assert [s.why for s in steps][:2] == ["never run", "on the result of alpha"]
    assert not fakes.store.root.exists(), "planning changes nothing"


def test_after_a_run(fakes: Fakes) -> None:
    fakes.run()
    assert set(rows(fakes).values()) == {"cached"}
    changed = make_plan(fakes.job(fuse={"parity_samples": 3}))
    assert [s.status for s in changed] == ["cached", "run", "depends", "depends", "depends"]
    assert changed[1].why == "changed: config.fuse.parity_samples"
    assert set(rows(fakes).values()) == {"cached"}


def test_forced_stages(fakes: Fakes) -> None:
    fakes.run()
    measured = make_plan(fakes.job(), Selection(measure=True))
    assert [s.status for s in measured] == ["cached", "cached", "cached", "run", "cached"]
    assert measured[3].why == "asked for" and measured[3].forced
    assert rows(fakes, Selection(start="beta")) == {
        "alpha": "cached", "beta": "run", "gate_one": "depends", "gate_two": "depends",
        "seal": "depends",
    }  # fmt: skip


def test_a_damaged_entry_is_to_run(fakes: Fakes) -> None:
    artifact = fakes.run().outcomes[1].artifact
    assert artifact is not None
    fakes.store._entry_path("beta", artifact.key).write_text("{}")
    step = make_plan(fakes.job())[1]
    assert (step.status, step.why) == ("run", "its stored result is damaged")


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(until="alpha"), ["alpha"]),
        (Selection(until="gate_two"), ["alpha", "beta", "gate_two"]),
        (Selection(until="seal"), ALL),
    ],
)
def test_until_takes_what_it_needs_and_no_more(fakes: Fakes, selection, names) -> None:
    assert [s.name for s in stages_of(recipe(), selection)] == names


@pytest.mark.parametrize(
    ("selection", "said", "hint"),
    [
        (Selection(until="bta"), "--until bta", "did you mean beta?"),
        (Selection(start="xyzzy"), "--from xyzzy", "stages: alpha, beta"),
        (Selection(until="alpha", start="beta"), "--from beta lies after --until alpha", ""),
    ],
)
def test_unknown_stages(fakes: Fakes, selection, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        stages_of(recipe(), selection)
    assert said in caught.value.message and hint in caught.value.hint


def test_the_real_stages_apply_by_the_recipe() -> None:
    def names(**changes: object) -> list[str]:
        return [s.name for s in stages_of(recipe(**changes))]

    ends = ["convert", "quantize", "trace", "check"]
    assert names() == ["export", "fuse", *ends, "package"]
    gates = ["gate_accuracy", "gate_latency", "gate_memory"]
    assert names(gates=GATES) == ["export", "fuse", *ends, *gates, "package"]
    model = {"tflite": {"path": "m"}, "inputs": [{"name": "x", "shape": [1, 2]}]}
    assert names(model=model) == ["convert", "quantize", "check", "package"]


def test_weights_that_the_callable_loads_are_never_cached() -> None:
    torch = {"callable": "m:f", "weights": "callable"}
    model = {"torch": torch, "inputs": [{"name": "x", "shape": [1, 2]}], "outputs": ["y"]}
    export = stages_of(recipe(model=model))[0]
    assert not export.cacheable(recipe(model=model)) and export.cacheable(recipe())


def test_plan_and_why_on_the_command_line(fakes: Fakes, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    ended = edgefuse("plan", path)
    assert ended.code == 0 and "never run" in ended.out and not ended.err
    assert edgefuse("run", path, "--out", fakes.out, "-q").code == 0
    ended = edgefuse("plan", path)
    assert "everything is cached" in ended.out
    ended = edgefuse("plan", path, "--set", "fuse.parity_samples=3", "--json")
    listed = json.loads(ended.out)
    assert [r["stage"] for r in listed] == ALL and listed[1]["status"] == "run"
    ended = edgefuse("why", path, "--set", "fuse.parity_samples=3")
    assert "config.fuse.parity_samples: 2 -> 3" in ended.out
    ended = edgefuse("why", path, "--set", "fuse.parity_samples=3", "--json")
    assert json.loads(ended.out)[1]["changes"] == [
        {"what": "config.fuse.parity_samples", "was": 2, "is": 3}
    ]
    assert fakes.ran == ALL


def test_show_tells_the_lineage(fakes: Fakes, tmp_path: Path) -> None:
    edgefuse("run", tmp_path / "recipe.yaml", "--out", fakes.out, "-q")
    ended = edgefuse("show", fakes.out / "tiny_beta.onnx")
    assert ended.code == 0 and ended.out.startswith("beta onnx ")
    assert "\n  alpha onnx " in ended.out and "with python" in ended.out
    tree = json.loads(edgefuse("show", fakes.out / "tiny.bundle.tar", "--json").out)
    assert set(tree["parents"]) == {"alpha", "beta"}
    sha256 = tree["parents"]["beta"]["sha256"]
    assert edgefuse("show", sha256[:10]).out.startswith("beta onnx ")
    (fakes.out / "tiny_beta.onnx").write_text("changed")
    ended = edgefuse("show", fakes.out / "tiny_beta.onnx")
    assert (
        ended.code == 2
        and "has no record of" in ended.err
        and "hint: the file was changed" in (ended.err)
    )
    assert edgefuse("show", "nothing").code == 2


def test_show_tells_the_lineage_in_the_recipe_that_published_the_file(
    fakes: Fakes, tmp_path: Path
) -> None:
    """Two recipes may make the same bytes in other ways."""
    edgefuse("run", tmp_path / "recipe.yaml", "--out", fakes.out, "-q")
    text = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "other.yaml").write_text(text.replace("name: tiny", "name: tiny_other"))
    edgefuse("run", tmp_path / "other.yaml", "--out", tmp_path / "other", "-q")
    for out, name in ((fakes.out, "tiny"), (tmp_path / "other", "tiny_other")):
        tree = json.loads(edgefuse("show", out / f"{name}_beta.onnx", "--json").out)
        assert [tree["recipe"], tree["parents"]["alpha"]["recipe"]] == [name, name]
