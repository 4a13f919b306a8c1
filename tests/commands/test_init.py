"""init: the recipe it writes is valid, and says of the model what the model says of itself."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from command import edgefuse
from tflite.tiny import float_file, weights

from edgefuse.recipe import Recipe
from edgefuse.yaml_file import load


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*words: str) -> Recipe:
    ended = edgefuse("init", *words)
    assert ended.code == 0, ended.err
    assert "complete it: " in ended.out and "edgefuse run" in ended.out
    out = words[words.index("--out") + 1] if "--out" in words else "recipe.yaml"
    return load(Path(out), Recipe)


def onnx_file(name: str, inputs: str, outputs: str = "float[1,3] y") -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({outputs}) {{ y = Relu(x) }}'
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(onnx.parser.parse_model(text).SerializeToString())


def test_a_torch_model() -> None:
    recipe = write("mypackage.models:make_net", "--shape", "1,3,96,128")
    assert recipe.name == "make_net" and recipe.model.torch is not None
    assert recipe.model.torch.callable == "mypackage.models:make_net"
    assert recipe.model.inputs[0].shape == (1, 3, 96, 128)
    assert recipe.preprocess is not None and recipe.preprocess.crop == (96, 128)
    assert recipe.preprocess.resize == 110 and recipe.preprocess.layout == "NCHW"
    assert recipe.data.calibration.split and recipe.data.evaluation.split
    assert recipe.gates.accuracy and recipe.gates.memory and recipe.gates.latency
    assert not recipe.release


def test_what_is_only_suggested_is_valid_too() -> None:
    write("mypackage.models:make_net", "--shape", "1,3,96,128")
    text = Path("recipe.yaml").read_text()
    for key in ("equalize", "rounding", "goal"):
        assert text.count(f"\n  # {key}: ") == 1
        text = text.replace(f"  # {key}: ", f"  {key}: ")
    own = "\n  validation: {folder: pictures, split: {seed: 0, first: 50}}\n  calibration:"
    Path("recipe.yaml").write_text(text.replace("\n  calibration:", own))
    recipe = load(Path("recipe.yaml"), Recipe)
    assert recipe.quantize.equalize and recipe.quantize.rounding == "gptq"
    assert recipe.quantize.goal is not None and recipe.quantize.goal.min_agreement == 0.97


def test_an_onnx_model_of_pictures() -> None:
    onnx_file("models/net-1.onnx", "float[N,224,224,3] x")
    recipe = write("models/net-1.onnx", "--out", "recipes/net.yaml")
    assert recipe.name == "net-1" and recipe.model.onnx is not None
    assert Path(recipe.model.onnx.path).is_absolute()
    assert recipe.model.inputs[0].shape == (1, 224, 224, 3) and recipe.model.outputs == ("y",)
    assert recipe.preprocess is not None and recipe.preprocess.layout == "NHWC"


def test_axes_without_a_fixed_size_are_named() -> None:
    onnx_file("m.onnx", "float[N,4,?] x, float[1,5] z")
    ended = edgefuse("init", "m.onnx")
    said = "axis 0 ('N'), axis 2"
    assert f"input 'x' has no fixed size in the model at {said}: written as 1" in ended.out
    assert "input 'z'" not in ended.out
    (line,) = [t for t in Path("recipe.yaml").read_text().splitlines() if "written as 1" in t]
    assert line.endswith(f"shape: [1, 4, 1]}}   # no fixed size in the model, written as 1: {said}")
    assert load(Path("recipe.yaml"), Recipe).model.inputs[0].shape == (1, 4, 1)


def test_an_onnx_model_of_arrays() -> None:
    onnx_file("m.onnx", "float[1,4] x, float[2,3,5] z")
    recipe = write("m.onnx")
    assert recipe.model.onnx is not None and recipe.model.onnx.path == "m.onnx"
    assert [i.name for i in recipe.model.inputs] == ["x", "z"]
    assert recipe.preprocess is None and recipe.data.calibration.arrays


def test_a_tflite_model() -> None:
    Path("m.tflite").write_bytes(float_file(weights()))
    recipe = write("m.tflite")
    assert recipe.model.tflite is not None and recipe.model.outputs == ("logits",)
    assert recipe.model.inputs[0].name == "picture"
    assert recipe.model.inputs[0].shape == (1, 8, 8, 3)
    assert recipe.preprocess is not None and recipe.preprocess.layout == "NHWC"


@pytest.mark.parametrize(
    ("file", "name"),
    [("123.onnx", "123"), ("null.onnx", "null"), ("1.0.onnx", "1.0"), ("on.onnx", "on"),
     ("-my net (2).onnx", "my_net__2_"), ("ä.onnx", "model"), ("x" * 90 + ".onnx", "x" * 64)],
)  # fmt: skip
def test_every_file_name_gives_a_valid_name(file: str, name: str) -> None:
    onnx_file(file, "float[1,4] x")
    assert write(f"./{file}").name == name


@pytest.mark.parametrize("name", ["no", "serving_default_x:0", "a'b", "a b", "true", "~", "a/b.c"])
def test_every_input_name_is_quoted_where_needed(name: str) -> None:
    onnx_file("m.onnx", "float[1,4] x")
    model = onnx.load("m.onnx")
    model.graph.input[0].name = name
    model.graph.output[0].name = f"{name}_out"
    onnx.save(model, "m.onnx")
    recipe = write("m.onnx")
    assert recipe.model.inputs[0].name == name and recipe.model.outputs == (f"{name}_out",)


def test_an_existing_file_is_kept_unless_forced() -> None:
    Path("recipe.yaml").write_text("mine")
    ended = edgefuse("init", "a.b:c")
    assert ended.code == 2 and "recipe.yaml exists" in ended.err and "--force" in ended.err
    assert Path("recipe.yaml").read_text() == "mine"
    assert write("a.b:c", "--force").name == "c"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["weights.pth"], "neither module:callable nor"),
        (["gone.onnx"], "no such file: gone.onnx"),
        (["bad.onnx"], "bad.onnx: not an ONNX file"),
        (["bad.tflite"], "bad.tflite"),
        (["a:b", "--shape", "1,3,x"], "--shape 1,3,x: expected positive sizes"),
        (["a:b", "--shape", "0,3"], "--shape 0,3"),
    ],
)
def test_refused(words: list[str], said: str) -> None:
    for name in ("bad.onnx", "bad.tflite"):
        Path(name).write_bytes(b"\x93 nothing of the kind")
    ended = edgefuse("init", *words)
    assert ended.code in (2, 3) and said in ended.err and len(ended.messages) == 1
    assert not Path("recipe.yaml").exists() and "internal" not in ended.err
