"""edgefuse blame, from the words to the files, on a tiny model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases.tflite_file import conv_file
from command import Ended, edgefuse
from quant.blame.planted import Fault, far_apart

from .tiny import INPUTS, NETS, written


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny torch recipe with a cache of its own."""
    folder = tmp_path_factory.mktemp("blame")
    (folder / "users_blame_nets.py").write_text(NETS)
    random = np.random.default_rng(0)
    np.savez(folder / "samples.npz", image=random.normal(size=(24, 3, 16, 16)).astype(np.float32))
    torch = {"callable": "users_blame_nets:net", "weights": "random"}
    return written(folder, "tiny", {"torch": torch, "inputs": INPUTS, "outputs": ["logits"]})


@pytest.fixture(autouse=True)
def place(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(recipe.parent / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def ran(recipe: Path) -> tuple[Ended, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(recipe.parent)
        patch.setenv("EDGEFUSE_CACHE", str(recipe.parent / "cache"))
        ended = edgefuse("blame", recipe)
    assert ended.code == 0, ended.err
    return ended, json.loads((recipe.parent / "build/tiny/blame/blame.json").read_text())


def _int8_file(recipe: Path, out: Path) -> Path:
    """The recipe's own int8 file, out of its cache."""
    ended = edgefuse("run", recipe, "--until", "quantize", "--out", out)
    assert ended.code == 0, ended.err
    return out / "tiny_full_integer_quant.tflite"


def test_the_document(ran: tuple[Ended, dict[str, Any]]) -> None:
    document = ran[1]
    assert (document["schema"], document["recipe"], document["samples"]) == (1, "tiny", 24)
    assert document["classifier"] and document["ranked_by"] == "noise_share_percent"
    assert document["command"].startswith("edgefuse blame ")
    layers = document["layers"]
    assert [row["rank"] for row in layers] == list(range(1, len(layers) + 1))
    modules = {row["operator"]: row["modules"] for row in layers}
    convolutions = [modules[name] for name in sorted(modules) if name.startswith("CONV_2D")]
    assert convolutions == [["0"], ["3"]]
    assert [m for name, m in modules.items() if name.startswith("FULLY_CONNECTED")] == [["8"]]
    assert modules["INPUT"] == []
    assert 10 < document["full"]["sqnr_db"] < 60
    assert document["left_float"] == document["strangers"] == []
    assert not any("module names" in warning for warning in document["warnings"])


def test_the_table_and_the_page_show_every_layer(
    recipe: Path, ran: tuple[Ended, dict[str, Any]]
) -> None:
    ended, document = ran
    lines = ended.out.splitlines()
    assert lines[0].split()[:4] == ["layer", "operator", "of", "noise"]
    ranked = [row["operator"] for row in document["layers"]]
    assert [line.split()[1] for line in lines[1 : 1 + len(ranked)]] == ranked
    assert max(map(len, lines)) <= 100 and "nothing suspicious found" in ended.out
    assert "one of 24 samples is 4.2" in " ".join(ended.out.split())
    page = (recipe.parent / "build/tiny/blame/blame.html").read_text()
    assert page.count('<svg class="chart"') == 2
    assert all(f">{name.replace('_', '_<wbr>')}</code>" in page for name in ranked)
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    assert shlex.join(["edgefuse", "blame", str(recipe)]) in page


def test_json_on_stdout_and_fewer_samples(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "there"
    ended = edgefuse("blame", recipe, "--samples", "5", "--json", "--out", out)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document == json.loads((out / "blame.json").read_text())
    assert document["samples"] == 5


def test_another_int8_file_with_a_planted_fault(
    recipe: Path, ran: tuple[Ended, dict[str, Any]], tmp_path: Path
) -> None:
    given = _int8_file(recipe, tmp_path / "run").rename(tmp_path / "theirs.tflite")
    fault = Fault(given)
    op = fault.operator("CONV_2D", 1)
    fault.swap_scales(op, *far_apart(fault.model, op))
    ended = edgefuse("blame", recipe, "--int8", given, "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    document = json.loads((tmp_path / "out/blame.json").read_text())
    first = document["layers"][0]
    assert (first["operator"], first["modules"]) == (op.label, ["3"])
    assert "weight scale does not fit its weights" in first["suspicions"][0]
    assert f"{op.label} (3): weight scale does not fit" in ended.out
    assert document["int8_file"] == str(given)


def test_a_tflite_source_has_no_modules(recipe: Path, tmp_path: Path) -> None:
    (recipe.parent / "conv.tflite").write_bytes(conv_file(16))
    random = np.random.default_rng(0)
    samples = random.normal(size=(4, 16, 16, 3)).astype(np.float32)
    np.savez(recipe.parent / "conv.npz", **{"x/in:0": samples})
    model = {
        "tflite": {"path": "conv.tflite"},
        "inputs": [{"name": "x/in:0", "shape": [1, 16, 16, 3]}],
    }
    other = written(recipe.parent, "conv", model)
    other.write_text(other.read_text().replace("samples.npz", "conv.npz"))
    ended = edgefuse("blame", other, "--json", "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert [row["modules"] for row in document["layers"]] == [[], []]
    assert not document["classifier"]
    assert document["full"]["agreement_loss_points"] is None
    ended = edgefuse("blame", other, "--out", tmp_path / "out")
    assert "it is no classifier" in " ".join(ended.out.split())


def test_a_file_of_another_model_is_refused(
    recipe: Path, ran: tuple[Ended, dict[str, Any]], tmp_path: Path
) -> None:
    other = tmp_path / "other.tflite"
    other.write_bytes(conv_file(8))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/blame.json").write_text("{}")
    ended = edgefuse("blame", recipe, "--int8", other, "--out", tmp_path / "out")
    assert ended.code == 3 and len(ended.messages) == 1
    assert "have no twin in the float file" in ended.err and str(other) in ended.err
    assert not (tmp_path / "out/blame.json").exists()


def test_an_equalised_file_is_compared_with_the_equalised_float_file(
    recipe: Path, ran: tuple[Ended, dict[str, Any]], tmp_path: Path
) -> None:
    """Its inner tensors are scaled channel by channel: beside convert's they look all wrong."""
    equalised = ("--set", "quantize.equalize=true")
    ended = edgefuse("blame", recipe, "--json", "--out", tmp_path, *equalised)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["float_stage"] == "equalize" and ran[1]["float_stage"] == "convert"
    levels = [row["accumulated"]["sqnr_db"] for row in document["layers"]]
    assert min(levels) > 20 and document["full"]["sqnr_db"] > 20
    ended = edgefuse("run", recipe, "--until", "quantize", "--out", tmp_path / "run", *equalised)
    assert ended.code == 0, ended.err
    given = tmp_path / "run/tiny_full_integer_quant.tflite"
    ended = edgefuse("blame", recipe, "--json", "--out", tmp_path, "--int8", given)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["float_stage"] == "convert"
    assert min(row["accumulated"]["sqnr_db"] for row in document["layers"]) < 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--int8", "nowhere.tflite"), "there is no such file"),
        (("--samples", "0"), "--samples"),
        (("--out", "a_file"), "is a file"),
        (("--set", "quantize.rangs=mse"), "rangs"),
        (("--set", "quantize.format=float16"), "activations of format float16 stay float"),
    ],
)
def test_bad_words(recipe: Path, words: tuple[str, ...], says: str) -> None:
    Path("a_file").write_text("")
    ended = edgefuse("blame", recipe, *words)
    assert ended.code == 2 and says in ended.err


def test_equal_words_equal_figures(recipe: Path, ran: tuple[Ended, dict[str, Any]]) -> None:
    again = edgefuse("blame", recipe, "--json", "--out", recipe.parent / "again")
    assert again.code == 0, again.err
    assert json.loads(again.out)["layers"] == ran[1]["layers"]
