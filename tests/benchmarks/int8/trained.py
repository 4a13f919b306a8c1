"""The search on networks trained here: HardSwish with squeeze-and-excitation, LayerNorm with GELU.

Their recipes give a goal, on samples that are neither calibrated on nor judged, with an SQNR that
int8 alone does not reach. What is asked of the search: that it reaches the goal there, and tells
what it chose and which layers it raised. What the file then comes to on the judged samples stands
beside it: a goal met by a hair may be missed by one there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.yaml_file import read_yaml
from int8.digits import Training, trained
from int8.judge import Judgement, judge, outputs
from int8.page import Check
from int8.product import run_edgefuse
from int8.splits import facts

if TYPE_CHECKING:
    from int8_accuracy import Found, Options

RECIPES = Path("tests/benchmarks/recipes")
#: Epochs and learning rate of each recipe's network.
TRAININGS = {
    "digits_mobilenet_v3": ("MobileNetV3-Small on handwritten digits", 40, 3e-3),
    "digits_convnext": ("ConvNeXt on handwritten digits", 40, 2e-3),
}


def measure(options: Options) -> list[Found]:
    return [_measure(name, options) for name in TRAININGS]


def _measure(name: str, options: Options) -> Found:
    title, epochs, rate = TRAININGS[name]
    recipe = RECIPES / f"{name}.yaml"
    told = read_yaml(recipe).data
    torch = told["model"]["torch"]
    folder = trained(Training(name, torch["callable"], torch["arguments"], epochs, rate))
    os.environ["EDGEFUSE_TRAINED"] = str(folder)
    made = run_edgefuse(recipe, name, anew=options.anew)
    with np.load(folder / "evaluation.npz") as held:
        pictures, labels = held["image"].transpose(0, 2, 3, 1), held["labels"]
    reference = outputs(made.float_file, pictures)
    found = judge(reference, outputs(made.int8_file, pictures), labels)
    search = made.evidence.get("search") or {}
    goal = told["quantize"]["goal"]
    section = {
        "recipe": str(recipe),
        "training": json.loads((folder / "trained.json").read_text())["training"],
        "goal": goal,
        "judged": {**found.to_json(), **facts(made.int8_file)},
        "quantize_seconds": made.seconds,
        "search": search,
        "rows": _path(search),
    }
    return title, section, _checks(goal, made.exit_code, search, found)


def _path(search: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each technique tried, for the page."""
    return [
        {
            "technique": trial["technique"],
            **{name: _short(value) for name, value in trial["score"].items()},
            "float layers": len(trial["float_layers"]),
            "latency ratio": _short(trial["latency_ratio"]),
            "seconds": f"{trial['seconds']:.1f}",
            "meets": "yes" if trial["meets"] else "no",
        }
        for trial in search.get("trials", [])
    ]


def _named(raised: Sequence[str] | None) -> str:
    """How many, and the first three: the JSON has all, by their whole names."""
    if not raised:
        return "not told" if raised is None else "none"
    first = ", ".join(name.partition(";")[0] for name in raised[:3])
    return f"{len(raised)}: {first}{', ...' if len(raised) > 3 else ''}"


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _checks(
    goal: Mapping[str, float], exit_code: int, search: Mapping[str, Any], found: Judgement
) -> list[Check]:
    raised = search.get("float_layers")
    agreement = 100 * goal["min_agreement"]
    assert found.drop is not None
    return [
        Check("the search reaches its goal", f"exit code {exit_code}", "0", exit_code == 0),
        Check("chosen", str(search.get("chosen", "not told")), "told", "chosen" in search),
        Check("layers raised to float", _named(raised), "some, by name", bool(raised)),
        Check(
            f"agreement on {found.samples} samples not seen",
            f"{found.agreement:.2f}%",
            f"at least {agreement:.1f}%",
            found.agreement >= agreement,
            aim=True,
        ),
        Check(
            f"drop on {found.samples} samples not seen",
            f"{found.drop:.2f} points",
            f"at most {goal['max_drop_points']}",
            found.drop <= goal["max_drop_points"],
            aim=True,
        ),
    ]
