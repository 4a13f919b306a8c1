"""Rows on a GPU, as far as they go without one: absent, or on the CPU behind a faked device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from cuda.nets import BLOCK, fused, graph

from edgefuse.compare import cuda_device, cuda_rows, rows, worker
from edgefuse.compare.cuda_device import device_name, why_no_device
from edgefuse.compare.document import build
from edgefuse.compare.interleave import Measured
from edgefuse.compare.prepared import Prepared, Request, Unavailable
from edgefuse.compare.rows import ROWS, why_not_installed
from edgefuse.cuda import run_gpu
from edgefuse.cuda.run_numpy import Runner
from edgefuse.errors import DeviceUnavailable, ToolError

ON_GPU = [row for row in ROWS if row.on_gpu]
FEED = {"x": np.random.default_rng(0).normal(size=(2, 3, 9, 11)).astype(np.float32)}


def fake_driver(monkeypatch: pytest.MonkeyPatch, **status: int) -> None:
    """A driver with one GPU, whose functions give these error numbers."""

    def named(buffer: Any, size: int, device: Any) -> int:
        assert size == 256 and device.value == 0
        buffer.value = b"a GPU"
        return status.get("cuDeviceGetName", 0)

    driver = SimpleNamespace(
        cuInit=lambda flags: status.get("cuInit", 0),
        cuDeviceGet=lambda device, ordinal: status.get("cuDeviceGet", 0),
        cuDeviceGetName=named,
    )
    monkeypatch.setattr(ctypes, "CDLL", {cuda_device.LIBRARY: driver}.__getitem__)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(DeviceUnavailable, match=r"^no CUDA device$"):
        device_name()


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, ""),
        ({"cuInit": 100}, "no CUDA device"),
        ({"cuDeviceGet": 101}, "no CUDA device"),
        ({"cuInit": 803}, "no CUDA device: cuInit of the driver gives error 803"),
    ],
)
def test_what_the_driver_says(
    status: dict[str, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(monkeypatch, **status)
    assert why_no_device() == why
    if not why:
        assert device_name() == "a GPU"


def test_without_a_device_no_package_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "LIBRARY", "libcuda-of-nobody.so.1")
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda _: pytest.fail("looked for"))
    assert len(ON_GPU) == 11
    assert {why_not_installed(row) for row in ON_GPU} == {"no CUDA device"}


def test_with_a_device_packages_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch)
    monkeypatch.setattr(rows.importlib.util, "find_spec", {"torch": 1, "triton": None}.get)
    why = {row.name: why_not_installed(row) for row in ON_GPU}
    assert why["cuda_inductor_fp16"] == ""
    assert why["cuda_tensorrt_fp32"].startswith("not installed: onnxruntime (")
    assert why["cuda_edgefuse_fp16"].startswith("not installed: triton (")


def test_only_rows_on_a_gpu_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = {row.environment.get("CUDA_VISIBLE_DEVICES") for row in ROWS if not row.on_gpu}
    assert seen == {None}
    assert {row.environment["CUDA_VISIBLE_DEVICES"] for row in ON_GPU} == {"0"}
    assert {row.environment["NVIDIA_TF32_OVERRIDE"] for row in ON_GPU} == {"0"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert {row.environment["CUDA_VISIBLE_DEVICES"] for row in ON_GPU} == {"3"}


def test_every_variant_has_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_rows, "device_name", lambda: "a GPU")
    for name in ("_torch", "_onnxruntime", "_program"):
        monkeypatch.setattr(cuda_rows, name, lambda *given, name=name: (name, given[-2]))
    found = {row.variant: cuda_rows.prepare(Request(row.variant), {}) for row in ON_GPU}
    made_by = {"cuda_torch": "_torch", "cuda_onnxruntime": "_onnxruntime"}
    for row in ON_GPU:
        assert found[row.variant] == (made_by.get(row.family, "_program"), row.variant[-4:])


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The CPU as the device of torch and onnxruntime; how often the device was waited for."""
    import torch

    waits: list[str] = []
    monkeypatch.setattr(cuda_rows, "device_name", lambda: "a GPU")
    monkeypatch.setattr(cuda_rows, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("synchronised"))
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    yield waits
    torch.set_num_threads(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """A small module for the torch rows; dtype of each input that it gets, and if channels last."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(504, 4)).eval()
    seen: list[tuple[Any, bool]] = []

    def look(_: Any, given: Any) -> None:
        last = given[0].is_contiguous(memory_format=torch.channels_last)
        seen.append((given[0].dtype, last))

    net.register_forward_pre_hook(look)
    monkeypatch.setattr(cuda_rows, "load_module", lambda _: net)
    return seen


def _torch_row(tool: str, precision: str) -> Prepared:
    request = Request(f"{tool}_{precision}", outputs=("y",))
    found = cuda_rows.prepare(request, FEED)
    assert isinstance(found, Prepared)
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("tool", ["eager", "channels_last"])
def test_torch(
    tool: str, precision: str, on_cpu: list[str], layouts: list[tuple[Any, bool]]
) -> None:
    import torch

    expected = cuda_rows.load_module({})(torch.from_numpy(FEED["x"])).detach().numpy()
    layouts.clear()
    found = _torch_row(tool, precision)
    invoke = found.bind(FEED)
    on_cpu.clear()
    invoke()
    invoke()
    assert on_cpu == ["synchronised"] * 2
    dtype = torch.float32 if precision == "fp32" else torch.float16
    assert set(layouts) == {(dtype, tool == "channels_last")}
    got = found.outputs(FEED)["y"]
    assert got.dtype == np.float32
    apart = np.max(np.abs(got - expected)) / np.max(np.abs(expected))
    assert apart < 1e-5 if precision == "fp32" else 0 < apart < 2e-2
    assert (found.operators, found.fusions, found.device) == (3, {}, "a GPU")
    assert found.note == f"a GPU, {precision}, {tool.replace('_', ' ')}"
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is False


def test_torch_compile(
    on_cpu: list[str], layouts: list[tuple[Any, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    asked: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda module, *, mode: asked.append(mode) or module)
    monkeypatch.setattr(cuda_rows.importlib.util, "find_spec", lambda _: object())
    found = _torch_row("inductor", "fp16")
    found.bind(FEED)()
    assert asked == ["max-autotune"] and set(layouts) == {(torch.float16, True)}
    assert on_cpu and (found.operators, found.fusions) == (None, None)
    monkeypatch.setattr(cuda_rows.importlib.util, "find_spec", lambda _: None)
    refused = cuda_rows.prepare(Request("inductor_fp16"), FEED)
    assert isinstance(refused, Unavailable) and "needs Triton" in refused.reason


def test_a_torch_for_the_cpu(on_cpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = cuda_rows.prepare(Request("eager_fp32"), FEED)
    assert refused == Unavailable(f"torch {torch.__version__} finds no NVIDIA GPU")


def test_other_outputs_than_the_recipe_has(
    on_cpu: list[str], layouts: list[tuple[Any, bool]]
) -> None:
    found = cuda_rows.prepare(Request("eager_fp32", outputs=("y", "z")), FEED)
    assert isinstance(found, Prepared)
    with pytest.raises(ToolError, match="1 outputs, expected y, z"):
        found.outputs(FEED)


@pytest.fixture(scope="module")
def unfused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda_rows") / "block.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(graph(BLOCK)), path)
    return path


def _expected(path: Path) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, FEED)[0]


def test_onnxruntime(on_cpu: list[str], unfused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's provider in the place of CUDA's: binding, counting and outputs are the same."""
    provider = "CPUExecutionProvider"
    monkeypatch.setitem(cuda_rows._PROVIDERS, "onnxruntime", (provider,))
    found = cuda_rows.prepare(Request("onnxruntime_fp32", str(unfused)), FEED)
    assert isinstance(found, Prepared) and found.operators is not None
    assert 5 <= found.operators <= 11
    assert found.note == f"a GPU, fp32, operators: {found.operators} on {provider}"
    assert (found.device, found.fusions) == ("a GPU", None)
    bound: Any = found.bind(FEED)()
    expected = _expected(unfused)
    np.testing.assert_allclose(bound.copy_outputs_to_cpu()[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.outputs(FEED)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "provider"),
    [
        ("onnxruntime_fp32", "CUDAExecutionProvider"),
        ("tensorrt_fp16", "TensorrtExecutionProvider"),
    ],
)
def test_onnxruntime_without_a_provider(
    variant: str, provider: str, on_cpu: list[str], unfused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not built in; then built in, and refusing to load: onnxruntime then takes the CPU's."""
    import onnxruntime

    cpu = "CPUExecutionProvider"
    request = Request(variant, str(unfused))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [cpu])
    refused = cuda_rows.prepare(request, FEED)
    assert isinstance(refused, Unavailable) and f"is built without {provider}" in refused.reason
    every = [*cuda_rows._PROVIDERS["tensorrt"], cpu]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: every)
    asked: list[Any] = []

    def session(path: str, options: Any, providers: list[Any]) -> Any:
        asked.extend(providers)
        return SimpleNamespace(disable_fallback=lambda: None, get_providers=lambda: [cpu])

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    refused = cuda_rows.prepare(request, FEED)
    assert isinstance(refused, Unavailable) and "cannot load the libraries" in refused.reason
    wanted = {"trt_fp16_enable": "True"} if "tensorrt" in variant else {}
    assert asked[0] == (provider, wanted)


def test_a_graph_that_stays_on_the_cpu_is_no_row_of_a_gpu(
    on_cpu: list[str], unfused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cuda_rows._PROVIDERS, "onnxruntime", ("CPUExecutionProvider",))
    profile = """[{"cat": "Session", "name": "run"},
        {"cat": "Node", "name": "a_fence_before", "args": {}},
        {"cat": "Node", "name": "a_kernel_time", "args": {"provider": "Other"}}]"""
    assert cuda_rows.operators_by_provider(profile) == {"Other": 1}
    counted = cuda_rows.operators_by_provider(profile)
    monkeypatch.setattr(cuda_rows, "operators_by_provider", lambda _: counted)
    with pytest.raises(ToolError, match="CPUExecutionProvider took no operator"):
        cuda_rows.prepare(Request("onnxruntime_fp32", str(unfused)), FEED)


class NumpyCaptured:
    """As :class:`edgefuse.cuda.run_gpu.Captured`, by the kernels' references."""

    def __init__(self, program: Any, weights: Any, folder: Path) -> None:
        assert folder.is_dir()
        self.program, self._run = program, Runner(program, weights)

    def __call__(self, feed: Any) -> Any:
        return self._run(feed)

    def replay(self, feed: Any) -> Any:
        for tensor in self.program.inputs:
            assert str(feed[tensor.name].dtype) == f"torch.{tensor.dtype}"
            assert tuple(feed[tensor.name].shape) == tensor.shape
        return self._run({name: value.float().numpy() for name, value in feed.items()})


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_edgefuse(
    precision: str, on_cpu: list[str], unfused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unfused.with_name("fused.onnx")
    onnx.save(fused(graph(BLOCK)), path)
    monkeypatch.setattr(run_gpu, "require_gpu", lambda: "a GPU")
    monkeypatch.setattr(run_gpu, "Captured", NumpyCaptured)
    found = cuda_rows.prepare(
        Request(f"edgefuse_{precision}", str(path), fusions={"fold_it": 2}), FEED
    )
    assert isinstance(found, Prepared) and found.fusions is not None
    assert found.operators is not None and 3 <= found.operators <= 6 and found.device == "a GPU"
    assert found.fusions["fold_it"] == 2 and found.fusions["launches of several operators"] >= 3
    on_cpu.clear()
    found.bind(FEED)()
    assert on_cpu == ["synchronised"]
    got, expected = found.outputs(FEED)["y"], _expected(unfused)
    apart = np.max(np.abs(got - expected)) / np.max(np.abs(expected))
    assert apart < (1e-4 if precision == "fp32" else 2e-2)


def test_edgefuse_on_a_gpu_that_is_too_old(
    on_cpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise DeviceUnavailable("a T4 is sm_75: code is made from sm_80 on")

    monkeypatch.setattr(run_gpu, "require_gpu", refuse)
    refused = cuda_rows.prepare(Request("edgefuse_fp16", "no.onnx"), FEED)
    assert refused == Unavailable("a T4 is sm_75: code is made from sm_80 on")


def test_the_worker_names_the_device(
    tmp_path: Path, on_cpu: list[str], layouts: list[tuple[Any, bool]]
) -> None:
    np.savez(tmp_path / "feeds.npz", **{"0/x": FEED["x"]})
    request = {"variant": "eager_fp16", "outputs": ("y",)}
    files = {"feeds": str(tmp_path / "feeds.npz"), "results": str(tmp_path / "y.npz")}
    answer = worker.work({"do": "prepare", "family": "cuda_torch", "request": request, **files})
    assert answer["device"] == "a GPU" and answer["operators"] == 3
    assert np.load(tmp_path / "y.npz")["0/y"].shape == (2, 4)


def test_threads_of_a_row_on_a_gpu_are_no_doubt(tmp_path: Path) -> None:
    """It may spin on two CPUs or sleep; only rows on the CPU tell whether the machine is busy."""
    eager = Measured(ROWS[0], bursts_ms=[[10.0]], cpu_ms=[10.0])
    answer = {"device": "a GPU"}
    others = [Measured(r, answer=answer, bursts_ms=[[1.0]], cpu_ms=[2.0]) for r in ON_GPU[:2]]
    results = {}
    for found in (eager, *others):
        results[found.row.name] = tmp_path / f"{found.row.name}.npz"
        np.savez(results[found.row.name], **{"0/y": np.ones(2, np.float32)})
    words: dict[str, Any] = {"command": "", "rounds": 1, "invokes": 1, "load": 0.0, "seconds": 1.0}
    document = build("tiny", [eager, *others], results, **words, warnings=())
    assert document["warnings"] == [] and document["base"] == "eager"
    assert [row["device"] for row in document["rows"]] == ["", "a GPU", "a GPU"]
    assert [row["ratio_to_eager"] for row in document["rows"]] == [1.0, 10.0, 10.0]
