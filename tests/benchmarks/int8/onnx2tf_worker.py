"""Run the command ``onnx2tf``, and of the files that it writes only the full-integer one.

usage: python onnx2tf_worker.py JOB.json
       python onnx2tf_worker.py --plain ARGUMENTS OF onnx2tf

The job: ``arguments`` of the command, ``input`` (its name), ``calibrations`` (.npy files of what
the model takes) and ``outs``, one int8 file for each of them.

``-oiqt`` makes seven .tflite files and calibrates four times, the same each time, after two thirds
of a minute of converting. Here the model is converted once, only the full-integer conversion
happens, and it happens once for each calibration file; the rest of the command runs as it is. The
plain command writes the same bytes: ``python tests/benchmarks/int8_accuracy.py prove-onnx2tf``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Nothing:
    """A converter that takes every option and converts nothing."""

    def __init__(self) -> None:
        self.target_spec = SimpleNamespace()

    def convert(self) -> bytes:
        return b""


def only_full_integer(job: Mapping[str, Any]) -> None:
    """Of all conversions, let only the one with int8 inputs happen, for each calibration file."""
    import numpy as np
    import tensorflow as tf

    kind = tf.lite.TFLiteConverter
    from_saved_model = kind.from_saved_model

    def samples(path: str) -> Iterator[dict[str, Any]]:
        for sample in np.load(path):
            yield {job["input"]: tf.constant(sample[None], tf.float32)}

    def chosen(*given: Any, **named: Any) -> Any:
        converter = from_saved_model(*given, **named)
        convert = converter.convert

        def each() -> bytes:
            if converter.inference_input_type != tf.int8:
                return b""
            for calibration, out in zip(job["calibrations"], job["outs"], strict=True):
                converter.representative_dataset = lambda path=calibration: samples(path)
                Path(out).write_bytes(convert())
            return b""

        converter.convert = each
        return converter

    kind.from_saved_model = staticmethod(chosen)
    kind.from_keras_model = staticmethod(lambda *_, **__: Nothing())
    kind.from_concrete_functions = staticmethod(lambda *_, **__: Nothing())


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] == "--plain":
        arguments = arguments[1:]
    else:
        job = json.loads(Path(arguments[0]).read_text())
        arguments = job["arguments"]
        only_full_integer(job)
    import onnx2tf

    sys.argv = ["onnx2tf", *arguments]
    onnx2tf.main()


if __name__ == "__main__":
    main()
