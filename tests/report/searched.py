"""Parts ``quantisation`` of a report: as asked for, after a search with timed candidates, a search
in vain, and a model that brought its own scales."""

from __future__ import annotations

from typing import Any

_FUSED = "model_1/relu6_3/Relu6;model_1/add_4/Add;model_1/depthwise_1/depthwise;Const_100"


def _options(**more: Any) -> dict[str, Any]:
    options = {"format": "int8", "weights": "per_channel", "ranges": "percentile"}
    options |= {"tail_percent": 0.01, "tensors": [], "head": "values", "equalize": False}
    options |= {"rounding": "nearest", "correct_bias": "none", "keep_float": [], "int16": []}
    return options | more


def asked_for() -> dict[str, Any]:
    """Equalised, GPTQ, the head's bias corrected; ranges that have not settled; one finding."""
    return {
        "options": _options(
            equalize=True, rounding="gptq", correct_bias="head", tail_percent=0.005
        ),
        "calibration_samples": 100,
        "method": "percentile",
        "tensors": 70,
        "max_clipped_fraction": 0.0001,
        "convergence": {
            "samples": 100,
            "settled_at": None,
            "enough_samples": 280,
            "moving": 22,
            "farthest_steps": {_FUSED: 10.7, "model_1/add_47/Add": 7.0},
            "summary": "22 of 70 ranges moved",
        },
        "equalized": True,
        "equalisation": {
            "channels": 14_773,
            "groups": 42,
            "largest_factor": 81.5,
            "max_relative_error": 0.0089,
        },
        "max_weight_steps": 4.5,
        "rounding": {"layers": 53, "samples": 100, "changed_fraction": 0.1471},
        "head_bias": {"max_shift": 0.146967, "mean_shift": 0.035395},
        "lint": [
            {
                "code": "ranges_differ",
                "message": "evaluation samples reach 5.1 times as far as calibration samples",
                "where": "data.calibration",
                "remedy": "calibrate on samples of the kind that the model will see",
                "severity": "warning",
            }
        ],
    }


def _trial(technique: str, agreement: float, drop: float, sqnr: float, **more: Any):
    score = {"agreement": agreement, "drop_points": drop, "sqnr_db": sqnr, "samples": 100}
    trial = {"technique": technique, "options": {}, "score": score, "meets": False}
    return trial | {"float_layers": [], "latency_ratio": None, "seconds": 41.2} | more


def _layers(number: int) -> list[str]:
    return [f"layer{i}/Relu6" for i in range(number)]


def searched() -> dict[str, Any]:
    """Three candidates in full int8, then layers in float, two of which reach the goal."""
    names = _layers(3)
    chosen = {"rounding": "gptq", "correct_bias": "layers", "equalize": True}
    chosen["keep_float"] = [f"^{name}$" for name in names]
    floats = [(1, 0.965, 0.42), (2, 0.97, 0.44), (4, 0.985, 0.53), (3, 0.98, 0.47)]
    return asked_for() | {
        "options": _options(**chosen),
        "search": {
            "goal": {"min_agreement": 0.975, "max_drop_points": 1.0, "time_limit_s": 600},
            "reached": True,
            "chosen": "3 layers in float",
            "options": chosen,
            "float_layers": names,
            "trials": [
                _trial("the recipe's own options", 0.89, 3.0, 15.31),
                _trial("rounding by GPTQ", 0.95, 1.0, 19.2),
                _trial("equalised channels, GPTQ", 0.96, -1.0, 20.88, latency_ratio=0.39),
                *(
                    _trial(
                        f"{n} layer{'s' if n > 1 else ''} in float",
                        agreement,
                        0.0,
                        20 + 2.0 * n,
                        float_layers=_layers(n),
                        latency_ratio=ratio,
                        meets=n > 2,
                    )
                    for n, agreement, ratio in floats
                ),
            ],
            "blamed": [
                {"tensor": name, "code": "DEPTHWISE_CONV_2D", "share_percent": 31.0 / (i + 1)}
                for i, name in enumerate([_FUSED, *names])
            ],
            "untried": "",
        },
    }


def in_vain() -> dict[str, Any]:
    """The evidence that a failed stage leaves: the search alone."""
    search = searched()["search"]
    trials = [trial | {"meets": False} for trial in search["trials"][:3]]
    return {
        "options": _options(),
        "search": search
        | {
            "goal": {"min_agreement": 0.99, "time_limit_s": 600},
            "reached": False,
            "chosen": "equalised channels, GPTQ",
            "options": {"rounding": "gptq", "correct_bias": "layers", "equalize": True},
            "float_layers": [],
            "trials": trials,
            "untried": "no layer was raised to float: check.permit_float allows none of the "
            "operators that are to blame",
        },
        "left": ["reproducer/best.tflite", "reproducer/search.json"],
    }


def given() -> dict[str, Any]:
    """A QDQ model's own scales."""
    held = asked_for()
    for key in ("rounding", "head_bias", "equalisation"):
        del held[key]
    return held | {
        "options": _options(),
        "equalized": False,
        "lint": [],
        "given": {
            "activations": 62,
            "weights": 53,
            "biases": 53,
            "followed": 4,
            "calibrated": ["logits"],
            "weights_without_scales": [],
            "requantized": [],
            "merged": ["pool"],
            "fused_away": [],
        },
    }
