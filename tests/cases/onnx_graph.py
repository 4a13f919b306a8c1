"""Small ONNX files by code: seeded weights, operators one call each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class OnnxGraph:
    """Collects nodes; every method that adds a value returns its name."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        self._count += 1
        name = f"constant_{self._count}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Normal values of about unit output for unit input."""
        fan_in = int(np.prod(shape[1:])) or 1
        return self.constant(self.random.normal(size=shape) / np.sqrt(fan_in))

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        self._count += 1
        output = output or f"value_{self._count}"
        name = f"{kind}_{self._count}"
        self._nodes.append(helper.make_node(kind, inputs, [output], name, **attributes))
        return output

    def conv(self, x: str, inputs: int, outputs: int, size: int = 3, output: str = "") -> str:
        """A convolution of stride 1 that keeps height and width, with bias."""
        weight = self.weight(outputs, inputs, size, size)
        pads = [size // 2] * 4
        return self.add("Conv", x, weight, self.weight(outputs), output=output, pads=pads)

    def dense(self, x: str, inputs: int, outputs: int, output: str = "") -> str:
        weight = self.weight(outputs, inputs)
        return self.add("Gemm", x, weight, self.weight(outputs), output=output, transB=1)

    def output(self, *names: str) -> None:
        for name in names:
            self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def save(self, path: Path, opset: int = 18) -> None:
        graph = helper.make_graph(
            self._nodes, "graph", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", opset)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
