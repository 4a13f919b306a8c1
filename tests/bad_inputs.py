"""Bad inputs, each with the smallest way to make it: the rows of test_bad_inputs.py.

A row says what is wrong, how edgefuse ends, and what its one message holds; ``python
tests/bad_inputs.py`` prints them as a table, with the messages as they are.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bundle.beside import put_evidence
from command import Ended, edgefuse

Words = Sequence[str | Path]

NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.dense = torch.nn.Linear(4, width)

    def forward(self, x):
        return self.dense(x)

def make(width=3):
    return Net(width).eval()
"""
TORCH = """\
schema: 1
name: net
model:
  torch:
    callable: users_net:make
    weights: random
  inputs: [{name: x, shape: [1, 4]}]
  outputs: [y]
data:
  calibration: {arrays: data.npz}
  evaluation: {arrays: data.npz}
"""
ONNX = """\
schema: 1
name: net
model:
  onnx: {path: m.onnx}
  inputs: [{name: x, shape: [1, 4]}]
data:
  calibration: {arrays: data.npz}
  evaluation: {arrays: data.npz}
"""
PICTURES = """\
schema: 1
name: net
model:
  torch:
    callable: users_net:make
    weights: random
  inputs: [{name: x, shape: [1, 3, 8, 8]}]
  outputs: [y]
preprocess: {crop: [8, 8]}
data:
  calibration: {folder: pictures}
  evaluation: {folder: pictures}
"""
TEXT = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y)'
    "<float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> { y = MatMul(x, w) }"
)


@dataclass
class Place:
    """A folder with a recipe, its data and its output folder."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def cache(self) -> Path:
        return Path(os.environ["EDGEFUSE_CACHE"])

    def write(self, text: str, *edits: tuple[str, str]) -> Path:
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new, 1)
        self.recipe.write_text(text)
        return self.recipe

    def run(self, *words: str | Path) -> Words:
        return ["run", self.recipe, "--out", self.out, *words]

    def torch(self, *edits: tuple[str, str], net: str = NET, weights: Any = None) -> Words:
        """A torch recipe; ``weights`` go to w.pth as torch.save writes them."""
        (self.folder / "users_net.py").write_text(net)
        self.data()
        if weights is not None:
            import torch

            torch.save(weights, self.folder / "w.pth")
            edits = (*edits, ("weights: random", "weights: {path: w.pth}"))
        self.write(TORCH, *edits)
        return self.run()

    def onnx(self, model: Any, *edits: tuple[str, str]) -> Words:
        """An ONNX recipe of text, bytes or a ModelProto."""
        import onnx

        path = self.folder / "m.onnx"
        if isinstance(model, str):
            model = onnx.parser.parse_model(model)
        data = model if isinstance(model, bytes) else model.SerializeToString()
        path.write_bytes(data)
        self.data()
        self.write(ONNX, *edits)
        return self.run()

    def pictures(self, *edits: tuple[str, str], count: int = 8) -> Words:
        from PIL import Image

        folder = self.folder / "pictures"
        folder.mkdir()
        for index in range(count):
            pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"p{index}.png")
        (self.folder / "users_net.py").write_text(NET)
        self.write(PICTURES, *edits)
        return self.run()

    def data(self, **arrays: Any) -> None:
        x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
        np.savez(self.folder / "data.npz", **(arrays or {"x": x}))


def in_process(place: Place, words: Words) -> Ended:
    return edgefuse(*words)


@dataclass(frozen=True)
class Row:
    """One bad input.

    Attributes:
        what: the input, in words.
        build: makes it and returns the command line.
        code: the exit code.
        says: regular expressions that the message holds.
        act: runs the command line.
        hint: whether a remedy is told.
        made: files that finished stages may leave in the output folder.
    """

    what: str
    build: Callable[[Place], Words]
    code: int
    says: tuple[str, ...]
    act: Callable[[Place, Words], Ended] = in_process
    hint: bool = True
    made: tuple[str, ...] = field(default=())


ROWS: dict[str, Row] = {}


def row(
    code: int, *says: str, **more: Any
) -> Callable[[Callable[[Place], Words]], Callable[[Place], Words]]:
    """Add a row: the function's name names it, its docstring says what is wrong."""

    def add(build: Callable[[Place], Words]) -> Callable[[Place], Words]:
        what = (build.__doc__ or "").strip().rstrip(".")
        ROWS[build.__name__] = Row(what, build, code, says, **more)
        return build

    return add


# The command line and the recipe.


@row(2, r"recipe\.yaml:9: unknown key: sed", "did you mean 'seed'")
def unknown_key(p: Place) -> Words:
    """A key that recipes do not have."""
    return p.torch(("data:", "sed: 3\ndata:"))


@row(2, r"recipe\.yaml:9: seed: input should be a valid integer", "found: 'many'", hint=False)
def wrong_type(p: Place) -> Words:
    """Text where a number is due."""
    return p.torch(("data:", "seed: many\ndata:"))


@row(2, r"recipe\.yaml:3: key 'name' is given twice", hint=False)
def duplicate_key(p: Place) -> Words:
    """A key given twice."""
    return p.torch(("model:", "name: other\nmodel:"))


@row(2, r"recipe\.yaml:3: not valid YAML", hint=False)
def not_yaml(p: Place) -> Words:
    """A recipe that is not YAML."""
    return p.torch(("name: net", "name: [net"))


@row(2, r"no such file: .*recpe\.yaml", r"did you mean .*recipe\.yaml")
def no_recipe(p: Place) -> Words:
    """A recipe that does not exist."""
    p.torch()
    return ["run", p.folder / "recpe.yaml", "--out", p.out]


@row(2, r"recipe\.yaml:4: missing key: model\.torch\.weights", "keys here: arguments, callable")
def missing_key(p: Place) -> Words:
    """A required key left out."""
    return p.torch(("    weights: random\n", ""))


@row(2, "--set quantize.rnges=minmax: unknown key: quantize.rnges", "did you mean 'ranges'")
def bad_set(p: Place) -> Words:
    """--set with a misspelt key."""
    p.torch()
    return p.run("--set", "quantize.rnges=minmax")


@row(2, "--set seed: expected KEY.PATH=VALUE", hint=False)
def set_without_value(p: Place) -> Words:
    """--set without a value."""
    p.torch()
    return p.run("--set", "seed")


@row(2, "--until quantise: no such stage", "did you mean quantize", "stages: export, fuse")
def unknown_until(p: Place) -> Words:
    """--until with an unknown stage."""
    p.torch()
    return p.run("--until", "quantise")


@row(2, "--from fusee: no such stage", "did you mean fuse")
def unknown_from(p: Place) -> Words:
    """--from with an unknown stage."""
    p.torch()
    return p.run("--from", "fusee")


@row(2, "--from check lies after --until fuse", hint=False)
def from_after_until(p: Place) -> Words:
    """--from a stage that --until leaves out."""
    p.torch()
    return p.run("--from", "check", "--until", "fuse")


@row(2, r"recipe\.yaml:9: unknown target 'hots'", "did you mean 'host'", "targets: .*host")
def unknown_target(p: Place) -> Words:
    """A target that does not exist."""
    return p.torch(("data:", "target: hots\ndata:"))


@row(2, "--target: unknown target 'pi9'", "targets: .*host")
def unknown_target_option(p: Place) -> Words:
    """--target with an unknown name."""
    p.torch()
    return p.run("--target", "pi9")


@row(
    2,
    r"recipe\.yaml:9: fuse\.skip: no pass is called 'fold_batch_norm'",
    "did you mean fold_conv_batch_norm",
    hint=False,
)
def unknown_pass(p: Place) -> Words:
    """A fusion pass that does not exist, in fuse.skip."""
    return p.torch(("data:", "fuse: {skip: [fold_batch_norm]}\ndata:"))


@row(2, r"recipe\.yaml:6: model\.torch\.weights\.mirrors", r"not 'ftp://x/w\.pth'", hint=False)
def unknown_scheme(p: Place) -> Words:
    """A mirror of an unknown scheme."""
    blob = f"{{file: w.pth, sha256: {'a' * 64}, mirrors: ['ftp://x/w.pth']}}"
    return p.torch(("weights: random", f"weights: {blob}"))


@row(2, "random weights can never be released", "set release: false", hint=False)
def release_of_random_weights(p: Place) -> Words:
    """release: true on random weights."""
    return p.torch(("data:", "release: true\ndata:"))


@row(2, r"recipe\.yaml:9: shapes\.buckets: needs at least 1", hint=False)
def no_bucket(p: Place) -> Words:
    """shapes without a bucket."""
    return p.torch(("data:", "shapes: {buckets: []}\ndata:"))


@row(2, r"recipe\.yaml:9: shapes\.buckets\.1: a bucket is a batch greater than 0", hint=False)
def bucket_of_nothing(p: Place) -> Words:
    """A bucket of batch 0."""
    return p.torch(("data:", "shapes: {buckets: [1, 0]}\ndata:"))


@row(2, "shapes.buckets: 'batch 1' and 'x 1x4' are the same shapes: leave one out", hint=False)
def bucket_twice(p: Place) -> Words:
    """The same shapes twice, once as a batch and once by name."""
    return p.torch(("data:", "shapes: {buckets: [1, {x: [1, 4]}]}\ndata:"))


@row(2, r"none has the shapes of model\.inputs \(x \[1, 4\]\)", "add 1 to the buckets", hint=False)
def buckets_without_the_shipped_shape(p: Place) -> Words:
    """Buckets that leave out the shape that is shipped."""
    return p.torch(("data:", "shapes: {buckets: [2, 64]}\ndata:"))


@row(2, r"shapes\.buckets: no input is called 'xs'; did you mean x\?", hint=False)
def bucket_of_an_unknown_input(p: Place) -> Words:
    """A bucket for an input that the model does not have."""
    return p.torch(("data:", "shapes: {buckets: [1, {xs: [2, 4]}]}\ndata:"))


@row(
    2,
    r"recipe\.yaml:7: model\.inputs\.0\.shape: size 'N' must be an integer",
    "shapes: {buckets",
    hint=False,
)
def symbolic_size(p: Place) -> Words:
    """A symbolic batch in model.inputs."""
    return p.torch(("shape: [1, 4]", "shape: [N, 4]"))


@row(
    2,
    r"recipe\.yaml:7: model\.inputs\.0\.shape: size -1 must be an integer",
    "shapes: {buckets",
    hint=False,
)
def negative_size(p: Place) -> Words:
    """A batch of -1 in model.inputs."""
    return p.torch(("shape: [1, 4]", "shape: [-1, 4]"))


@row(
    2,
    r"recipe\.yaml:6: shapes\.buckets\.1: Reshape '.*' holds the exported shape as a constant: "
    r"it cannot make \[2, 2\] of \[3, 4\] \(x \[3, 4\] instead of \[1, 4\]\)",
    "leave the bucket out",
    made=("net.onnx", "net_fused.onnx"),
)
def bucket_that_the_graph_cannot_take(p: Place) -> Words:
    """A graph that holds the exported batch where it cannot be told from a size."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[2,2] y)'
        "<int64[2] to = {2,2}> { r = Relu(x) y = Reshape(r, to) }"
    )
    words = p.onnx(text, ("data:", "shapes: {buckets: [1, 3]}\ndata:"))
    return [*words, "--until", "group"]


@row(
    2,
    "batch 3: each row against the model at batch 1",
    "mixes the samples of a batch",
    made=("net.onnx", "net_fused.onnx"),
)
def bucket_of_a_model_that_mixes_samples(p: Place) -> Words:
    """A batch bucket of a model whose samples depend on each other."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y)'
        "{ s = Softmax <axis=0> (x) y = Add(s, x) }"
    )
    words = p.onnx(text, ("data:", "shapes: {buckets: [1, 3]}\ndata:"))
    return [*words, "--until", "group"]


@row(2, r"recipe\.yaml:9: gates\.accuracy: a gate without a threshold decides", hint=False)
def gate_without_threshold(p: Place) -> Words:
    """A gate without a threshold."""
    return p.torch(("data:", "gates: {accuracy: {resamples: 500}}\ndata:"))


@row(2, r"--out .*out is a file", "give a folder")
def out_is_a_file(p: Place) -> Words:
    """An output folder that is a file."""
    words = p.torch()
    p.out.write_text("mine")
    return words


@row(2, r"--out .* holds .*/net\.onnx, which the recipe reads", "give another folder")
def out_over_the_model(p: Place) -> Words:
    """An output folder where the model would be written over"""
    words = p.onnx(TEXT, ("m.onnx", "net.onnx"))
    (p.folder / "m.onnx").rename(p.folder / "net.onnx")
    return [*words[:-1], p.folder]


@row(2, "no recipe has release: true", "set it in those that are to ship")
def nothing_to_release(p: Place) -> Words:
    """A release of recipes that are not to be released."""
    p.torch()
    return ["release", p.recipe, "--out", p.folder / "dist"]


@row(2, "neither module:callable nor an .onnx or .tflite", "mypackage.models:make_model")
def init_of_nothing(p: Place) -> Words:
    """init with something that is no model."""
    return ["init", "weights.pth", "--out", p.folder / "new.yaml"]


# PyTorch models and weights.


@row(
    2,
    r"recipe\.yaml:6: model\.torch\.weights: no such file: .*w\.pth",
    "relative to the recipe's folder",
)
def missing_weights(p: Place) -> Words:
    """A weights file that does not exist."""
    return p.torch(("weights: random", "weights: {path: w.pth}"))


@row(3, r"w\.pth: SHA-256 is [0-9a-f]{64}, the recipe says a{64}", "the file changed")
def weights_of_another_hash(p: Place) -> Words:
    """Weights whose SHA-256 is not the recipe's."""
    p.torch(weights={"a": 1})
    p.write(TORCH, ("weights: random", f"weights: {{path: w.pth, sha256: {'a' * 64}}}"))
    return p.run()


@row(3, r"w\.pth: the weights do not fit users_net:make", r"has shape \(5, 4\)", "architecture")
def weights_of_another_shape(p: Place) -> Words:
    """Weights whose shapes are not the model's."""
    import torch

    return p.torch(weights={"dense.weight": torch.zeros(5, 4), "dense.bias": torch.zeros(5)})


@row(3, r"missing dense\.bias", "unexpected head", "architecture")
def weights_of_other_names(p: Place) -> Words:
    """Weights whose names are not the model's."""
    import torch

    return p.torch(weights={"dense.weight": torch.zeros(3, 4), "head": torch.zeros(5)})


class Harmful:
    """Unpickling this would leave a mark."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


@row(3, r"w\.pth: not a PyTorch state dict", "pickled code is never run")
def weights_with_code(p: Place) -> Words:
    """A pickle that runs code when loaded; it is not run."""
    p.torch(weights={"x": 1})
    (p.folder / "w.pth").write_bytes(pickle.dumps({"dense.weight": Harmful()}))
    return p.run()


@row(3, r"w\.pth: not a PyTorch state dict", "hint: save it with torch.save")
def weights_that_are_a_model(p: Place) -> Words:
    """A whole model saved instead of its state dict."""
    import torch

    return p.torch(weights=torch.nn.Linear(4, 3))


@row(3, r"w\.pth: does not hold a mapping of names to tensors", "state_dict")
def weights_that_are_a_checkpoint(p: Place) -> Words:
    """A training checkpoint instead of a state dict."""
    return p.torch(weights={"epoch": 3, "loss": 0.1})


@row(3, "weights hold NaN or infinity in dense.weight", "take another checkpoint")
def weights_with_nan(p: Place) -> Words:
    """NaN in the weights."""
    import torch

    w = torch.full((3, 4), float("nan"))
    return p.torch(weights={"dense.weight": w, "dense.bias": torch.zeros(3)})


@row(
    2,
    r"recipe\.yaml:5: model\.torch\.callable: cannot import 'users_nte'",
    "found beside the recipe",
)
def callable_not_importable(p: Place) -> Words:
    """A module that cannot be found."""
    return p.torch(("users_net:make", "users_nte:make"))


@row(2, r"recipe\.yaml:5: model\.torch\.callable: 'users_net' has no 'mkae'", "did you mean 'make'")
def callable_missing(p: Place) -> Words:
    """A module without the callable."""
    return p.torch(("users_net:make", "users_net:mkae"))


@row(2, r"model\.torch\.callable: users_net:SIZE is not callable", "name a function or class")
def callable_not_callable(p: Place) -> Words:
    """A callable that is none."""
    return p.torch(("users_net:make", "users_net:SIZE"), net=NET + "SIZE = 3\n")


@row(3, r"users_net:make failed: ZeroDivisionError: division by zero", "call it by hand")
def callable_raises(p: Place) -> Words:
    """A callable that fails."""
    return p.torch(net=NET + "def make(): 1 / 0\n")


@row(3, r"users_net:make failed: TypeError: .*unexpected keyword argument 'depth'", "by hand")
def callable_of_other_arguments(p: Place) -> Words:
    """Arguments that the callable does not take."""
    return p.torch(("weights: random", "arguments: {depth: 2}\n    weights: random"))


@row(2, r"users_net:make returned dict, not a torch\.nn\.Module", "return the module itself")
def callable_returns_no_module(p: Place) -> Words:
    """A callable that returns a state dict."""
    return p.torch(net=NET + "def make(): return {}\n")


@row(2, "importing 'users_net' failed: SystemExit", "__main__")
def callable_in_a_script(p: Place) -> Words:
    """A script that exits when it is imported."""
    return p.torch(net="import sys\nsys.exit(0)\n")


@row(2, r"users_net\.py: not valid Python", hint=False)
def callable_in_no_python(p: Place) -> Words:
    """A module that is not Python."""
    return p.torch(net="def make(:\n")


@row(3, r"users_net:make: still in training mode after eval\(\): the model", "accept mode=False")
def model_that_ignores_eval(p: Place) -> Words:
    """A model whose train() ignores eval()."""
    odd = "    def train(self, mode=True):\n        return super().train(True)\n\ndef make("
    return p.torch(net=NET.replace("def make(", odd).replace("return Net(width).eval()",
                                                             "return Net(width)"))  # fmt: skip


@row(3, r"users_net:make: eval\(\) failed: TypeError", "accept mode=False")
def model_that_refuses_eval(p: Place) -> Words:
    """A model whose train() takes no mode."""
    odd = "    def train(self):\n        return self\n\ndef make("
    return p.torch(net=NET.replace("def make(", odd).replace(".eval()", ""))


@row(3, "users_net:make: the model answers NaN or infinity: output 'y'", "check the weights")
def model_that_answers_nan(p: Place) -> Words:
    """A model whose outputs are NaN."""
    return p.torch(net=NET.replace("self.dense(x)", "self.dense(x) / 0 * 0"))


@row(3, r"model\.outputs: the model has 2 outputs, model\.outputs names 1", "name every output")
def model_of_more_outputs(p: Place) -> Words:
    """A model with more outputs than the recipe names."""
    return p.torch(net=NET.replace("return self.dense(x)", "return self.dense(x), x"))


@row(3, r"model\.outputs: the model returns int beside tensors", "returns tensors only")
def model_that_returns_more_than_tensors(p: Place) -> Words:
    """A model that returns something else than tensors."""
    return p.torch(net=NET.replace("return self.dense(x)", "return self.dense(x), 3"))


@row(3, r"model\.inputs: the model does not run on its inputs", "check names, order and shapes")
def model_of_another_shape(p: Place) -> Words:
    """A model that takes another input shape."""
    return p.torch(net=NET.replace("torch.nn.Linear(4", "torch.nn.Linear(6"))


# ONNX files.


@row(3, r"m\.onnx: not an ONNX file, or a damaged one", "export it again")
def onnx_that_does_not_parse(p: Place) -> Words:
    """A file that is not ONNX."""
    return p.onnx(b"\x93NUMPY\x01\x00 not a model")


@row(3, r"m\.onnx: .*(not an ONNX file|no nodes)", "export it again")
def onnx_cut_short(p: Place) -> Words:
    """An ONNX file of which the end is missing."""
    import onnx

    return p.onnx(onnx.parser.parse_model(TEXT).SerializeToString()[:-40])


@row(3, r"m\.onnx: the ONNX graph has no nodes", "empty or no model")
def onnx_empty(p: Place) -> Words:
    """An empty ONNX file."""
    return p.onnx(b"")


@row(3, r"m\.onnx: unsupported operator com\.acme\.Magic \(node", "replace it in the model")
def onnx_of_a_custom_domain(p: Place) -> Words:
    """An operator of a custom domain."""
    text = TEXT.replace("MatMul", "com.acme.Magic").replace('"": 17', '"": 17, "com.acme": 1')
    return p.onnx(text)


@row(3, r"m\.onnx: unsupported operator MatMull \(node", "replace it in the model")
def onnx_of_an_unknown_operator(p: Place) -> Words:
    """An operator that ONNX does not have."""
    return p.onnx(TEXT.replace("MatMul", "MatMull"))


@row(3, r"m\.onnx: unsupported operator Gelu in opset 17", "replace it in the model")
def onnx_of_a_later_operator(p: Place) -> Words:
    """An operator that the file's opset does not have yet."""
    return p.onnx(TEXT.replace("MatMul(x, w)", "Gelu(x)"))


@row(3, r"m\.onnx: opset 6 is not supported \(7 to \d+ are\)", "another opset_version")
def onnx_of_an_old_opset(p: Place) -> Words:
    """An opset that is too old."""
    return p.onnx(TEXT.replace('"": 17', '"": 6'))


@row(3, r"m\.onnx: opset 99 is not supported", "another opset_version")
def onnx_of_a_new_opset(p: Place) -> Words:
    """An opset that is too new."""
    return p.onnx(TEXT.replace('"": 17', '"": 99'))


def external(p: Place) -> Words:
    import onnx

    words = p.onnx(TEXT)
    model = onnx.load(p.folder / "m.onnx")
    w = np.eye(4, dtype=np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(
        model, p.folder / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0
    )
    return words


@row(3, r"m\.onnx: external data missing: m\.bin \(tensor w\)", "beside the .onnx")
def onnx_without_its_data(p: Place) -> Words:
    """An ONNX file whose external data are missing."""
    words = external(p)
    (p.folder / "m.bin").unlink()
    return words


@row(3, r"m\.onnx: tensor 'w' cannot be read", "save them again")
def onnx_of_cut_data(p: Place) -> Words:
    """An ONNX file whose external data are cut short."""
    words = external(p)
    (p.folder / "m.bin").write_bytes(b"\0" * 8)
    return words


@row(3, r"m\.onnx: exported in training mode: BatchNormalization", r"model\.eval\(\)")
def onnx_in_training_mode(p: Place) -> Words:
    """A BatchNorm exported in training mode."""
    return p.onnx(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y)'
        "<float[4] s = {1,1,1,1}, float[4] b = {0,0,0,0}>"
        "{ y, m, v = BatchNormalization <training_mode: int = 1> (x, s, b, b, s) }"
    )


@row(3, r"m\.onnx: exported in training mode: Dropout", r"model\.eval\(\)")
def onnx_with_active_dropout(p: Place) -> Words:
    """An active Dropout."""
    return p.onnx(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y)'
        "{ r = Constant <value: tensor = float {0.5}> ()\n"
        "t = Constant <value: tensor = bool {1}> ()\n y = Dropout(x, r, t) }"
    )


@row(3, r"m\.onnx: weights hold NaN in w", "take another checkpoint")
def onnx_with_nan(p: Place) -> Words:
    """NaN in an ONNX file's weights."""
    import onnx

    model = onnx.parser.parse_model(TEXT)
    w = np.full((4, 4), np.nan, np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "w"))
    return p.onnx(model)


@row(2, r"m\.onnx: model\.inputs names \['x'\], the file has \['image'\]", "name")
def onnx_of_other_inputs(p: Place) -> Words:
    """Inputs named otherwise than in the recipe."""
    return p.onnx(TEXT.replace(" x", " image").replace("(x", "(image"))


@row(2, r"m\.onnx: model\.outputs names \['z'\], the file has \['y'\]", "name")
def onnx_of_other_outputs(p: Place) -> Words:
    """Outputs named otherwise than in the recipe."""
    return p.onnx(TEXT, ("data:", "  outputs: [z]\ndata:"))


@row(2, r"m\.onnx: model\.inputs: 'x' has shape \[1, 4\], the file has \[1, 5\]", "shape")
def onnx_of_another_shape(p: Place) -> Words:
    """An input of another shape than the recipe's."""
    return p.onnx(TEXT.replace("MatMul(x, w)", "Relu(x)").replace("[1,4]", "[1,5]"))


@row(3, r"m\.onnx: input 'x' is INT32; only FLOAT can be quantised", "float32")
def onnx_of_integers(p: Place) -> Words:
    """An integer input."""
    return p.onnx(TEXT.replace("float[1,4]", "int32[1,4]").replace("MatMul(x, w)", "Abs(x)"))


@row(3, r"m\.onnx: output 'y' keeps a dynamic shape", "static shapes")
def onnx_of_a_dynamic_shape(p: Place) -> Words:
    """An output whose shape depends on the values."""
    text = TEXT.replace("=> (float[1,4] y)", "=> (int64[2,N] y)").replace("MatMul(x, w)",
                                                                         "NonZero(x)")  # fmt: skip
    return p.onnx(text)


# TFLite files.


def tflite(p: Place, data: bytes) -> Words:
    from tflite.tiny import float_file, weights

    (p.folder / "m.tflite").write_bytes(data or float_file(weights()))
    x = np.random.default_rng(0).standard_normal((8, 8, 8, 3)).astype(np.float32)
    p.data(picture=x)
    p.write(
        ONNX,
        ("onnx: {path: m.onnx}", "tflite: {path: m.tflite}"),
        ("{name: x, shape: [1, 4]}", "{name: picture, shape: [1, 8, 8, 3]}"),
    )
    return p.run()


@row(3, r"m\.tflite", "damaged|cut|not a|truncated", "hint")
def tflite_cut_short(p: Place) -> Words:
    """A .tflite file of which the end is missing."""
    words = tflite(p, b"")
    path = p.folder / "m.tflite"
    path.write_bytes(path.read_bytes()[:-700])
    return words


@row(3, r"m\.tflite", "int8|quantised already", "float")
def tflite_of_int8(p: Place) -> Words:
    """A .tflite file that is quantised already."""
    from tflite.tiny import int8_file

    words = tflite(p, b"")
    path = p.folder / "m.tflite"
    path.write_bytes(int8_file(path))
    return words


# Data.


@row(3, r"pictures: the folder holds no pictures", "known suffixes")
def empty_folder(p: Place) -> Words:
    """An empty folder of pictures."""
    return p.pictures(count=0)


@row(
    2,
    r"recipe\.yaml:12: data\.evaluation\.folder: no such folder: .*/picturs",
    "the recipe says 'picturs'",
)
def missing_folder(p: Place) -> Words:
    """A folder of pictures that does not exist."""
    return p.pictures(("evaluation: {folder: pictures}", "evaluation: {folder: picturs}"))


@row(3, r"labels\.csv: no column file or class_index", "first line must be: file,class_index")
def labels_without_columns(p: Place) -> Words:
    """A labels.csv without its columns."""
    words = p.pictures()
    (p.folder / "pictures" / "labels.csv").write_text("p0.png,1\n")
    return words


@row(3, r"gates\.accuracy\.max_drop_points needs labels", r"add labels\.csv")
def drop_without_labels(p: Place) -> Words:
    """A gate on the top-1 drop with unlabelled pictures."""
    return p.pictures(("data:", "gates: {accuracy: {max_drop_points: 1}}\ndata:"))


@row(3, r"data\.report needs labels", r"add labels\.csv")
def report_without_labels(p: Place) -> Words:
    """data.report without labels."""
    return p.pictures(
        ("data:", "gates: {accuracy: {min_sqnr_db: 1}}\ndata:\n  report: {folder: pictures}")
    )


@row(3, r"p0\.png", "decode|picture", "hint")
def picture_that_does_not_decode(p: Place) -> Words:
    """A picture that cannot be decoded."""
    words = p.pictures()
    path = p.folder / "pictures" / "p0.png"
    path.write_bytes(path.read_bytes()[:60])
    return words


@row(
    2,
    r"recipe\.yaml:12: data\.evaluation\.folder: .* variable EDGEFUSE_DATA is not set",
    "export EDGEFUSE_DATA=",
)
def data_variable_unset(p: Place) -> Words:
    """EDGEFUSE_DATA not set."""
    place = "{folder: '${EDGEFUSE_DATA}/val'}"
    return p.pictures(("evaluation: {folder: pictures}", f"evaluation: {place}"))


@row(3, r"data\.npz: the arrays are named \['input'\], the model's inputs \['x'\]", "numpy.savez")
def arrays_of_other_names(p: Place) -> Words:
    """Arrays named otherwise than the model's inputs."""
    words = p.torch()
    p.data(input=np.zeros((8, 4), np.float32))
    return words


@row(3, r"data\.npz: sample 2 'x' holds NaN", "correct the data")
def arrays_with_nan(p: Place) -> Words:
    """NaN in the samples."""
    words = p.torch()
    x = np.zeros((8, 4), np.float32)
    x[2] = np.nan
    p.data(x=x)
    return words


@row(3, r"data\.npz: the array 'picture' is uint8, not float32", "normalisation")
def arrays_of_pixels(p: Place) -> Words:
    """Arrays of uint8 pixels."""
    words = tflite(p, b"")
    p.data(picture=np.zeros((8, 8, 8, 3), np.uint8))
    return words


@row(
    3,
    r"data\.npz: the array 'picture' has shape \[8, 3, 8, 8\], not \['samples', 8, 8, 3\]",
    r"channels-first: save x\.transpose\(0, 2, 3, 1\)",
)
def arrays_channels_first(p: Place) -> Words:
    """Channels-first arrays for a channels-last input."""
    words = tflite(p, b"")
    p.data(picture=np.zeros((8, 3, 8, 8), np.float32))
    return words


FILES = tuple(f"net_{kind}.tflite" for kind in ("float32", "full_integer_quant"))


def labelled(p: Place, labels: Any, *edits: tuple[str, str]) -> Words:
    """A classifier of 5 classes with labelled arrays."""
    words = tflite(p, b"")
    p.write(p.recipe.read_text(), *edits)
    x = np.random.default_rng(0).standard_normal((8, 8, 8, 3)).astype(np.float32)
    p.data(picture=x, labels=np.asarray(labels))
    return words


DROP = ("data:", "gates: {accuracy: {max_drop_points: 50}}\ndata:")


@row(
    3,
    r"data\.npz: data\.evaluation: label 5 of data\.npz\[7\] is none of the 5 classes 0\.\.4",
    "these labels start at 1: take 1 off each",
    made=FILES,
)
def labels_from_one(p: Place) -> Words:
    """Labels that start at 1."""
    return labelled(p, [1, 2, 3, 4, 4, 3, 2, 5], DROP)


@row(3, r"label 999 of data\.npz\[0\] is none of the 5 classes", "from 0 in the", made=FILES)
def labels_of_another_model(p: Place) -> Words:
    """Labels of another label set than the model's."""
    return labelled(p, [999, 0, 1, 2, 3, 4, 0, 1], DROP)


@row(3, r"data\.npz: labels are not integers", "class indices as int64")
def labels_that_are_no_integers(p: Place) -> Words:
    """Labels that are fractions."""
    return labelled(p, np.linspace(0, 1, 8), DROP)


@row(
    3,
    r"names\.txt: data\.labels has 6 names, and output 'logits' 5 classes",
    "a class for the background, or a heading",
    made=FILES,
)
def class_names_of_another_number(p: Place) -> Words:
    """More class names than classes."""
    names = p.folder / "names.txt"
    names.write_text("\n".join("abcdef") + "\n")
    return labelled(p, [0, 1, 2, 3, 4, 3, 2, 1], ("data:", "data:\n  labels: {path: names.txt}"))


# A goal for int8.


def goal(p: Place, goal: str, *edits: tuple[str, str]) -> Words:
    """A search that is asked for ``goal`` on data.validation."""
    return p.torch(
        ("data:", f"quantize: {{goal: {{{goal}}}}}\ndata:\n  validation: {{arrays: data.npz}}"),
        *edits,
    )


@row(2, r"goal\.min_agreement: a fraction is due: write 0\.97 for 97%", hint=False)
def goal_in_percent(p: Place) -> Words:
    """An agreement in percent where a fraction is due."""
    return goal(p, "min_agreement: 97")


@row(2, r"goal: a goal without a threshold is reached by anything", hint=False)
def goal_without_threshold(p: Place) -> Words:
    """A goal without a threshold."""
    return goal(p, "time_limit_s: 60")


@row(
    2,
    r"quantize\.goal\.max_drop_points is met at 2, where gates\.accuracy still fails \(0\.5\)",
    hint=False,
)
def goal_below_the_gate(p: Place) -> Words:
    """A goal that is met where the gate fails."""
    gates = ("data:", "gates: {accuracy: {max_drop_points: 0.5}}\ndata:")
    return goal(p, "max_drop_points: 2", gates)


@row(2, r"min_sqnr_db 90 cannot be met by an output of 8 bits \(at most 49\.9 dB\)", hint=False)
def goal_beyond_eight_bits(p: Place) -> Words:
    """An SQNR that no int8 output can have."""
    return goal(p, "min_sqnr_db: 90")


@row(2, r"head: classes clips what goal\.min_sqnr_db judges", "min_agreement instead", hint=False)
def goal_against_the_head(p: Place) -> Words:
    """A goal for the values that head: classes clips."""
    return goal(p, "min_sqnr_db: 20", ("quantize: {goal", "quantize: {head: classes, goal"))


@row(3, r"data\.npz: quantize\.goal\.max_drop_points needs labels", "add labels")
def goal_without_labels(p: Place) -> Words:
    """A goal for the top-1 drop with unlabelled samples."""
    return goal(p, "max_drop_points: 1")


# Downloads.


def download(p: Place, *mirrors: str) -> Words:
    listed = ", ".join(f"'{mirror}'" for mirror in mirrors)
    blob = f"{{file: w.pth, sha256: {'a' * 64}, mirrors: [{listed}]}}"
    return p.torch(("weights: random", f"weights: {blob}"))


def offline(p: Place, words: Words) -> Ended:
    kept = dict(os.environ)
    os.environ.update(PIP_NO_INDEX="1", no_proxy="*")
    try:
        return edgefuse(*words)
    finally:
        os.environ.clear()
        os.environ.update(kept)


@row(
    3,
    "w.pth could not be fetched from any mirror",
    r"- wheel:edgefuse-weights==1\.0#w\.pth: pip download",
    r"- https://mirror\.invalid/w\.pth: cannot be reached",
    "check the network, proxy and pip settings, or put the file",
    act=offline,
)
def no_network(p: Place) -> Words:
    """No network and nothing downloaded yet."""
    return download(p, "wheel:edgefuse-weights==1.0#w.pth", "https://mirror.invalid/{file}")


@row(3, r"w\.pth from file:w\.pth has the wrong content: expected SHA-256 a{64}", "the mirror")
def mirror_of_other_bytes(p: Place) -> Words:
    """A mirror that serves other bytes."""
    (p.folder / "w.pth").write_bytes(b"a login page")
    return download(p, "file:w.pth")


# Pushing.


def bundle(p: Place, **changes: Any) -> Words:
    path = p.folder / "net.bundle.tar"
    path.write_bytes(b"bundle")
    put_evidence(path, **changes)
    return ["push", path, "--target", "host"]


@row(2, r"no such bundle: .*gone\.bundle\.tar", "make one with `edgefuse run`")
def push_of_nothing(p: Place) -> Words:
    """push of a bundle that does not exist."""
    return ["push", p.folder / "gone.bundle.tar", "--target", "host"]


@row(2, r"evidence\.json: no readable evidence\.json beside", "use the folder that `edgefuse run`")
def push_without_evidence(p: Place) -> Words:
    """push of a bundle without its evidence."""
    words = bundle(p)
    (p.folder / "evidence.json").unlink()
    return words


@row(1, r"judged on target board, not on host", "edgefuse run RECIPE --target host")
def push_of_what_another_target_judged(p: Place) -> Words:
    """push to a target that did not judge the bundle."""
    return bundle(p, target="board")


@row(1, r"the evidence is for bundle [0-9a-f]{12}, this one is", "run the recipe again")
def push_of_a_changed_bundle(p: Place) -> Words:
    """push of a bundle that changed after its gates."""
    words = bundle(p)
    (p.folder / "net.bundle.tar").write_bytes(b"Bundle")
    return words


@row(1, "gates not passed on host: memory", "only a bundle that passed")
def push_of_a_failed_gate(p: Place) -> Words:
    """push of a bundle that failed a gate."""
    verdicts = {"accuracy": "pass", "memory": "fail", "latency": "pass"}
    gates = [{"name": n, "verdict": v} for n, v in verdicts.items()]
    return bundle(p, gates=gates, verdict="fail")


@row(1, "gates not passed on host: latency", "only a bundle that passed")
def push_of_an_inconclusive_gate(p: Place) -> Words:
    """push of a bundle with an undecided gate."""
    gates = [{"name": n, "verdict": "pass"} for n in ("accuracy", "memory")]
    gates.append({"name": "latency", "verdict": "inconclusive"})
    return bundle(p, gates=gates, verdict="inconclusive")


# Disks.


def full_disk(p: Place, words: Words) -> Ended:
    import errno

    real = os.fsync

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = full
    try:
        return edgefuse(*words)
    finally:
        os.fsync = real


@row(3, "no space left on the disk", "free some space, or choose another place", act=full_disk)
def disk_full(p: Place) -> Words:
    """A full disk."""
    return p.onnx(TEXT)


def no_cache(p: Place, words: Words) -> Ended:
    kept = os.environ["EDGEFUSE_CACHE"]
    (p.folder / "file").write_text("")
    os.environ["EDGEFUSE_CACHE"] = str(p.folder / "file" / "cache")
    try:
        return edgefuse(*words)
    finally:
        os.environ["EDGEFUSE_CACHE"] = kept
        (p.folder / "file").unlink()


@row(3, r"file/cache.*cannot be written: Not a directory", "EDGEFUSE_CACHE", act=no_cache)
def cache_not_writable(p: Place) -> Words:
    """A cache folder that cannot be written."""
    return p.onnx(TEXT)


@row(3, "cannot be written: Not a directory", "check the permissions, or choose another place")
def out_below_a_file(p: Place) -> Words:
    """An output folder below a file."""
    words = p.onnx(TEXT)
    (p.folder / "file").write_text("")
    return [*words[:3], p.folder / "file" / "out"]


def as_nobody(p: Place, words: Words) -> Ended:
    """Root is never refused: as somebody else, in a folder that others can reach."""
    import tempfile

    edgefuse(*words)
    shutil.rmtree(p.out)
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copytree(p.folder, folder, dirs_exist_ok=True)
        (folder / "out").mkdir()
        for place in (folder, folder / "out"):
            place.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            return edgefuse("run", folder / "recipe.yaml", "--out", folder / "out")
        finally:
            if root:
                os.seteuid(0)
    finally:
        for place in (folder, folder / "out"):
            place.chmod(0o755)
        assert not list((folder / "out").iterdir())
        shutil.rmtree(folder)


@row(3, r"out/edgefuse\.log: cannot be written: Permission denied", "--out", act=as_nobody)
def out_not_writable(p: Place) -> Words:
    """An output folder that may not be written."""
    return p.torch(("weights: random", "weights: {path: w.pth}"))


@row(
    0,
    "warning: export: damaged entry dropped, made anew",
    r"objects/[0-9a-f]{2}/[0-9a-f]{64}: its bytes have SHA-256",
    hint=False,
    made=("net.onnx",),
)
def damaged_cache(p: Place) -> Words:
    """A damaged file in the cache: told, dropped, made anew."""
    words = [*p.onnx(TEXT), "--until", "export"]
    assert edgefuse(*words).code == 0
    shutil.rmtree(p.out)
    for path in (p.cache / "objects").rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    return words


@row(
    0,
    "warning: users_net:make returned a model in training mode: switched to eval mode",
    hint=False,
    made=("net.onnx",),
)
def model_in_training_mode(p: Place) -> Words:
    """A model in training mode: told, switched to eval mode."""
    words = p.torch(net=NET.replace(".eval()", ""))
    return [*words, "--until", "export"]


def told(row: Row, ended: Ended) -> str:
    """The message as a user reads it, without the log's place."""
    lines = [line for line in ended.err.splitlines() if not line.startswith("  log: ")]
    keep = "warning: " if row.code == 0 else "edgefuse: "
    first = next(i for i, line in enumerate(lines) if line.startswith(keep))
    return "\n".join(lines[first:] if row.code else lines[first : first + 1])


def summary() -> str:
    """Every row as Markdown, without running it: the input and the exit code."""
    lines = [f"| {one.what} | {one.code} |" for one in ROWS.values()]
    return "\n".join(["| input | exit code |", "|---|---|", *lines])


def table() -> str:
    """Every row as Markdown: the input, the exit code, the message as it is on this machine."""
    import tempfile

    lines = ["| input | exit code | message |", "|---|---|---|"]
    for one in ROWS.values():
        with tempfile.TemporaryDirectory() as name:
            place = Place(Path(name) / "place")
            place.folder.mkdir()
            os.environ["EDGEFUSE_CACHE"] = str(Path(name) / "cache")
            os.environ.pop("EDGEFUSE_DATA", None)
            message = told(one, one.act(place, one.build(place)))
        text = message.replace(f"{name}/place/", "").replace(f"{name}/", "").replace("|", "\\|")
        lines.append(f"| {one.what} | {one.code} | `{'` <br> `'.join(text.splitlines())}` |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
