"""edgefuse memory, from the words to the table, the JSON and the picture."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import yaml
from command import Ended, edgefuse
from memory.nets import mobile
from onnx import TensorProto, helper

from edgefuse.memory.arenas.tflite_micro import predicted_head
from edgefuse.tflite.read import parse_model

NETS = """
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(8, 32, 1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.act = nn.ReLU6()
        self.narrow = nn.Conv2d(32, 8, 1)

    def forward(self, x):
        return x + self.narrow(self.act(self.norm(self.wide(x))))


def net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), Block(), Block(), Block(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An int8 file, and a torch recipe with a cache of its own."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "mobile.tflite").write_bytes(mobile((64, 96)))
    (folder / "users_memory_nets.py").write_text(NETS)
    random = np.random.default_rng(0)
    np.savez(folder / "samples.npz", image=random.normal(size=(8, 3, 16, 16)).astype(np.float32))
    document = {
        "schema": 1,
        "name": "tiny",
        "model": {
            "torch": {"callable": "users_memory_nets:net", "weights": "random"},
            "inputs": [{"name": "image", "shape": [1, 3, 16, 16]}],
            "outputs": ["logits"],
        },
        "data": {role: {"arrays": "samples.npz"} for role in ("calibration", "evaluation")},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


@pytest.fixture(autouse=True)
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(folder / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _document(ended: Ended) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ended.out)
    return found


def _onnx(path: Path, size: int | str = 8, *, cyclic: bool = False) -> Path:
    """x -> Relu -> Relu -> y; in a cycle, the first reads what the second makes."""
    shape = [1, 4, size, size]
    first = "b" if cyclic else "x"
    nodes = [
        helper.make_node("Relu", [first], ["a"], "one"),
        helper.make_node("Relu", ["a"], ["b"], "two"),
        helper.make_node("Relu", ["b"], ["y"], "three"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_tflite_file_as_json(folder: Path) -> None:
    ended = edgefuse("memory", "mobile.tflite", "--json", "--memory", "64KiB")
    assert ended.code == 0 and not ended.messages
    document = _document(ended)
    assert (document["schema"], document["source"], document["batch"]) == (1, "mobile.tflite", 1)
    head = predicted_head(parse_model((folder / "mobile.tflite").read_bytes()))
    now = document["arenas"][document["now"]]
    assert (now["what"], now["owner"]) == ("as it is", "tflite-micro")
    assert now["arena_bytes"] == head.arena_bytes
    assert now["bound_bytes"] == now["peak_bytes"] == head.bound_bytes
    assert now["proven"] is (head.arena_bytes == head.bound_bytes)
    assert now["peak_operator"] == head.steps[head.peak_step]
    assert now["at_peak"] == [b.name for b in head.alive_at(head.peak_step)]
    ends = [b["offset_bytes"] + b["size_bytes"] for b in now["buffers"]]
    assert max(ends) == now["arena_bytes"] and now["operators"] == len(now["steps"])
    assert {a["owner"] for a in document["arenas"]} == {"tflite-micro", "LiteRT"}


def test_each_technique_is_tried_by_itself() -> None:
    document = _document(edgefuse("memory", "mobile.tflite", "--json"))
    rows = {row["name"]: row for row in document["techniques"]}
    assert list(rows) == ["padding, turned", "padding, wider kernels", "order", "tiles"]
    before = document["arenas"][document["now"]]["arena_bytes"]
    for row in rows.values():
        assert row["applies"] is not bool(row["why_not"])
        assert row["arena_bytes"] == before - row["saved_bytes"]
        assert row["applies"] or (row["arena_bytes"], row["extra_multiply_adds"]) == (before, 0)
    turned, wider = rows["padding, turned"], rows["padding, wider kernels"]
    assert turned["extra_multiply_adds"] == 0 and "REVERSE_V2" in turned["did"]
    assert wider["applies"] is False or wider["extra_share"] > 0
    assert rows["tiles"]["saved_bytes"] > 0 and rows["tiles"]["arena_bytes"] <= before * 3 // 4
    assert rows["order"]["why_not"] == "none needs less memory"


def test_the_table_and_the_picture() -> None:
    ended = edgefuse("memory", "mobile.tflite", "--memory", "1MiB")
    assert ended.code == 0, ended.err
    lines = ended.out.rstrip().splitlines()
    assert max(map(len, lines)) <= 100
    assert " ".join(lines[0].split()) == "arena of planned by operators arena bound smallest"
    assert "the peak of as it is (tflite-micro):" in ended.out
    assert "largest batch in 1.00 MiB: " in ended.out
    assert lines[-1] == "picture: build/mobile/memory/memory.svg"
    svg = Path("build/mobile/memory/memory.svg").read_text()
    heads = [t for t in ElementTree.fromstring(svg).iter() if t.attrib.get("class") == "head"]
    titles = [str(t.text) for t in heads]
    assert titles[0] == "as it is" and "with tiles" in titles
    assert edgefuse("memory", "mobile.tflite", "-q", "--svg", "at/here.svg").code == 0
    assert Path("at/here.svg").read_text() == svg


def test_the_largest_batch_scales_the_plan() -> None:
    document = _document(edgefuse("memory", "mobile.tflite", "--json", "--memory", "100000"))
    largest = document["largest_batch"]
    assert largest["batch"] == 100_000 // largest["arena_bytes"] >= 1
    assert largest["arena_bytes"] == document["arenas"][document["now"]]["arena_bytes"]
    assert _document(edgefuse("memory", "mobile.tflite", "--json"))["largest_batch"] is None


def test_what_a_recipe_with_that_goal_would_reach_is_tried_and_the_hint_holds(folder: Path) -> None:
    """Turned padding and tiles together reach less than each alone."""
    (folder / "small.tflite").write_bytes(mobile())
    ended = edgefuse("memory", "small.tflite", "--json", "--memory", "100")
    document = _document(ended)
    least = document["largest_batch"]["least_bytes"]
    assert ended.code == 1 and f"give --memory of at least {least} bytes" in ended.err
    for memory_bytes, code in ((least, 0), (least - 1, 1)):
        ended = edgefuse("memory", "small.tflite", "--json", "--memory", memory_bytes)
        assert ended.code == code
        document = _document(ended)
        assert document["largest_batch"]["least_bytes"] == least
        applied = [row["arena_bytes"] for row in document["techniques"] if row["applies"]]
        assert (min(applied) <= memory_bytes) is (code == 0)
        assert document["techniques"][-1]["name"] == "as the recipe would"


def test_the_target_says_whose_arena_counts() -> None:
    document = _document(edgefuse("memory", "mobile.tflite", "--json", "--target", "host"))
    assert document["target"] == "host"
    assert document["arenas"][document["now"]]["owner"] == "LiteRT"


def test_an_onnx_file_unfused_and_fused(tmp_path: Path) -> None:
    document = _document(edgefuse("memory", _onnx(tmp_path / "chain.onnx"), "--json"))
    assert [(a["what"], a["owner"]) for a in document["arenas"]] == [
        ("unfused", "edgefuse"),
        ("fused", "edgefuse"),
    ]
    assert all(a["proven"] and a["arena_bytes"] == a["bound_bytes"] for a in document["arenas"])
    assert document["techniques"] == [] and document["batch"] == 1


def test_a_recipe_from_unfused_to_int8() -> None:
    document = _document(edgefuse("memory", "tiny.yaml", "--json"))
    whats = [a["what"] for a in document["arenas"]]
    assert whats == ["unfused", "fused", "int8", "int8"]
    unfused, fused = document["arenas"][:2]
    assert fused["operators"] < unfused["operators"]
    assert fused["arena_bytes"] < unfused["arena_bytes"]
    now = document["arenas"][document["now"]]
    modules = {b["module"] for b in now["buffers"] if b["name"] in now["at_peak"]}
    assert "0" in modules  # the first convolution's result, by its torch module
    assert Path("build/tiny/memory/memory.svg").is_file()


def _budget_rows(monkeypatch: pytest.MonkeyPatch, *words: str) -> Ended:
    from edgefuse.memory import remat

    quick = functools.partial(remat.compare_step, compiled=False)
    monkeypatch.setattr(remat, "compare_step", quick)
    return edgefuse("memory", "tiny.yaml", "--training", *words)


def test_a_training_step_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = _budget_rows(monkeypatch, "--budget", "90%", "--json")
    assert ended.code == 0, ended.err
    document = _document(ended)
    rows = {row["name"]: row for row in document["rows"]}
    assert set(rows) == {"eager", "checkpoint each block", "edgefuse 90%"}
    eager, ours = rows["eager"], rows["edgefuse 90%"]
    assert 0 < ours["peak_bytes"] <= ours["budget_bytes"] <= 0.9 * eager["peak_bytes"] + 1
    assert ours["time_ms"] > 0 and ours["recomputed"]
    assert document["batch"] == 8


def test_a_budget_below_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = _budget_rows(monkeypatch, "--budget", "1KiB")
    assert ended.code == 1 and len(ended.messages) == 1
    assert "the least reachable is" in ended.err and "hint: give a larger budget" in ended.err
    assert ended.out.splitlines()[0].split()[:3] == ["a", "training", "step"]
    assert "refused: " in ended.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing.tflite",), 2, "there is no file nothing.tflite"),
        (("samples.npz",), 2, "neither a recipe (.yaml) nor a model (.onnx, .tflite)"),
        (("mobile.tflite", "--set", "name=x"), 2, "--set needs a recipe"),
        (("mobile.tflite", "--memory", "much"), 2, "--memory 'much' is no size"),
        (("mobile.tflite", "--memory", "0"), 2, "is not between 1 byte and 2^63 - 1"),
        (("mobile.tflite", "--memory", "9223372036854775808"), 2, "2^63 - 1"),
        (("mobile.tflite", "--memory", "100"), 1, "100 bytes of memory hold no batch"),
        (("mobile.tflite", "--target", "nowhere"), 2, "nowhere"),
        (("mobile.tflite", "--training"), 2, "has no torch model to train"),
        (("mobile.tflite", "--budget", "40%"), 2, "--budget is of a training step"),
        (("tiny.yaml", "--training", "--memory", "1MiB"), 2, "--training knows no --memory"),
        (("mobile.tflite", "--svg", "mobile.tflite"), 2, "is no name of an SVG picture"),
        (("mobile.tflite", "--svg", "/dev/full"), 2, "is no name of an SVG picture"),
        (("mobile.tflite", "--svg", "folder.svg"), 2, "is there, and no file"),
        (("tiny.yaml", "--training", "--budget", "140%"), 2, "no share to keep to"),
    ],
)
def test_bad_words_get_one_message(words: tuple[str, ...], code: int, said: str) -> None:
    Path("folder.svg").mkdir(exist_ok=True)
    ended = edgefuse("memory", *words)
    assert (ended.code, len(ended.messages)) == (code, 1), ended.err
    assert said in ended.err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dynamic", "has a shape known only at run time"),
        ("negative", "has a shape known only at run time"),
        ("zero", "has no elements"),
        ("huge", "is larger than any memory"),
        ("cycle", ""),
        ("garbage", "not a valid ONNX model"),
    ],
)
def test_onnx_that_cannot_be_planned_gets_one_message(kind: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    if kind == "garbage":
        path.write_bytes(b"\x08garbage" * 20)
    else:
        sizes: dict[str, int | str] = {"dynamic": "n", "negative": -1, "zero": 0, "huge": 1 << 31}
        _onnx(path, sizes.get(kind, 8), cyclic=kind == "cycle")
    ended = edgefuse("memory", path)
    assert (ended.code, len(ended.messages)) == (3, 1), ended.err
    assert said in ended.err and "hint: " in ended.err
    assert not Path("build/bad").exists()


def test_a_tflite_file_that_is_none_gets_one_message(tmp_path: Path) -> None:
    path = tmp_path / "bad.tflite"
    path.write_bytes(b"TFL3 or not, this is no model")
    ended = edgefuse("memory", path, "--json")
    assert (ended.code, len(ended.messages)) == (3, 1)
    assert json.loads(ended.out)["exit_code"] == 3 and "not a .tflite file" in ended.err


def test_a_recipe_without_a_torch_model_does_not_train(tmp_path: Path) -> None:
    document = yaml.safe_load(Path("tiny.yaml").read_text())
    document["model"] = {
        "onnx": {"path": "chain.onnx"},
        "inputs": [{"name": "x", "shape": [1, 4, 8, 8]}],
        "outputs": ["y"],
    }
    _onnx(tmp_path / "chain.onnx")
    (tmp_path / "chained.yaml").write_text(yaml.safe_dump({**document, "name": "chained"}))
    ended = edgefuse("memory", tmp_path / "chained.yaml", "--training")
    assert (ended.code, len(ended.messages)) == (2, 1), ended.err
    assert "recipe 'chained' has no torch model to train: its source is onnx" in ended.err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("x.argmax(1)", "no output is a floating-point tensor"),
        ("None", "no output is a floating-point tensor"),
        ("{}['none']", "the model does not run on 8 samples: KeyError"),
        ("exit(3)", "the model does not run on 8 samples: SystemExit"),
    ],
)
def test_a_model_that_cannot_take_a_step(answer: str, said: str, tmp_path: Path) -> None:
    name = f"users_{abs(hash(answer))}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\nclass Net(torch.nn.Sequential):\n    def forward(self, x):\n"
        f"        x = super().forward(x)\n        return {answer}\n"
        "def net():\n    return Net(torch.nn.Conv2d(3, 2, 1), torch.nn.ReLU())\n"
    )
    document = yaml.safe_load(Path("tiny.yaml").read_text())
    document["model"]["torch"] = {"callable": f"{name}:net", "weights": "random"}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(document))
    ended = edgefuse("memory", tmp_path / "odd.yaml", "--training")
    assert (ended.code, len(ended.messages)) == (3, 1), ended.err
    assert said in ended.err and "hint: " in ended.err and f"{name}:net" in ended.err


def test_onnx_is_still_onnx() -> None:
    """The chain that these tests build is a model that the checker takes."""
    onnx.checker.check_model(onnx.load(str(_onnx(Path("chain.onnx")))))
