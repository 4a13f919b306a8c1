"""The rows of a comparison: which toolchains there are, in the order they are shown.

Rows on a GPU are there where the driver finds one.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from edgefuse.compare.cuda_device import why_no_device
from edgefuse.errors import UsageError

Family = Literal[
    "torch",
    "onnxruntime",
    "openvino",
    "tensorflow",
    "litert",
    "cuda_torch",
    "cuda_onnxruntime",
    "cuda_program",
]
Reads = Literal["torch", "unfused", "fused", "float", "int8"]
EAGER = "eager"
_OURS = "edgefuse + onnxruntime"


@dataclass(frozen=True)
class Row:
    """One toolchain, or one setting of it.

    Attributes:
        name: what ``--row`` takes and JSON says.
        title: for people.
        family: the module of this package that runs it, and the packages that it needs; one
            module runs all that begin with ``cuda_``.
        variant: what that module is to do.
        reads: the model it starts from: the module itself, the unfused or the fused ONNX graph,
            the float or the int8 .tflite.
        ours: whether edgefuse fused what is run.
        slow: preparing it takes long, so it starts first.
    """

    name: str
    title: str
    family: Family
    variant: str
    reads: Reads
    ours: bool = False
    slow: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.family.startswith("cuda_")

    @property
    def environment(self) -> dict[str, str]:
        """What its process is started with: a row on a GPU sees one, and no TF32."""
        if not self.on_gpu:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        return {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_TF32_OVERRIDE": "0"}


def _cuda(
    tool: str, title: str, family: Family, reads: Reads, *precisions: str, ours: bool = False
) -> Iterator[Row]:
    """Rows of one tool on a GPU, one for each precision."""
    slow = tool in ("inductor", "tensorrt")
    for precision in precisions:
        variant = f"{tool}_{precision}"
        name, words = f"cuda_{variant}", f"CUDA: {title}, {precision}"
        yield Row(name, words, family, variant, reads, ours=ours, slow=slow)


_ON_GPU: dict[str, tuple[Family, Reads]] = {
    "torch": ("cuda_torch", "torch"),
    "onnxruntime": ("cuda_onnxruntime", "unfused"),
    "edgefuse": ("cuda_program", "fused"),
}
ROWS = (
    Row(EAGER, "PyTorch eager", "torch", "eager", "torch"),
    Row("folded", "PyTorch eager, fused by torch.fx", "torch", "folded", "torch"),
    Row("torchscript", "TorchScript, frozen and optimised", "torch", "torchscript", "torch"),
    Row("inductor", "torch.compile (inductor)", "torch", "inductor", "torch", slow=True),
    Row("onnxruntime_disabled", "onnxruntime, disabled", "onnxruntime", "disabled", "unfused"),
    Row("onnxruntime_basic", "onnxruntime, basic", "onnxruntime", "basic", "unfused"),
    Row("onnxruntime_extended", "onnxruntime, extended", "onnxruntime", "extended", "unfused"),
    Row("onnxruntime_all", "onnxruntime, all", "onnxruntime", "all", "unfused"),
    Row("openvino", "OpenVINO", "openvino", "default", "unfused"),
    Row("grappler", "TensorFlow, Grappler", "tensorflow", "grappler", "fused"),
    Row("xla", "TensorFlow, XLA", "tensorflow", "xla", "fused"),
    Row("litert_float", "LiteRT float", "litert", "float", "float", ours=True),
    Row("litert_int8", "LiteRT int8", "litert", "int8", "int8", ours=True),
    Row("edgefuse_disabled", f"{_OURS}, disabled", "onnxruntime", "disabled", "fused", ours=True),
    Row("edgefuse_all", f"{_OURS}, all", "onnxruntime", "all", "fused", ours=True),
    *_cuda("eager", "PyTorch eager", *_ON_GPU["torch"], "fp32", "fp16"),
    *_cuda("channels_last", "PyTorch, channels last", *_ON_GPU["torch"], "fp32", "fp16"),
    *_cuda("inductor", "torch.compile, max-autotune", *_ON_GPU["torch"], "fp32", "fp16"),
    *_cuda("onnxruntime", "onnxruntime", *_ON_GPU["onnxruntime"], "fp32"),
    *_cuda("tensorrt", "onnxruntime, TensorRT", *_ON_GPU["onnxruntime"], "fp32", "fp16"),
    *_cuda("edgefuse", "edgefuse", *_ON_GPU["edgefuse"], "fp32", "fp16", ours=True),
)

# Importable package and the remedy when it is missing.
_PACKAGES: dict[Family, tuple[tuple[str, ...], str]] = {
    "torch": (("torch",), "pip install 'edgefuse[torch]' -c constraints.txt"),
    "onnxruntime": (("onnxruntime",), "pip install onnxruntime -c constraints.txt"),
    "openvino": (("openvino",), "pip install openvino -c constraints.txt"),
    "tensorflow": (
        ("tensorflow", "onnx2tf", "tf_keras"),
        "pip install 'edgefuse[convert]' -c constraints.txt",
    ),
    "litert": (("ai_edge_litert",), "pip install ai-edge-litert -c constraints.txt"),
    "cuda_torch": (("torch",), "install a PyTorch that is built for CUDA"),
    "cuda_onnxruntime": (("onnxruntime",), "pip install onnxruntime-gpu"),
    "cuda_program": (("torch", "triton"), "pip install 'edgefuse[cuda]' -c constraints.txt"),
}


def select(names: Sequence[str]) -> tuple[Row, ...]:
    """The rows of these names, in their own order whatever the order of the names; all for none.

    Raises:
        UsageError: an unknown name, with the nearest spelling.
    """
    known = [row.name for row in ROWS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"--row {name}: no such row",
                hint=(f"did you mean {near[0]}? " if near else "") + f"rows: {', '.join(known)}",
            )
    return tuple(row for row in ROWS if not names or row.name in names)


def why_not_installed(row: Row) -> str:
    """Empty when the row's packages, and the GPU that it runs on, are there; imports none."""
    if row.on_gpu and (reason := why_no_device()):
        return reason
    packages, remedy = _PACKAGES[row.family]
    return next((f"not installed: {p} ({remedy})" for p in _missing(packages)), "")


def _missing(packages: Sequence[str]) -> Iterator[str]:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            yield package


def why_not_from(row: Row, source: str) -> str:
    """Why a recipe whose source is torch, onnx or tflite has no such row; empty when it has."""
    needs: dict[Reads, tuple[str, ...]] = {
        "torch": ("torch",),
        "unfused": ("torch", "onnx"),
        "fused": ("torch", "onnx"),
    }
    if source in needs.get(row.reads, (source,)):
        return ""
    kinds = {"onnx": "an .onnx file", "tflite": "a .tflite file"}
    return f"the recipe's source is {kinds.get(source, source)}"
