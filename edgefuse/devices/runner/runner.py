"""Runs TFLite models on a board that has Python, NumPy and a runtime: what runner.c does in C.

This file is copied to the board and run there by itself, so it imports nothing of edgefuse and
bears Python 3.8. Command line, files and answer are those of ``runner.c``; RUNTIME is the
package to import (``ai_edge_litert``, ``tflite_runtime``) in place of a library. Single operators
are not told from Python.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

RESOLVERS = {
    "default": "AUTO",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}
MARK, BEGIN, END = 0x45444745, 1, 2
FILES, LIBRARY, REFUSED, INVOKE, FEEDS = 3, 4, 5, 6, 7


def fail(code: int, message: object) -> NoReturn:
    print("edgefuse-runner: " + " ".join(str(message).split()), file=sys.stderr)
    sys.exit(code)


def mark(kind: int) -> None:
    """Tell qemu's counting plugin; the call fails everywhere, without harm."""
    with contextlib.suppress(OSError):
        os.getpriority(MARK, kind)


class Run:
    def __init__(
        self, runtime: Any, options: argparse.Namespace, model: str, feeds: str, outputs: str
    ) -> None:
        try:
            self.interpreter = runtime.Interpreter(
                model_path=model,
                num_threads=options.threads,
                experimental_op_resolver_type=getattr(
                    runtime.OpResolverType, RESOLVERS[options.kernels]
                ),
            )
            self.interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            fail(REFUSED, "the runtime refuses " + model + ": " + str(error))
        self.options = options
        self.model = model
        self.inputs = self.interpreter.get_input_details()
        self.feeds = []
        if feeds != "-":
            self.feeds = self.read(feeds)
        self.outputs: Any = None
        if outputs != "-":
            self.outputs = Path(outputs).open("wb")  # noqa: SIM115

    def read(self, path: str) -> Any:
        import numpy

        sizes = [
            int(numpy.prod(d["shape"])) * numpy.dtype(d["dtype"]).itemsize for d in self.inputs
        ]
        data = Path(path).read_bytes()
        if not sum(sizes) or not data or len(data) % sum(sizes):
            fail(
                FEEDS,
                f"{path} has {len(data)} bytes, {self.model} takes {sum(sizes)} a feed",
            )
        feeds, place = [], 0
        while place < len(data):
            feed = []
            for detail, size in zip(self.inputs, sizes):
                piece = numpy.frombuffer(data[place : place + size], dtype=detail["dtype"])
                feed.append(piece.reshape(detail["shape"]))
                place += size
            feeds.append(feed)
        return feeds

    def invoke(self, feed: int, counted: bool = True) -> int:
        for detail, value in zip(self.inputs, self.feeds[feed]):
            self.interpreter.set_tensor(detail["index"], value)
        start = time.perf_counter_ns()
        try:
            if counted and self.options.marks:
                mark(BEGIN)
            self.interpreter.invoke()
            if counted and self.options.marks:
                mark(END)
        except (RuntimeError, ValueError) as error:
            fail(INVOKE, self.model + " failed while it ran: " + str(error))
        return time.perf_counter_ns() - start

    def write(self) -> None:
        for detail in self.interpreter.get_output_details():
            self.outputs.write(self.interpreter.get_tensor(detail["index"]).tobytes())

    def delegated(self) -> bool:
        """Whether operators went to a delegate; by a method that the runtimes do not document."""
        listed = self.interpreter._get_ops_details()
        return any(row["op_name"] == "DELEGATE" for row in listed)

    def told(self) -> Any:
        return {
            "inputs": [self.tensor(d) for d in self.inputs],
            "outputs": [self.tensor(d) for d in self.interpreter.get_output_details()],
            "operators": [],
            "tensors": self.places() if self.options.tensors else [],
        }

    def places(self) -> list[list[int]]:
        """Address and size of every tensor that is listed, by index; zeros for the others.

        Others must not be asked for: tflite-runtime 2.14 crashes on them.
        """
        listed = [row["index"] for row in self.interpreter.get_tensor_details()]
        places = [[0, 0] for _ in range(max(listed) + 1)]
        for index in listed:
            try:
                view = self.interpreter.tensor(index)()
            except ValueError:
                continue
            places[index] = [int(view.ctypes.data), int(view.nbytes)]
        return places

    def tensor(self, detail: Any) -> Any:
        value = self.interpreter.get_tensor(detail["index"])
        return {
            "name": detail["name"],
            "dtype": str(value.dtype),
            "bytes": value.nbytes,
            "shape": list(value.shape),
        }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--kernels", choices=sorted(RESOLVERS), default="default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--order")
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--marks", action="store_true")
    parser.add_argument("--tensors", action="store_true")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    if len(options.files) % 3:
        parser.error("give MODEL FEEDS OUTPUTS for each model")
    return options


def main() -> None:
    options = arguments()
    try:
        runtime = importlib.import_module(options.runtime + ".interpreter")
        version = metadata.version(options.runtime.replace("_", "-"))
    except Exception as error:
        fail(LIBRARY, options.runtime + " cannot be loaded: " + str(error))
    try:
        files = options.files
        runs = [Run(runtime, options, *files[at : at + 3]) for at in range(0, len(files), 3)]
        for run in runs:
            for _ in range(options.warmup):
                run.invoke(0, counted=False)
        times = []
        until = time.monotonic() + options.seconds
        if options.order:
            while True:
                for place in options.order.split(","):
                    times.append(runs[int(place)].invoke(0))
                if time.monotonic() >= until:
                    break
        else:
            for run in runs:
                for feed in range(len(run.feeds)):
                    times.append(run.invoke(feed))
                    if run.outputs:
                        run.write()
        for run in runs:
            if run.outputs:
                run.outputs.close()
    except OSError as error:
        fail(FILES, error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = {"runner": 1, "version": options.runtime + " " + version, "times_ns": times}
    told["xnnpack"] = any(run.delegated() for run in runs)
    told.update(models=[run.told() for run in runs], peak_rss_bytes=peak)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
