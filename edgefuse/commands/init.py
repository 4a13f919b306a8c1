"""``edgefuse init``: a recipe for a user's own model, as complete as the source tells."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from edgefuse.errors import UsageError
from edgefuse.store import write_atomically

_TEMPLATE = """\
# yaml-language-server: $schema=recipe.schema.json  (edgefuse schema > recipe.schema.json)
schema: 1
name: {name}

model:
{source}
  inputs:
{inputs}
{outputs}

{preprocess}
data:
  # Calibration: 100 or more samples like those the device will see. Evaluation: others.
{data}

quantize:
  ranges: percentile
  tail_percent: 0.01
  # When int8 is too far from float (`edgefuse blame` names the layers), the cheapest first:
  # equalize: true   # even out the channels between layers
  # rounding: gptq   # round the weights by what the samples make of it
  # goal: {{min_agreement: 0.97}}   # search by itself; needs data.validation, samples of its own

# Thresholds are judged by the one-sided 95% bound: choose what your sample can decide.
gates:
  accuracy: {{min_agreement_percent: 90}}
  memory: {{max_arena_bytes: 4000000}}
  latency: {{max_ratio_to_float: 1.0}}
"""

_PICTURES = """\
# From a picture to the model's input; write here what the training used.
preprocess:
  resize: {resize}
  crop: [{height}, {width}]
  colour: RGB
  scale: 1/255
  mean: [0.485, 0.456, 0.406]
  std: [0.229, 0.224, 0.225]
  layout: {layout}
"""

_FOLDERS = """\
  calibration: {folder: pictures, split: {seed: 0, first: 100}}
  evaluation: {folder: pictures, split: {seed: 0, after: 100}}"""

_ARRAYS = """\
  calibration: {arrays: calibration.npz}   # float32, keyed by input name, first axis: samples
  evaluation: {arrays: evaluation.npz}"""

Specs = list[tuple[str, list[int]]]
# Input name -> its axes without a fixed size, as words.
Dynamic = dict[str, list[str]]


def write_recipe(source: str, out: Path, shape: str, force: bool) -> list[str]:
    """Write the recipe; returns lines that say what to complete.

    Raises:
        UsageError: the file exists, or the source is neither a callable nor a model file.
    """
    if out.exists() and not force:
        raise UsageError(f"{out} exists", hint="give another --out, or --force to overwrite it")
    lower = source.lower()
    dynamic: Dynamic = {}
    if lower.endswith((".onnx", ".tflite")):
        kind = lower.rpartition(".")[2]
        path = Path(source)
        if not path.is_file():
            raise UsageError(f"no such file: {path}")
        if kind == "onnx":
            inputs, outputs, dynamic = _onnx_specs(path)
        else:
            inputs, outputs = _tflite_specs(path)
        name = path.stem
        relative = _relative(path, out)
        text = f"  {kind}: {{path: {_quoted(relative)}}}"
    elif re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", source):
        kind, name = "torch", source.partition(":")[2].rpartition(".")[2]
        inputs, outputs = [("input", _shape(shape))], ["output"]
        text = (
            f"  torch:\n    callable: {source}\n"
            "    weights: {path: weights.pth}   # or 'random' for a first try, never releasable"
        )
    else:
        raise UsageError(
            f"{source!r} is neither module:callable nor an .onnx or .tflite file",
            hint="for a torch model give for example mypackage.models:make_model",
        )
    pictures = [s for _, s in inputs if len(s) == 4 and 3 in (s[1], s[3])]
    is_picture = len(inputs) == 1 and bool(pictures)
    write_atomically(
        out,
        _TEMPLATE.format(
            name=_quoted(re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_.-")[:64] or "model"),
            source=text,
            inputs="\n".join(
                f"    - {{name: {_quoted(n)}, shape: {s}}}" + _dynamic_comment(dynamic.get(n, []))
                for n, s in inputs
            ),
            outputs=f"  outputs: [{', '.join(map(_quoted, outputs))}]",
            preprocess=_preprocess(pictures[0], kind) if is_picture else "",
            data=_FOLDERS if is_picture else _ARRAYS,
        ).encode(),
    )
    return [
        f"wrote {out}",
        *(
            f"input {n!r} has no fixed size in the model at {', '.join(axes)}: written as 1"
            for n, axes in dynamic.items()
        ),
        "complete it: " + ("the preprocessing and " if is_picture else "") + "the sample sets"
        + (", weights and output names" if kind == "torch" else ""),
        f"then: edgefuse plan {out}; edgefuse run {out}",
    ]  # fmt: skip


def _preprocess(shape: list[int], kind: str) -> str:
    first = shape[1] == 3 and kind != "tflite"
    height, width = (shape[2], shape[3]) if first else (shape[1], shape[2])
    return _PICTURES.format(
        resize=round(min(height, width) * 256 / 224),
        height=height,
        width=width,
        layout="NCHW" if first else "NHWC",
    )


def _dynamic_comment(axes: list[str]) -> str:
    return f"   # no fixed size in the model, written as 1: {', '.join(axes)}" if axes else ""


def _onnx_specs(path: Path) -> tuple[Specs, list[str], Dynamic]:
    import onnx

    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:
        raise UsageError("not an ONNX file, or a damaged one", where=str(path)) from None
    held = {tensor.name for tensor in proto.graph.initializer}
    sizes = {
        i.name: list(i.type.tensor_type.shape.dim) for i in proto.graph.input if i.name not in held
    }
    inputs = [(name, [d.dim_value or 1 for d in dims]) for name, dims in sizes.items()]
    dynamic = {
        name: [
            f"axis {index}" + (f" ({d.dim_param!a})" if d.dim_param else "")
            for index, d in enumerate(dims)
            if not d.dim_value
        ]
        for name, dims in sizes.items()
    }
    named = {name: axes for name, axes in dynamic.items() if axes}
    return inputs, [o.name for o in proto.graph.output], named


def _tflite_specs(path: Path) -> tuple[Specs, list[str]]:
    from edgefuse.tflite.read import read_model, signature_of

    signature = signature_of(read_model(path))
    return [(s.name, list(s.shape)) for s in signature.inputs], [s.name for s in signature.outputs]


def _shape(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text.replace(" ", "")):
        raise UsageError(f"--shape {text}: expected positive sizes, as 1,3,224,224")
    return [int(size) for size in text.split(",")]


def _relative(path: Path, out: Path) -> str:
    base = out.parent.absolute()
    absolute = path.absolute()
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)


def _quoted(text: str) -> str:
    """A YAML scalar that reads as this text: ``on``, ``null`` and ``1.0`` need quotes."""
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and yaml.safe_load(text) == text
    return text if plain else "'" + text.replace("'", "''") + "'"
