"""``edgefuse doctor``: is this environment the one that was tested, and what would mend it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgefuse.keys import version
from edgefuse.store import Store, default_root

Level = Literal["ok", "note", "error"]
_FREE_BYTES = 2_000_000_000
_NEEDED = {
    "export": ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime"),
    "convert": ("tensorflow", "onnx2tf", "tf-keras"),
    "quantize and gates": ("ai-edge-litert", "ai-edge-quantizer", "numpy", "pillow"),
}
_EXTRAS = {"torch": "torch", "tensorflow": "convert", "onnx2tf": "convert", "tf-keras": "convert"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        mark = {"ok": "ok   ", "note": "note ", "error": "ERROR"}[self.level]
        return f"{mark} {self.what}" + (f"\n      remedy: {self.remedy}" if self.remedy else "")


def examine() -> list[Finding]:
    """Everything that `edgefuse run` needs, without importing any of it."""
    return [*_python(), *_packages(), *_pins(), *_places(), *_optional()]


def _python() -> Iterator[Finding]:
    found = platform.python_version()
    good = (3, 10) <= sys.version_info[:2] < (3, 12)
    yield Finding(
        "ok" if good else "error",
        f"Python {found}",
        "" if good else "use Python 3.10 or 3.11: tflite-runtime and onnx2tf 1.x end there",
    )


def _packages() -> Iterator[Finding]:
    for purpose, names in _NEEDED.items():
        missing = [name for name in names if version(name) == "missing"]
        if missing:
            extras = sorted({_EXTRAS[n] for n in missing if n in _EXTRAS})
            what = f"edgefuse[{','.join(extras)}]" if extras else "edgefuse"
            yield Finding(
                "error",
                f"{purpose}: {', '.join(missing)} not installed",
                f"pip install '{what}' -c constraints.txt",
            )
        else:
            listed = ", ".join(f"{name} {version(name)}" for name in names)
            yield Finding("ok", f"{purpose}: {listed}")


def constraints_file() -> Path | None:
    """constraints.txt of the checkout or of the installation, else None."""
    checkout = Path(__file__).parents[2]
    places = (checkout, Path(sys.prefix) / "share" / "edgefuse")
    return next((p for place in places if (p := place / "constraints.txt").is_file()), None)


def _pins() -> Iterator[Finding]:
    from packaging.requirements import InvalidRequirement, Requirement

    path = constraints_file()
    if path is None:
        yield Finding("note", "no constraints.txt found: versions are not compared")
        return
    wrong = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            pin = Requirement(text.partition("#")[0].strip())
        except InvalidRequirement:
            continue
        found = version(pin.name)
        applies = pin.marker is None or pin.marker.evaluate()
        if applies and found != "missing" and not pin.specifier.contains(found, prereleases=True):
            wrong.append(f"{pin.name} {found} (tested: {pin.specifier})")
    if wrong:
        yield Finding(
            "error",
            f"{len(wrong)} versions differ from {path.name}: {', '.join(wrong[:5])}",
            f"pip install -c {path} " + " ".join(w.split()[0] for w in wrong[:5]),
        )
    else:
        yield Finding("ok", f"all installed versions are those of {path.name}")


def _places() -> Iterator[Finding]:
    store = Store(default_root())
    place = store.root
    try:
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        holds = store.size_bytes() if store.root.is_dir() else 0
    except OSError as error:
        told = f"store {store.root}: cannot be read: {error.strerror}"
        yield Finding("error", told, "set EDGEFUSE_CACHE to a folder that you may read and write")
        return
    text = f"store {store.root}: {holds / 1e9:.2f} GB held, {free / 1e9:.1f} GB free"
    if not os.access(place, os.W_OK):
        yield Finding("error", f"{text}, not writable", "set EDGEFUSE_CACHE to a writable folder")
    elif free < _FREE_BYTES:
        yield Finding("error", text, "free 2 GB, or set EDGEFUSE_CACHE to another disk")
    else:
        yield Finding("ok", text)


def _optional() -> Iterator[Finding]:
    if version("tflite-runtime") == "missing":
        remedy = "pip install 'edgefuse[legacy-runtime]' -c constraints.txt"
        yield Finding("note", "target host-tflite-runtime: tflite-runtime not installed", remedy)
    else:
        yield Finding("ok", f"target host-tflite-runtime: {version('tflite-runtime')}")
    if version("pip") == "missing":
        remedy = "python -m ensurepip: wheel: mirrors are downloaded with pip"
        yield Finding("error", "pip is not installed in this environment", remedy)
    data = os.environ.get("EDGEFUSE_DATA")
    if data and not Path(data).is_dir():
        yield Finding("error", f"EDGEFUSE_DATA={data} is no folder", "correct or unset it")
    elif not data:
        yield Finding("note", "EDGEFUSE_DATA is not set: mobilenet-imagenet.yaml needs it")
    from edgefuse.devices.measure.fingerprint import cpu_model, has_int8_dot_product

    dot = has_int8_dot_product()
    said = {True: "has", False: "has no", None: "may or may not have (unknown) an"}[dot]
    yield Finding("ok" if dot else "note", f"CPU {cpu_model()} {said} int8 dot product")
