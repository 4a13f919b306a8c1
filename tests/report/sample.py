"""Report documents to render: a rich one that passes, and the ways a run ends otherwise."""

from __future__ import annotations

import copy
from typing import Any

DIGEST = "3f1c9a7e5b2d8f60417a9c3e6b8d0f2a5c7e9b1d3f5a7c9e0b2d4f6a8c0e1b3d"
LAYERS = 52


def _stage(name: str, seconds: float | None, summary: str, **more: Any) -> dict[str, Any]:
    stage = {
        "name": name,
        "status": "ran",
        "seconds": seconds,
        "sha256": DIGEST,
        "key": DIGEST[::-1],
    }
    return stage | {"kind": "tflite", "file": None, "bytes": None, "summary": summary} | more


def _check(name: str, value: float, bound: float | None, comparison: str, threshold: float, **more):
    check = {"name": name, "value": value, "bound": bound, "comparison": comparison}
    return check | {"threshold": threshold, "unit": "", "n": None, "verdict": "pass"} | more


def _ledger(name: str, verdict: str, module: str, **more: Any) -> dict[str, Any]:
    entry = {"pass": name, "status": verdict, "module": module, "nodes": [f"node_{module}"]}
    entry |= {"reason": "", "remedy": "", "saved_bytes": 0, "saved_launches": 0}
    entry |= {"ends_in": ["CONV_2D#3+RELU6"] if verdict == "fired" else []}
    return entry | more


def passing() -> dict[str, Any]:
    """A run of mobilenet_v2 that passes every gate."""
    fired = [
        _ledger(
            "fold_conv_batchnorm",
            "fired",
            f"features.{i // 3}.conv.{i % 3}",
            nodes=[f"Conv_{i}", f"BatchNormalization_{i}"],
            saved_bytes=301_056,
            saved_launches=1,
        )
        for i in range(LAYERS)
    ]
    fired += [
        _ledger(
            "fuse_conv_relu6",
            "fired",
            f"features.{i // 2}.conv.{i % 2}",
            nodes=[f"Conv_{i}", f"Clip_{i}"],
            saved_bytes=150_528,
            saved_launches=1,
        )
        for i in range(35)
    ]
    refused = [
        _ledger(
            "fuse_add_relu",
            "refused",
            f"features.{i}.add",
            nodes=[f"Add_{i}"],
            reason="The sum feeds two consumers, so its value must exist in memory.",
            remedy="Nothing to do: a residual block needs the sum twice.",
        )
        for i in range(10)
    ]
    refused.append(
        _ledger(
            "fold_constant",
            "refused",
            "classifier.1",
            nodes=["Transpose_0"],
            reason="The folded constant would hold 4.88 MiB, above fold_size_limit_bytes.",
            remedy="Raise fuse.fold_size_limit_bytes in the recipe.",
        )
    )
    contract = [
        {
            "group": "conv+relu6",
            "module": f"features.{i // 2}.conv.{i % 2}",
            "operator": "CONV_2D" if i % 2 else "DEPTHWISE_CONV_2D",
            "activation_wanted": "RELU6",
            "activation_found": "RELU6",
            "ok": True,
            "reason": "",
        }
        for i in range(35)
    ]
    return {
        "schema": 1,
        "edgefuse": "0.1.0",
        "recipe": "mobilenet_v2",
        "description": "MobileNetV2 on 224-pixel pictures, judged by agreement with float.",
        "verdict": "pass",
        "exit_code": 0,
        "target": "host",
        "error": None,
        "warnings": ["The latency gate ran with 2 other processes using the processor."],
        "stages": [
            _stage("export", None, "opset 18, 3.5 M parameters", status="reused", bytes=14_213_344),
            _stage("fuse", 6.42, "100 nodes from 170", kind="onnx", bytes=14_001_102),
            _stage("convert", 21.07, "65 operators, NHWC", bytes=14_022_900),
            _stage("quantize", 9.31, "int8, per channel, 64 samples", bytes=3_790_112),
            _stage("check", 0.04, "35 of 35 groups kept", kind="verdict"),
            _stage("gate", 48.6, "accuracy, memory, latency pass", kind="verdict"),
            _stage("package", 0.38, "mobilenet_v2.bundle", kind="bundle", bytes=3_911_204),
        ],
        "gates": [
            {
                "name": "accuracy",
                "verdict": "pass",
                "target": "host",
                "runtime": "ai-edge-litert 2.1.0",
                "provenance": "measured",
                "reused": False,
                "checks": [
                    _check("agreement_percent", 91.2, 88.0, ">=", 85.0, unit="%", n=200),
                    _check("sqnr_db", 24.31, 23.87, ">=", 20.0, unit="dB", n=200),
                    _check("drop_points", 0.31, 0.87, "<=", 1.0, unit="points", n=1_200),
                ],
                "figures": {
                    "top1_percent": {"float32": 71.88, "int8": 71.57},
                    "cosine": 0.99871,
                    "sources": 200,
                },
            },
            {
                "name": "memory",
                "verdict": "pass",
                "target": "host",
                "runtime": "ai-edge-litert 2.1.0",
                "provenance": "computed",
                "reused": False,
                "checks": [
                    _check("arena_bytes", 1_806_336, None, "<=", 2_097_152, unit="bytes"),
                    _check("model_bytes", 3_790_112, None, "<=", 4_194_304, unit="bytes"),
                ],
                "figures": {"peak_operator": "CONV_2D 4", "tensors": 173},
            },
            {
                "name": "latency",
                "verdict": "pass",
                "target": "host",
                "runtime": "ai-edge-litert 2.1.0",
                "provenance": "measured",
                "reused": True,
                "checks": [_check("ratio_to_float", 0.41, 0.44, "<=", 0.6, unit="ratio", n=200)],
                "figures": {
                    "int8": {"median_ms": 4.12, "p90_ms": 4.40},
                    "float32": {"median_ms": 10.03, "p90_ms": 10.61},
                    "processes": 5,
                    "medians_ms": [4.1, 4.13, 4.11, 4.12, 4.2],
                },
            },
        ],
        "fusion": {
            "operators_before": {
                "Conv": 52,
                "BatchNormalization": 52,
                "Clip": 35,
                "Add": 10,
                "Gemm": 1,
                "GlobalAveragePool": 1,
                "Flatten": 1,
            },
            "operators_after": {
                "Conv": 52,
                "Clip": 35,
                "Add": 10,
                "Gemm": 1,
                "GlobalAveragePool": 1,
                "Flatten": 1,
            },
            "operators_tflite": {
                "CONV_2D": 35,
                "DEPTHWISE_CONV_2D": 17,
                "ADD": 10,
                "FULLY_CONNECTED": 1,
                "MEAN": 1,
            },
            "passes": [
                {"name": "remove_identity", "fired": 0, "refused": 0, "max_relative_error": None},
                {"name": "fold_constant", "fired": 0, "refused": 1, "max_relative_error": None},
                {
                    "name": "fold_conv_batchnorm",
                    "fired": LAYERS,
                    "refused": 0,
                    "max_relative_error": 2.4e-6,
                },
                {"name": "fuse_conv_relu6", "fired": 35, "refused": 0, "max_relative_error": 0.0},
                {"name": "fuse_add_relu", "fired": 0, "refused": 10, "max_relative_error": None},
            ],
            "ledger": fired + refused,
            "saved": {"intermediate_bytes": 20_923_392, "launches": 87},
            "contract": contract,
        },
        "parity": [
            {
                "stage": "export",
                "max_relative_error": 8.1e-7,
                "limit": 1e-4,
                "samples": 4,
                "sqnr_db": 121.4,
            },
            {
                "stage": "fuse",
                "max_relative_error": 2.4e-6,
                "limit": 1e-4,
                "samples": 2,
                "sqnr_db": 112.9,
            },
            {
                "stage": "convert",
                "max_relative_error": 3.9e-6,
                "limit": 1e-4,
                "samples": 4,
                "sqnr_db": 108.2,
            },
            {
                "stage": "quantize",
                "max_relative_error": 0.061,
                "limit": None,
                "samples": 4,
                "sqnr_db": 24.3,
            },
        ],
        "artifacts": [
            {
                "file": "build/mobilenet_v2/fused.onnx",
                "kind": "onnx",
                "stage": "fuse",
                "sha256": DIGEST,
                "bytes": 14_001_102,
            },
            {
                "file": "build/mobilenet_v2/int8.tflite",
                "kind": "tflite",
                "stage": "quantize",
                "sha256": DIGEST[::-1],
                "bytes": 3_790_112,
            },
            {
                "file": "build/mobilenet_v2/mobilenet_v2.bundle",
                "kind": "bundle",
                "stage": "package",
                "sha256": DIGEST,
                "bytes": 3_911_204,
            },
        ],
        "environment": {
            "ai-edge-litert": "2.1.0",
            "ai-edge-quantizer": "0.4.1",
            "numpy": "1.26.4",
            "onnx": "1.17.0",
            "onnx-ir": "0.1.7",
            "onnx2tf": "1.28.2",
            "onnxruntime": "1.22.0",
            "onnxscript": "0.5.3",
            "python": "3.11.2",
            "torch": "2.7.1",
        },
        "command": "edgefuse run configs/mobilenet_v2.yaml --target host",
    }


def failing() -> dict[str, Any]:
    """The same run with an accuracy bound under its threshold and a broken contract."""
    report = copy.deepcopy(passing())
    report |= {"verdict": "fail", "exit_code": 1}
    report["error"] = {
        "kind": "GateFailed",
        "message": "accuracy: agreement_percent is at least 83.1%, the recipe asks for 85%.",
        "hint": "Look at the fusion contract first: two activations are not fused.",
        "where": "configs/mobilenet_v2.yaml:41",
    }
    accuracy = report["gates"][0]
    accuracy["verdict"] = "fail"
    accuracy["checks"][0] |= {"value": 86.5, "bound": 83.1, "verdict": "fail"}
    report["gates"][2]["verdict"] = "inconclusive"
    report["gates"][2]["checks"][0] |= {
        "value": 0.52, "bound": 0.71, "verdict": "inconclusive", "needed_samples": 1100
    }  # fmt: skip
    for entry in report["fusion"]["contract"][4:6]:
        entry |= {"ok": False, "activation_found": "NONE", "reason": "RELU6 stands alone."}
    report["stages"][5] |= {"status": "failed", "summary": "accuracy fails"}
    report["stages"][6] |= {"status": "blocked", "seconds": None, "bytes": None, "summary": ""}
    report["artifacts"].pop()
    return report


def early() -> dict[str, Any]:
    """A run whose first stage failed: little is known."""
    return {
        "schema": 1,
        "edgefuse": "0.1.0",
        "recipe": "tiny",
        "verdict": "error",
        "exit_code": 3,
        "target": "host",
        "error": {"kind": "SourceError", "message": "No such weights.", "hint": "", "where": ""},
        "warnings": [],
        "stages": [
            _stage("export", 0.2, "", status="failed", sha256=None),
            _stage("fuse", None, "", status="blocked", sha256=None),
        ],
        "gates": [],
        "fusion": None,
        "command": "edgefuse run tiny.yaml",
    }
