"""The kept figures: one JSON document, section by section, and the page written from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgefuse.devices.measure.fingerprint import cpu_model
from edgefuse.keys import versions

HERE = Path(__file__).parent.parent
JSON = HERE / "int8_accuracy.json"
PAGE = HERE / "int8_accuracy.md"
TOOLS = ("ai-edge-litert", "ai-edge-quantizer", "onnx2tf", "tensorflow", "torch")


@dataclass(frozen=True)
class Check:
    """A figure against what it must be. An ``aim`` may be missed."""

    what: str
    value: str
    limit: str
    met: bool
    aim: bool = False

    def __str__(self) -> str:
        verdict = "met" if self.met else "aim missed" if self.aim else "NOT MET"
        return f"{self.what}: {self.value} ({self.limit}): {verdict}"


def finished(
    section: dict[str, Any], title: str, command: str, checks: Sequence[Check]
) -> dict[str, Any]:
    """A section with its title, where it was measured and its verdicts."""
    return {
        "title": title,
        "command": command,
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "versions": versions(TOOLS),
        **section,
        "checks": [asdict(check) for check in checks],
    }


def keep(name: str, section: Mapping[str, Any]) -> None:
    """Replace one section of the document and write the page anew."""
    document = json.loads(JSON.read_text()) if JSON.is_file() else {}
    document[name] = section
    JSON.write_text(json.dumps(document, indent=1) + "\n")
    PAGE.write_text(page(document))


def page(document: Mapping[str, Any]) -> str:
    parts = [_INTRODUCTION]
    for section in document.values():
        parts.append("\n".join(_section(section)))
    return "\n".join(parts)


_INTRODUCTION = """# Int8 accuracy, against other producers of TFLite files

Written by `make bench-int8`; the same as data, split by split, in `int8_accuracy.json`. Every file
runs on one runtime (LiteRT, default kernels) on the same samples, each decoded once, and is
compared with edgefuse's float .tflite.

- **agreement**: percent of samples whose first class is the float model's.
- **drop**: float top-1 less int8 top-1 on the same samples, in points; the paired standard error
  of one split is given as the mean of the splits'.
- **SQNR**: energy of the float outputs over that of the difference, in dB.
- Over the splits: mean (least to most). A split is a seeded shuffle of the pictures: the first
  100 are for calibration, the others are judged.
"""


def _section(section: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {section['title']}\n"
    yield f"`{section['command']}` on {section['cpus']} CPUs of {section['cpu']}.\n"
    if "producers" in section:
        yield from _producers(section["producers"])
    if "latency" in section:
        yield from _latency(section["latency"])
    if "rows" in section:
        yield from _rows(section["rows"])
    if section["checks"]:
        yield "| figure | found | wanted | |\n|---|---:|---:|---|"
        for check in section["checks"]:
            verdict = "met" if check["met"] else "aim missed" if check["aim"] else "**not met**"
            yield f"| {check['what']} | {check['value']} | {check['limit']} | {verdict} |"
        yield ""


def _producers(producers: Mapping[str, Any]) -> Iterator[str]:
    labelled = all("drop" in found for found in producers.values())
    heads = ["producer", "agreement, %", *(["drop, points"] if labelled else []), "SQNR, dB"]
    yield f"| {' | '.join([*heads, 'KiB', 'splits'])} |"
    yield f"|---|{'---:|' * (len(heads) + 1)}"
    for name, found in producers.items():
        rows = found["splits"]
        cells = [name, _spread(found["agreement"])]
        if labelled:
            error = sum(row["drop_error"] for row in rows) / len(rows)
            cells.append(f"{_spread(found['drop'])} ± {error:.2f}")
        size = max(row["bytes"] for row in rows) / 1024
        cells += [_spread(found["sqnr_db"]), f"{size:.1f}", str(len(rows))]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _spread(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.2f} ({found['least']:.2f} to {found['most']:.2f})"


def _latency(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| file | p50, ms | ratio to onnx2tf's |\n|---|---:|---:|"
    yield f"| onnx2tf | {found['theirs_p50_ms']:.3f} | 1 |"
    for name, time, key in (
        ("edgefuse", "ours_p50_ms", "ratio"),
        ("onnx2tf again (A/A)", "again_p50_ms", "again"),
    ):
        half = found[f"{key}_half_width"]
        yield f"| {name} | {found[time]:.3f} | {found[key]:.3f} ± {half:.3f} |"
    yield ""


def _rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = list(rows[0])
    yield f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(str(row[head]) for head in heads)} |"
    yield ""
