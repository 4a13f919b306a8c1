"""CUDA rows: PyTorch, onnxruntime and edgefuse's own program on the first NVIDIA GPU.

A variant is a tool and a precision. Inputs lie on the GPU before an invocation is timed, outputs
stay there, and every invocation ends with the GPU waited for. fp32 is float32 in every product:
TF32 is switched off, here and in the environment (:attr:`edgefuse.compare.rows.Row.environment`).

Left alone: clocks, and what else runs on the GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgefuse.compare.cuda_device import device_name
from edgefuse.compare.prepared import Prepared, Request, Unavailable, without_zeros
from edgefuse.compare.torch_module import dispatched, load_module
from edgefuse.errors import DeviceUnavailable, ToolError
from edgefuse.keys import version

if TYPE_CHECKING:
    from edgefuse.compare.prepared import Array, Feed
    from edgefuse.cuda.program import Program
    from edgefuse.cuda.storage import Precision
    from edgefuse.cuda.weights import Weights

DEVICE = "cuda"
# The target whose balance chooses the launches of edgefuse's program.
_TARGET = "cuda-local"
# In the order in which onnxruntime offers them the graph's operators.
_PROVIDERS = {
    "onnxruntime": ("CUDAExecutionProvider",),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
}


def prepare(request: Request, sample: Feed) -> Prepared | Unavailable:
    """Load the model on the GPU by the variant's tool, in its precision.

    Raises:
        SourceError, RecipeError: as the export would.
        StageError: edgefuse has no kernel for an operator.
        ToolError: the tool fails, or the model's outputs are not those of the recipe.
    """
    tool, _, precision = request.variant.rpartition("_")
    try:
        gpu = device_name()
        if tool == "edgefuse":
            return _program(request, precision, gpu)
        if tool in _PROVIDERS:
            return _onnxruntime(request, sample, tool, precision, gpu)
        return _torch(request, sample, tool, precision, gpu)
    except DeviceUnavailable as error:
        return Unavailable(error.message)


def _torch(
    request: Request, sample: Feed, tool: str, precision: str, gpu: str
) -> Prepared | Unavailable:
    """``eager``, ``channels_last``, or ``inductor``: torch.compile on channels-last tensors."""
    if tool == "inductor" and importlib.util.find_spec("triton") is None:
        return Unavailable("torch.compile needs Triton on a GPU, and it is not installed")
    import torch
    from torch.utils import _pytree

    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"torch {torch.__version__} finds no NVIDIA GPU")
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    layout = torch.contiguous_format if tool == "eager" else torch.channels_last
    predict = load_module(request.torch).to(DEVICE, dtype).to(memory_format=layout)

    def placed(value: Array) -> Any:
        tensor = torch.from_numpy(value.copy())
        tensor = tensor.to(DEVICE, dtype if tensor.is_floating_point() else tensor.dtype)
        return tensor.to(memory_format=layout) if tensor.dim() == 4 else tensor

    operators: int | None = None
    note = f"{gpu}, {precision}, {tool.replace('_', ' ')}"
    if tool == "inductor":
        predict = torch.compile(predict, mode="max-autotune")
        note = f"{gpu}, {precision}, max-autotune, channels last"
    else:
        operators = dispatched(predict, tuple(placed(value) for value in sample.values()))

    def bind(feed: Feed) -> Callable[[], object]:
        tensors = tuple(placed(value) for value in feed.values())

        def invoke() -> object:
            with torch.inference_mode():
                result = predict(*tensors)
            torch.cuda.synchronize()
            return result

        return invoke

    def outputs(feed: Feed) -> dict[str, Array]:
        leaves = _pytree.tree_leaves(bind(feed)())
        if len(leaves) != len(request.outputs):
            raise ToolError(f"{len(leaves)} outputs, expected {', '.join(request.outputs)}")
        # In float32 like the base; a copy, since a captured graph reuses its buffers.
        real = (leaf.float() if leaf.is_floating_point() else leaf for leaf in leaves)
        return {name: leaf.cpu().numpy().copy() for name, leaf in zip(request.outputs, real)}

    fusions: Mapping[str, int] | None = None if tool == "inductor" else {}
    versions = {"torch": str(torch.__version__)}
    return Prepared(bind, outputs, operators, fusions, versions, note, gpu)


def _onnxruntime(
    request: Request, sample: Feed, tool: str, precision: str, gpu: str
) -> Prepared | Unavailable:
    """An execution provider; what it ran, and what stayed on the CPU, is counted in a profile."""
    import onnxruntime

    wanted = _PROVIDERS[tool]
    release = str(onnxruntime.__version__)
    if any(provider not in onnxruntime.get_available_providers() for provider in wanted):
        return Unavailable(f"onnxruntime {release} is built without {wanted[0]}")
    onnxruntime.preload_dlls()  # CUDA's libraries, where they are packages beside onnxruntime.
    given = {"trt_fp16_enable": str(precision == "fp16")} if tool == "tensorrt" else {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        providers = [(wanted[0], given), *wanted[1:]]
        session = onnxruntime.InferenceSession(request.path, options, providers=providers)
        session.disable_fallback()
        if any(provider not in session.get_providers() for provider in wanted):
            return Unavailable(f"onnxruntime {release} cannot load the libraries of {wanted[0]}")
        session.run(None, dict(sample))
        ran = operators_by_provider(Path(session.end_profiling()).read_text("utf-8"))
    if not ran[wanted[0]]:
        raise ToolError(f"{wanted[0]} took no operator of the graph")
    names = [output.name for output in session.get_outputs()]

    def bind(feed: Feed) -> Callable[[], object]:
        binding = session.io_binding()
        for name, value in feed.items():
            there = onnxruntime.OrtValue.ortvalue_from_numpy(value, DEVICE, 0)
            binding.bind_ortvalue_input(name, there)
        for name in names:
            binding.bind_output(name, DEVICE, 0)

        def invoke() -> object:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            return binding

        return invoke

    def outputs(feed: Feed) -> dict[str, Array]:
        return dict(zip(names, session.run(None, dict(feed))))

    held = ", ".join(f"{count} on {provider}" for provider, count in sorted(ran.items()))
    note = f"{gpu}, {precision}, operators: {held}"
    return Prepared(bind, outputs, ran.total(), None, {"onnxruntime": release}, note, gpu)


def operators_by_provider(profile: str) -> Counter[str]:
    """How many operators each execution provider ran, by onnxruntime's profile of one run."""
    return Counter(
        str(event["args"]["provider"])
        for event in json.loads(profile)
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    )


def _program(request: Request, precision: str, gpu: str) -> Prepared:
    """edgefuse's program, captured into one CUDA graph over one arena."""
    from edgefuse.cuda import run_gpu

    run_gpu.require_gpu()
    import torch

    program, weights = lowered(Path(request.path), cast("Precision", precision))
    with tempfile.TemporaryDirectory() as folder:
        captured = run_gpu.Captured(program, weights, Path(folder))

    def bind(feed: Feed) -> Callable[[], object]:
        tensors = {
            tensor.name: torch.from_numpy(feed[tensor.name].copy()).to(
                DEVICE, getattr(torch, tensor.dtype)
            )
            for tensor in program.inputs
        }

        def invoke() -> object:
            result = captured.replay(tensors)
            torch.cuda.synchronize()
            return result

        return invoke

    def outputs(feed: Feed) -> dict[str, Array]:
        return captured(feed)

    launches = program.launches
    together = sum(len(launch.nodes) > 1 for launch in launches)
    fusions = without_zeros({**request.fusions, "launches of several operators": together})
    versions = {"torch": str(torch.__version__), "triton": version("triton")}
    note = f"{gpu}, {precision}, one captured graph, {program.arena.arena_bytes / 1e6:.2f} MB arena"
    return Prepared(bind, outputs, len(launches), fusions, versions, note, gpu)


def lowered(path: Path, precision: Precision) -> tuple[Program, Weights]:
    """The program of a fused graph at its own shapes, its launches chosen by the cost model.

    Raises:
        StageError: an operator without a kernel.
    """
    from edgefuse.cuda.lower.choose import choose
    from edgefuse.cuda.lower.graph import lower
    from edgefuse.devices.measure.balance import balance_of
    from edgefuse.graph.normalise import load_proto
    from edgefuse.graph.shapes import at_shapes
    from edgefuse.target import load_target

    model = at_shapes(load_proto(path), {}).model
    known = balance_of(load_target(_TARGET), Path(os.devnull))
    if known is None:
        raise ToolError(f"target {_TARGET} has no balance", hint="give it one, or remove the file")
    plan = choose(model, known.balance, precision)
    return lower(model, precision, name="compare", kernels=plan.kernels)
