"""A recipe's section cuda: from an ONNX file to a bundle with GPU programs, or one message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases.pipeline import Run, inputs, run, samples, write_recipe
from command import edgefuse
from cuda.nets import BLOCK, graph
from memory.nets import Net

from edgefuse.archive import read_members
from edgefuse.cuda import parcel
from edgefuse.cuda.run_numpy import Runner
from edgefuse.errors import RecipeError

SHAPES = {"x": (3, 16, 16)}
NET = BLOCK.replace("float[2, 3, 9, 11] x", "float[1, 3, 16, 16] x").replace(
    "float[2, 5] y", "float[1, 5] y"
)
#: Of the tiny network above: its activations are small integers of few scales.
GATES = {
    "accuracy": {"min_sqnr_db": 20},
    "memory": {"max_arena_bytes": 10_000, "max_model_bytes": 600_000},
}
pytestmark = pytest.mark.usefixtures("own_store")
Ran = Callable[..., Run]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """``written(target, gates=..., cuda=...)`` is a recipe of that network."""

    def go(target: str, gates: dict[str, Any] = GATES, **sections: Any) -> Path:
        onnx.save(graph(NET), tmp_path / "net.onnx")
        model = {"onnx": {"path": "net.onnx"}, "inputs": inputs(SHAPES)}
        data = samples(SHAPES, 40, seed=1), samples(SHAPES, 20, seed=2)
        common = {"gates": gates, "release": False, "target": target}
        return write_recipe(tmp_path, "net", model, *data, **common, **sections)

    return go


@pytest.fixture
def ran(written: Callable[..., Path]) -> Ran:
    return lambda target, **sections: run(written(target, **sections))


def programs(ended: Run) -> tuple[Any, ...]:
    """What lies in the published archive: programs with their weights."""
    assert ended.report["verdict"] == "pass", ended.error
    return parcel.read(ended.file("_cuda.tar"))


class TestBundle:
    def test_holds_a_program_for_each_bucket_and_is_made_again_with_the_same_bytes(
        self, ran: Ran, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gates = {**GATES, "targets": {"cuda-interp": {**GATES, "latency": None}}}
        sections = {"cuda": {"precision": "fp16"}, "shapes": {"buckets": [1, 4]}, "gates": gates}
        ended = ran("cuda-interp", **sections)
        made = programs(ended)
        assert [p.bucket for p, _ in made] == ["batch 1", "batch 4"]
        assert [p.inputs[0].shape for p, _ in made] == [(1, 3, 16, 16), (4, 3, 16, 16)]
        assert {p.precision for p, _ in made} == {"fp16"}
        assert all(p.arena.proven and p.arena.arena_bytes == p.arena.bound_bytes for p, _ in made)

        bundle = ended.out / "net.bundle.tar"
        members = read_members(bundle)
        manifest = json.loads(members["manifest.json"])
        assert manifest["models"]["compiled"] == "models/net_cuda-interp.cuda.tar"
        assert members["models/net_cuda-interp.cuda.tar"] == ended.file("_cuda.tar").read_bytes()
        assert manifest["compiled"]["target"] == "cuda-interp"
        assert "fp16" in manifest["compiled"]["by"]
        assert manifest["compiled"]["programs"] == [
            {
                "bucket": p.bucket,
                "launches": len(p.launches),
                "arena_bytes": p.arena.arena_bytes,
                "weights_bytes": p.weights_bytes,
            }
            for p, _ in made
        ]

        monkeypatch.chdir(ended.out.parent)
        told = edgefuse("verify", bundle, "--rebuild", "--sources", ended.out.parent)
        assert told.code == 0, told.out + told.err
        assert "same bytes" in told.out


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_precision_passes_its_gates_on_the_interpreter(ran: Ran, precision: str) -> None:
    ended = ran("cuda-interp", cuda={"precision": precision})
    ((program, weights),) = programs(ended)
    assert program.precision == precision
    gates = {gate["name"]: gate for gate in ended.report["gates"]}
    assert gates["accuracy"]["runtime"] == "NumPy references of the GPU kernels"
    assert gates["memory"]["checks"][0]["value"] == program.arena.arena_bytes
    assert gates["memory"]["provenance"] == gates["accuracy"]["provenance"] == "estimated"
    feed = samples(SHAPES, 1, seed=9)
    (upright,) = Runner(program, weights)(feed).values()
    scattered = np.asfortranarray(feed["x"])
    assert not scattered.flags["C_CONTIGUOUS"]
    (same,) = Runner(program, weights)({"x": scattered}).values()
    assert np.array_equal(upright, same)


class TestWithoutADevice:
    @pytest.mark.parametrize("target", ["cuda-orin", "cuda-local"])
    def test_gates_are_inconclusive_in_one_message(
        self, written: Callable[..., Path], target: str
    ) -> None:
        import torch

        if target == "cuda-local" and torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        path = written(target, {**GATES, "latency": {"max_p90_ms": 1}}, cuda={"precision": "fp16"})
        ended = edgefuse("run", path, "--out", path.parent / "out", "--quiet")
        assert ended.code == 4, ended.err
        assert len(ended.messages) == 1 and "no device" in ended.err
        assert "Traceback" not in ended.err
        assert not (path.parent / "out" / "net.bundle.tar").exists()

    def test_a_ratio_to_a_float_file_is_refused(self, ran: Ran) -> None:
        ended = ran(
            "cuda-orin", gates={"latency": {"max_ratio_to_float": 1}}, cuda={"precision": "fp16"}
        )
        assert ended.report["exit_code"] == 2 and "max_ratio_to_float" in ended.error

    def test_a_latency_gate_needs_a_time(self, ran: Ran) -> None:
        ended = ran("cuda-orin", gates={"latency": {"max_cycles": 1}}, cuda={"precision": "fp16"})
        assert ended.report["exit_code"] == 2 and "max_p90_ms" in ended.error


class TestRefused:
    @pytest.mark.parametrize("command", ["run", "plan", "memory"])
    def test_a_recipe_without_the_section(self, written: Callable[..., Path], command: str) -> None:
        path = written("host")
        ended = edgefuse(command, path, "--target", "cuda-interp")
        assert ended.code == 2 and len(ended.messages) == 1
        assert "no section cuda" in ended.err and "--target" in ended.err
        assert "precision: fp16" in ended.err

    def test_the_recipe_s_own_target_is_named_by_its_line(
        self, written: Callable[..., Path]
    ) -> None:
        path = written("cuda-interp")
        line = path.read_text().splitlines().index("target: cuda-interp") + 1
        with pytest.raises(RecipeError) as refused:
            run(path)
        assert refused.value.where == f"{path}:{line}"

    @pytest.mark.parametrize("cuda", [{}, None])
    def test_a_tflite_source(self, tmp_path: Path, cuda: dict[str, Any] | None) -> None:
        net = Net((8, 8), integer=False)
        (tmp_path / "given.tflite").write_bytes(net.finish(net.conv(net.image, 4, 3)))
        model = {
            "tflite": {"path": "given.tflite"},
            "inputs": [{"name": "picture", "shape": [1, 8, 8, 3]}],
        }
        data = samples({"picture": (8, 8, 3)}, 8, seed=1)
        path = write_recipe(tmp_path, "net", model, data, data, gates=GATES, cuda=cuda)
        ended = edgefuse("run", path, "--target", "cuda-interp")
        assert ended.code == 2 and len(ended.messages) == 1
        assert "a .tflite source has none" in ended.err

    def test_int8_programs_of_another_format(self, written: Callable[..., Path]) -> None:
        path = written(
            "cuda-interp", cuda={"precision": "int8"}, quantize={"format": "dynamic_range"}
        )
        ended = edgefuse("run", path)
        assert ended.code == 2 and len(ended.messages) == 1
        assert "quantize.format: int8" in ended.err
