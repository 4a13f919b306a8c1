"""PyTorch rows: eager, fused by torch.fx, TorchScript, torch.compile.

``folded`` is ``torch.fx.experimental.optimization.fuse``: it traces the module and folds each
BatchNorm into the convolution or linear layer before it. (``fuse_modules`` of torch.ao does the
same to modules that are named to it one by one.) Everything runs on one thread, in eval mode,
without gradients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.compare.prepared import Prepared, Request, Unavailable, without_zeros
from edgefuse.compare.torch_module import dispatched, load_module
from edgefuse.errors import ToolError

if TYPE_CHECKING:
    from edgefuse.compare.prepared import Array, Feed

# Nodes of a TorchScript graph that compute nothing.
_PLUMBING = re.compile(
    r"prim::(Constant\w*|GetAttr|SetAttr|\w+Construct|\w+Unpack|BroadcastMKLDNNTensors|Print)$"
)
_KERNEL = re.compile(r"^\s+(?:\w+ = )?(cpp_fused_\w+|extern_kernels\.\w+|torch\.ops\.\S+?)\(", re.M)
_ORIGINS = re.compile(r"Original ATen: \[([^\]]*)\]")


def prepare(request: Request, sample: Feed) -> Prepared | Unavailable:
    """Load the recipe's module and hand it to the variant's tool.

    Raises:
        SourceError, RecipeError: as the export would.
        ToolError: the model's outputs are not those of the recipe.
    """
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    module = load_module(request.torch)
    arguments = _tensors(sample)
    made = _VARIANTS[request.variant](module, arguments)
    if isinstance(made, Unavailable):
        return made
    predict, operators, fusions, note = made

    def bind(feed: Feed) -> Callable[[], object]:
        tensors = _tensors(feed)

        def invoke() -> object:
            with torch.inference_mode():
                return predict(*tensors)

        return invoke

    def outputs(feed: Feed) -> dict[str, Array]:
        from torch.utils import _pytree

        leaves = _pytree.tree_leaves(bind(feed)())
        if len(leaves) != len(request.outputs):
            raise ToolError(f"{len(leaves)} outputs, expected {', '.join(request.outputs)}")
        # A copy: inductor reuses its buffers.
        return {n: leaf.numpy().copy() for n, leaf in zip(request.outputs, leaves)}

    versions = {"torch": str(torch.__version__)}
    return Prepared(bind, outputs, operators, fusions, versions, note)


def _tensors(feed: Feed) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(value.copy()) for value in feed.values())


Made = tuple[Callable[..., Any], int | None, Mapping[str, int] | None, str]


def _eager(module: Any, arguments: tuple[Any, ...]) -> Made:
    return module, dispatched(module, arguments), {}, "one operator at a time"


def _folded(module: Any, arguments: tuple[Any, ...]) -> Made:
    from torch.fx.experimental.optimization import fuse

    fused = fuse(module)
    folded = _batch_norms(module) - _batch_norms(fused)
    fusions = without_zeros({"BatchNorm folded": folded})
    note = "torch.fx.experimental.optimization.fuse"
    return fused, dispatched(fused, arguments), fusions, note


def _torchscript(module: Any, arguments: tuple[Any, ...]) -> Made:
    import torch

    with torch.inference_mode():
        traced = torch.jit.trace(module, arguments, check_trace=False)
        before = _kinds(traced.inlined_graph)
        script = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        for _ in range(3):  # The profiling executor specialises on the first runs.
            script(*arguments)
    after = _kinds(torch.jit.last_executed_optimized_graph())
    fusions = {
        "BatchNorm folded": before["aten::batch_norm"] - after["aten::batch_norm"],
        "fused groups": sum(n for kind, n in after.items() if "Group" in kind),
        "activation fused": sum(n for kind, n in after.items() if re.search(r"conv.*_relu", kind)),
    }
    note = "traced, frozen, optimize_for_inference"
    return script, sum(after.values()), without_zeros(fusions), note


def _inductor(module: Any, arguments: tuple[Any, ...]) -> Made | Unavailable:
    import torch
    from torch._inductor import cpp_builder, exc
    from torch._inductor.utils import run_and_get_code

    try:
        compiler = cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return Unavailable("inductor needs a C++ compiler, and none is found: install g++")
    compiled = torch.compile(module)
    with torch.inference_mode():
        _, sources = run_and_get_code(compiled, *arguments)
    operators, fused = _kernels("\n".join(sources))
    note = f"default mode, {Path(compiler).name}"
    return compiled, operators, without_zeros({"fused kernels": fused}), note


_VARIANTS: dict[str, Callable[[Any, tuple[Any, ...]], Made | Unavailable]] = {
    "eager": _eager,
    "folded": _folded,
    "torchscript": _torchscript,
    "inductor": _inductor,
}


def _batch_norms(module: Any) -> int:
    from torch.nn.modules.batchnorm import _BatchNorm

    return sum(isinstance(part, _BatchNorm) for part in module.modules())


def _kinds(graph: Any) -> Counter[str]:
    """Computing nodes of a TorchScript graph by kind."""
    kinds = (str(node.kind()) for node in graph.nodes())
    return Counter(kind for kind in kinds if not _PLUMBING.match(kind))


def _kernels(source: str) -> tuple[int, int]:
    """Kernel calls in inductor's wrapper, and how many of them hold several operators.

    A generated kernel is called after its operators, ``cpp_fused_convolution_relu_7``; the
    operators' own names are in the wrapper's comments.
    """
    calls = _KERNEL.findall(source)
    listed = (name for group in _ORIGINS.findall(source) for name in group.split(", "))
    single = {name.removeprefix("aten.") for name in listed}
    held = (
        re.sub(r"_\d+$", "", name.removeprefix("cpp_fused_")) for name in calls if "." not in name
    )
    return len(calls), sum(name not in single for name in held)
