"""Run a recipe, and judge its files with the runtimes alone: none of edgefuse's own readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import yaml
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from edgefuse.commands.run import run_recipe
from edgefuse.plan import Selection

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Run:
    """A finished run: its report and its output folder."""

    report: dict[str, Any]
    out: Path

    @property
    def error(self) -> str:
        error = self.report["error"]
        return f"{error['message']} | {error['hint']} | {error['where']}" if error else ""

    @property
    def seconds(self) -> dict[str, float]:
        return {s["name"]: s["seconds"] for s in self.report["stages"] if s["seconds"]}

    def file(self, suffix: str) -> Path:
        found = [path for path in self.out.iterdir() if path.name.endswith(suffix)]
        assert len(found) == 1, (suffix, self.error)
        return found[0]

    @property
    def float_file(self) -> Path:
        return self.file("_float32.tflite")

    @property
    def int8_file(self) -> Path:
        return self.file("_full_integer_quant.tflite")


def samples(
    shapes: Mapping[str, tuple[int, ...]], count: int, seed: int, scale: float = 1.0
) -> dict[str, Array]:
    """Normal float32 samples by input name, samples along the first axis."""
    random = np.random.default_rng(seed)
    return {
        name: (random.normal(size=(count, *shape)) * scale).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_recipe(
    folder: Path,
    name: str,
    model: Mapping[str, Any],
    calibration: Feeds,
    evaluation: Feeds,
    title: str = "",
    **sections: Any,
) -> Path:
    """``folder/title.yaml`` with its samples beside it. Recipes of one name share conversions."""
    title = title or name
    np.savez(folder / f"{title}_calibration.npz", **calibration)
    np.savez(folder / f"{title}_evaluation.npz", **evaluation)
    recipe = {
        "schema": 1,
        "name": name,
        "model": model,
        "data": {
            "calibration": {"arrays": f"{title}_calibration.npz"},
            "evaluation": {"arrays": f"{title}_evaluation.npz"},
        },
        **sections,
    }
    path = folder / f"{title}.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def run(
    path: Path, *, until: str | None = None, out: str = "", settings: tuple[str, ...] = ()
) -> Run:
    """Run a recipe into a folder of its own beside it."""
    folder = path.parent / (out or f"{path.stem}_out")
    report, _ = run_recipe(
        path, settings=settings, selection=Selection(until=until), out=folder, quiet=True
    )
    return Run(report, folder)


def inputs(shapes: Mapping[str, tuple[int, ...]], batch: int = 1) -> list[dict[str, Any]]:
    """``model.inputs`` for samples of these shapes."""
    return [{"name": name, "shape": [batch, *shape]} for name, shape in shapes.items()]


def batches(feeds: Feeds, batch: int = 1) -> list[dict[str, Array]]:
    count = len(next(iter(feeds.values())))
    starts = range(0, count - batch + 1, batch)
    return [{name: value[k : k + batch] for name, value in feeds.items()} for k in starts]


def run_onnx(path: Path, feeds: list[dict[str, Array]]) -> list[dict[str, Array]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, feed))) for feed in feeds]


def run_onnx_as_given(path: Path, feeds: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Without graph optimisation: a QDQ model then computes in float, its rounding apart."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, feed))) for feed in feeds]


class Tflite:
    """A .tflite through LiteRT's signature runner: values in and out are real numbers by name."""

    def __init__(self, path: Path) -> None:
        self.interpreter = Interpreter(
            str(path),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        self.interpreter.allocate_tensors()
        self._runner = self.interpreter.get_signature_runner("serving_default")
        self.inputs = self._runner.get_input_details()
        self.outputs = self._runner.get_output_details()

    def __call__(self, feed: Feeds) -> dict[str, Array]:
        given = {}
        for name, value in feed.items():
            detail = self.inputs[name]
            if value.ndim == 4:
                value = value.transpose(0, 2, 3, 1)
            scale, zero = detail["quantization"]
            if detail["dtype"] == np.int8:
                value = np.clip(np.round(value / scale) + zero, -128, 127).astype(np.int8)
            given[name] = value
        # The runner is bound by keyword, and names need not be identifiers.
        results = {}
        for name, value in self._runner(**given).items():
            scale, zero = self.outputs[name]["quantization"]
            if value.dtype == np.int8:
                value = (value.astype(np.float32) - zero) * scale
            results[name] = value
        return results

    @property
    def dtypes(self) -> set[str]:
        """Types of all tensors that are read or written."""
        return {np.dtype(t["dtype"]).name for t in self.interpreter.get_tensor_details()}


def sqnr_db(reference: list[Array], candidate: list[Array]) -> float:
    """10 log10 of signal over noise, over all samples; channels last are turned where they must."""
    a, b = np.stack(reference).astype(np.float64), np.stack(candidate).astype(np.float64)
    either = [b, np.moveaxis(b, -1, 2)] if b.ndim > 3 else [b]
    noise = min(float(((a - c) ** 2).sum()) for c in either if c.shape == a.shape)
    return 10 * float(np.log10((a**2).sum() / max(noise, 1e-30)))


def operators(path: Path) -> list[str]:
    """Operator names in execution order."""
    from ai_edge_litert import schema_py_generated as schema

    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    model = schema.Model.GetRootAs(path.read_bytes())
    graph = model.Subgraphs(0)
    codes = [model.OperatorCodes(k) for k in range(model.OperatorCodesLength())]
    return [
        names[codes[graph.Operators(k).OpcodeIndex()].BuiltinCode()]
        for k in range(graph.OperatorsLength())
    ]


def output_names(path: Path) -> list[str]:
    return [output.name for output in onnx.load(path).graph.output]
