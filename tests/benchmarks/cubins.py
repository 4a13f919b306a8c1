"""MobileNetV2 in fp16 compiled for five architectures, and the files for a device checked.

usage: python tests/benchmarks/cubins.py [--model mobilenet_v2] [--cache build/cubins]

Every distinct kernel is compiled and disassembled; the files for a device are written and the
launcher checks them. Ends with 1 when a kernel for sm_87 or sm_90 spills or multiplies without
tensor cores, when a GPU would refuse a kernel, or when the code is larger than 2 MB in all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from gpu_programs import fused_file, lowered, module

from edgefuse.cuda.architecture import ARCHITECTURES
from edgefuse.cuda.compile import compiled, shortcomings, sources
from edgefuse.cuda.deploy import build_launcher, check, deploy

MOST_BYTES = 2_000_000
PROVEN = (87, 90)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--model", default="mobilenet_v2")
    words.add_argument("--cache", type=Path, default=Path("build/cubins"))
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        proto = fused_file(given.model, module(given.model), folder / "net.onnx")
        program, weights = lowered(given.model, proto, 1, "fp16")
        rows, faults = [], []
        for source in {s.name: s for s in sources(program)}.values():
            for architecture in ARCHITECTURES:
                cubin = compiled(source, architecture, given.cache)
                told = list(shortcomings(source, cubin))
                faults += [(architecture, text) for text in told]
                facts = asdict(cubin.facts)
                rows.append({"kernel": source.name, "architecture": architecture, **facts})
                print(f"{source.name} sm_{architecture} {facts} {' '.join(told)}", flush=True)
        figures = deploy(program, weights, folder / "files", cache=given.cache)
        build_launcher(folder / "launcher")
        figures["checked"] = check(folder / "launcher", folder / "files")
    wrong = [text for number, text in faults if number in PROVEN or " needs " in text]
    figures |= {"model": given.model, "faults": [text for _, text in faults], "machine_code": rows}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", "utf-8")
    print(f"{figures['kernels']} kernels, {figures['launches']} launches, "
          f"{figures['code_bytes']} bytes of code: {path}")  # fmt: skip
    if figures["code_bytes"] > MOST_BYTES:
        wrong.append(f"{figures['code_bytes']} bytes of code are more than {MOST_BYTES}")
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
