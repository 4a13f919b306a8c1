"""One model on one set of kernels in a process of its own: ``python -m
edgefuse.devices.measure.kernel_worker``.

Job: ``runtime`` (litert, tflite_runtime or tensorflow), ``kernels``, ``file``, ``feeds`` an .npz of
``SAMPLE/INPUT`` and ``results``, the .npz to write, of ``SAMPLE/OUTPUT``, both by signature name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.child import serve
from edgefuse.errors import DeviceUnavailable, StageError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Run = Callable[[dict[str, Array]], dict[str, Array]]

_RESOLVERS = {
    "default": "AUTO",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}


def work(job: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    path = Path(job["file"])
    if job["runtime"] == "tensorflow":
        run = _tensorflow(path, job["kernels"])
    else:
        run = _runtime(path, job["runtime"], job["kernels"])
    feeds: dict[int, dict[str, Any]] = {}
    with np.load(job["feeds"]) as held:
        for key in held.files:
            sample, _, name = key.partition("/")
            feeds.setdefault(int(sample), {})[name] = held[key]
    results = {
        f"{sample}/{name}": value
        for sample, feed in sorted(feeds.items())
        for name, value in run(feed).items()
    }
    np.savez(job["results"], **results)
    return {}


def _runtime(path: Path, runtime: Any, kernels: Any) -> Run:
    from edgefuse.tflite.runtime import open_model

    return open_model(path, runtime, 1, kernels).run


def _tensorflow(path: Path, kernels: str) -> Run:
    """TensorFlow's own interpreter; it has no door in tflite/ as it costs seconds to import."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise DeviceUnavailable(
            f"tensorflow cannot be loaded: {error}", hint='pip install "edgefuse[convert]"'
        ) from error
    from edgefuse.tflite.read import read_model

    source = read_model(path)
    resolver = getattr(tf.lite.experimental.OpResolverType, _RESOLVERS[kernels])
    try:
        interpreter = tf.lite.Interpreter(
            model_path=str(path), num_threads=1, experimental_op_resolver_type=resolver
        )
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise StageError(
            f"tensorflow {tf.__version__} cannot load the model: {error}", where=str(path)
        ) from error

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        for name, index in source.signature_inputs:
            interpreter.set_tensor(index, feed[name])
        try:
            interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise StageError(f"the model does not run: {error}", where=str(path)) from error
        return {name: interpreter.get_tensor(index) for name, index in source.signature_outputs}

    return run


if __name__ == "__main__":
    serve(work)
