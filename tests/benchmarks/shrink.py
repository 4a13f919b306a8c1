"""What each way to a smaller arena costs, and where: the table in ``shrink.md``.

Each form is made for the kernels that run it: tflite-runtime's (legacy) have their picture turned
otherwise than LiteRT's, and only built-in kernels get edges of layers apart.

Measured: heads and PADs of the zoo's int8 files before and after, their outputs on pictures, the
instructions of each form on emulated CPUs, an NPU's cycles, latency here, and MobileNetV2 in tiles
under tflite-micro.

Usage: ``python tests/benchmarks/shrink.py [SECTION ...]``; sections: heads, instructions, npu,
latency, tiles. Others keep their figures in ``shrink.json``. Needs ``edgefuse setup`` of
emu-cortex-a53, emu-cortex-a76, ethos-u55-128 and tflm, and EDGEFUSE_DATA with imagenet-sample.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from int8 import peers

from edgefuse.devices.device import Place
from edgefuse.devices.kinds.ethos_u import EthosU
from edgefuse.devices.kinds.qemu import Qemu
from edgefuse.devices.kinds.tflite_micro import TfliteMicro
from edgefuse.devices.measure.bench import time_files
from edgefuse.devices.measure.fingerprint import cpu_model
from edgefuse.devices.setup import wheels
from edgefuse.devices.setup.debian import Packages
from edgefuse.memory.shrink.shrink import Kernels, Wish, shrink
from edgefuse.store import default_root
from edgefuse.target import load_target
from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import open_model

HERE = Path(__file__).parent
WORK = Path("build/bench-shrink")
RECIPES = ("mobilenet", "efficientnet_lite0", "resnet18", "resnet50")
FORMS: dict[str, Wish] = {
    "turned, REVERSE_V2": Wish(padding="turned", max_extra_multiply_adds=1),
    "turned, no operator": Wish(padding="turned", reverse_input=False, max_extra_multiply_adds=1),
    "wider kernels": Wish(padding="wider_kernels", max_extra_multiply_adds=1),
}
KEPT = Wish(padding="keep", order=False, edges=False)
GOAL = 524_288
MADE_FOR: dict[str, Kernels] = {
    "default": "xnnpack",
    "builtin": "builtin",
    "reference": "reference",
}
Rows = list[dict[str, Any]]


def int8_file(name: str) -> Path:
    """The zoo's int8 file; ResNet-50 by ResNet-18's recipe."""
    out = WORK / name
    made = out / f"{name}_full_integer_quant.tflite"
    if not made.is_file():
        recipe = Path("configs") / f"{name}.yaml"
        if name == "resnet50":
            recipe = WORK / "configs" / "resnet50.yaml"
            recipe.parent.mkdir(parents=True, exist_ok=True)
            text = Path("configs/resnet18.yaml").read_text("utf-8")
            text = text.replace("resnet:resnet18", "resnet:resnet50")
            text = text.replace("manifest: data/", f"manifest: {Path('configs/data').resolve()}/")
            recipe.write_text(text.replace("name: resnet18", "name: resnet50"), "utf-8")
        command = [sys.executable, "-m", "edgefuse", "run", str(recipe)]
        subprocess.run([*command, "--until", "quantize", "--out", str(out)], check=True)
    return made


def forms(name: str, kernels: Kernels) -> dict[str, Path]:
    """The file as quantised and in each form that changed it, made for these kernels."""
    given = int8_file(name)
    files = {"as quantised": given}
    for form, wish in FORMS.items():
        data, _ = shrink(given.read_bytes(), replace(wish, kernels=kernels))
        if data != given.read_bytes():
            stem = re.sub("[^a-z]+", "_", form.lower())
            path = given.with_name(f"{name}_{stem}_{kernels}.tflite")
            path.write_bytes(data)
            files[form] = path
    return files


def onnx2tf_file() -> Path:
    source = peers.source_of(Path("configs/mobilenet-accurate.yaml"), 0)
    return next(p for p in peers.PEERS if p.name == "onnx2tf").files([source])[0]


def pictures(model: Path, count: int = 100) -> Rows:
    """Real pictures as the file takes them."""
    source = peers.source_of(Path("configs/mobilenet-accurate.yaml"), 0)
    held = read_model(model)
    name, index = held.signature_inputs[0]
    tensor = held.tensors[index]
    real = source.pictures[:count] / tensor.scales[0] + tensor.zero_points[0]
    whole = np.clip(np.round(real), -128, 127).astype(np.int8)
    return [{name: row[None]} for row in whole]


def identical(one: Sequence[Any], other: Sequence[Any]) -> str:
    same = sum(
        all(np.array_equal(a, b) for a, b in zip(x.values(), y.values(), strict=True))
        for x, y in zip(one, other, strict=True)
    )
    distinct = len({next(iter(x.values())).tobytes() for x in one})
    return f"{same} of {len(one)} ({distinct} distinct)"


def heads() -> Rows:
    """Every model in every form for tflite-micro; for built-in kernels where the file differs."""
    rows = []
    for name in RECIPES:
        found = forms(name, "micro")
        for kernels in ("builtin", "legacy"):
            for form, path in forms(name, kernels).items():
                if path.read_bytes() not in [held.read_bytes() for held in found.values()]:
                    found[f"{form}, {kernels}"] = path
        feeds = pictures(found["as quantised"], 20 if name == "resnet50" else 100)
        whole = list(map(open_model(found["as quantised"], kernels="builtin").run, feeds))
        for form, path in found.items():
            data, done = shrink(path.read_bytes(), KEPT)
            assert data == path.read_bytes()
            counts = read_model(path).operator_counts()
            turned = "no operator" in form
            given = [
                {k: np.ascontiguousarray(v[:, ::-1, ::-1]) if turned else v for k, v in f.items()}
                for f in feeds
            ]
            made = list(map(open_model(path, kernels="builtin").run, given))
            rows.append(
                {
                    "model": name,
                    "form": form,
                    "PADs": counts.get("PAD", 0) + counts.get("PADV2", 0),
                    "operators": done.operators,
                    "head, bytes": done.arena_bytes,
                    "multiply-adds": done.multiply_adds,
                    "outputs identical": identical(whole, made),
                }
            )
    return rows


class _Older(Qemu):
    """tflite-runtime 2.14 under emulated aarch64: its last version, without XNNPACK for int8."""

    def _command(self, counting: bool, *, bytecode: Path | None = None) -> list[str]:
        command = super()._command(counting, bytecode=bytecode)
        return [part.replace("arm-linux-gnueabihf", "aarch64-linux-gnu") for part in command]


def _older(target: Any, place: Place) -> _Older:
    from edgefuse.devices.kinds import qemu

    packages = ("qemu-user", "python3-minimal:arm64", "python3-numpy:arm64", "libstdc++6:arm64")
    unwanted = ("usr/share", "usr/bin/qemu-[b-z]*", "usr/bin/qemu-alpha")
    board = qemu._Board(
        Packages("aarch64-python", packages, foreign="arm64", unwanted=unwanted),
        wheels.TFLITE_RUNTIME_AARCH64,
        "qemu-aarch64",
        ".",
        113,
    )
    boards: Any = qemu._BOARDS
    boards["aarch64"], kept = board, boards["aarch64"]
    try:
        older: Any = qemu.Qemu
        qemu.Qemu = _Older  # type: ignore[misc]
        for line in qemu.prepare(target, place.prepared):
            peers.say(line)
        qemu.Qemu = older  # type: ignore[misc]
        return _Older(target, place)
    finally:
        boards["aarch64"] = board if target.runtime == "tflite_runtime" else kept


def instructions() -> Rows:
    """MobileNetV2 in each form, made for the kernels, and onnx2tf's file, on emulated CPUs."""
    from edgefuse.devices.kinds import qemu

    (picture,) = pictures(int8_file("mobilenet"), 1)[0].values()
    boards: Any = qemu._BOARDS
    usual, rows = boards["aarch64"], []
    runs = [("litert", k) for k in ("default", "builtin", "reference")]
    for runtime, kernels in [*runs, ("tflite_runtime", "builtin")]:
        made_for = "legacy" if runtime == "tflite_runtime" else MADE_FOR[kernels]
        files = {"onnx2tf": onnx2tf_file(), **forms("mobilenet", made_for)}
        feeds = [{read_model(p).signature_inputs[0][0]: picture} for p in files.values()]
        for name in ("emu-cortex-a53", "emu-cortex-a76"):
            version = "2.14.0" if runtime == "tflite_runtime" else "2.1.0"
            changes = {"kernels": kernels, "runtime": runtime, "runtime_version": version}
            target = load_target(name).model_copy(update=changes)
            with tempfile.TemporaryDirectory() as folder:
                place = Place(Path(folder), Path(folder) / "log", default_root() / "devices")
                older = runtime == "tflite_runtime"
                device = _older(target, place) if older else Qemu(target, place)
                try:
                    cost = device.cost(list(files.values()), feeds, processes=1, rounds=1)
                finally:
                    boards["aarch64"] = usual
            counted = {form: int(row[0][0]) for form, row in zip(files, cost.rows, strict=True)}
            for form, count in counted.items():
                rows.append(
                    {
                        "runtime": f"{runtime} {version}, {kernels}",
                        "CPU": name,
                        "file": form,
                        "instructions": count,
                        "to as quantised": round(count / counted["as quantised"], 4),
                        "to onnx2tf": round(count / counted["onnx2tf"], 4),
                    }
                )
                peers.say(str(rows[-1]))
    return rows


def npu() -> Rows:
    """Cycles by Ethos-U's compiler, and what it leaves to the CPU."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), Path(folder) / "log", default_root() / "devices")
        device = EthosU(load_target("ethos-u55-128"), place)
        for form, path in forms("mobilenet", "npu").items():
            made = device.compile(path, Path(folder) / "made.tflite")
            left = ", ".join(one.operator for one in made.left_to_cpu) or "nothing"
            facts = {"cycles": made.cycles, "arena, bytes": made.arena_bytes}
            rows.append({"file": form, **facts, "left to the CPU": left})
    return rows


def latency() -> Rows:
    """Interleaved with the file as quantised, which runs a second time against itself."""
    rows = []
    for kernels in ("default", "builtin"):
        files = forms("mobilenet", MADE_FOR[kernels])
        first = files["as quantised"]
        order = [*files.values(), first]
        timed = time_files(order, log=WORK / "log", kernels=kernels, processes=9, rounds=40)
        for form, row in zip([*files, "A/A"], timed.times_ms, strict=True):
            ratios = [
                statistics.median(a / b for a, b in zip(x, y, strict=True))
                for x, y in zip(row, timed.times_ms[0], strict=True)
            ]
            rows.append(
                {
                    "kernels": kernels,
                    "file": form,
                    "ratio": round(statistics.median(ratios), 4),
                    "half range": round((max(ratios) - min(ratios)) / 2, 4),
                }
            )
    return rows


def tiles() -> Rows:
    """MobileNetV2 within the goal, under tflite-micro's own interpreter on 100 pictures."""
    given = int8_file("mobilenet")
    data, done = shrink(given.read_bytes(), Wish(arena_bytes=GOAL, kernels="micro"))
    made = given.with_name("mobilenet_tiled.tflite")
    made.write_bytes(data)
    feeds = pictures(given)
    rows, whole = [], []
    for label, path in (("as quantised", given), ("tiled", made)):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            place = Place(Path(folder), log, default_root() / "devices")
            results = list(TfliteMicro(load_target("tflm"), place).outputs(path, feeds))
            found = re.search(r"Arena allocation head (\d+)", log.read_text("utf-8", "replace"))
            assert found is not None
            counted = Qemu(load_target("emu-cortex-a53"), place)
            cost = counted.cost([path], feeds[:1], processes=1, rounds=1).rows[0][0][0]
        whole = whole or results
        rows.append(
            {
                "file": label,
                "head reported, bytes": int(found[1]),
                "multiply-adds": done.multiply_adds if path == made else done.multiply_adds_before,
                "outputs identical": identical(whole, results),
                "instructions (a53, XNNPACK)": int(cost),
                "steps": "; ".join(s.did for s in done.steps if s.kept) if path == made else "",
            }
        )
    return rows


SECTIONS: dict[str, Callable[[], Rows]] = {
    "heads": heads,
    "instructions": instructions,
    "npu": npu,
    "latency": latency,
    "tiles": tiles,
}


def page(kept: dict[str, Any]) -> str:
    lines = ["# Smaller arenas: what each way costs", ""]
    lines += ["Written by `python tests/benchmarks/shrink.py`.", ""]
    for name, section in SECTIONS.items():
        if name not in kept:
            continue
        rows = kept[name]["rows"]
        lines += [f"## {name.capitalize()}", "", str(section.__doc__), ""]
        lines += [f"CPU here: {kept[name]['cpu']}.", ""]
        columns = list(rows[0])
        lines += [" | ".join(["", *columns, ""]).strip(), "|---" * len(columns) + "|"]
        for row in rows:
            cells = (f"{v:,}" if isinstance(v, int) else str(v) for v in row.values())
            lines.append(" | ".join(["", *cells, ""]).strip())
        lines.append("")
    return "\n".join(lines)


def main(wanted: Sequence[str]) -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    stored = HERE / "shrink.json"
    for name in wanted or SECTIONS:
        rows = SECTIONS[name]()
        kept = json.loads(stored.read_text("utf-8")) if stored.is_file() else {}
        kept[name] = {"cpu": cpu_model(), "rows": rows}
        stored.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        (HERE / "shrink.md").write_text(page(kept), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
