"""litert-torch and ai-edge-quantizer: a torch module to an int8 .tflite. In an own environment.

usage: python litert_worker.py JOB.json

The job: ``callable`` (module:name), ``arguments``, ``weights`` (a state dict), ``path`` (folders to
import from), ``calibrations`` (of .npy files, float32 [N, H, W, 3], normalised) and ``outs``, one
int8 file for each of them. The float model is made once; it takes its picture channels-last, as
the other producers' do. The quantisation recipe is the library's own static_wi8_ai8.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:0] = job["path"]
    import litert_torch
    import numpy as np
    import torch
    from ai_edge_quantizer import quantizer, recipe

    module_name, _, name = job["callable"].partition(":")
    model = getattr(importlib.import_module(module_name), name)(**job["arguments"])
    model.load_state_dict(torch.load(job["weights"], map_location="cpu", weights_only=True))
    with tempfile.TemporaryDirectory() as folder:
        plain = str(Path(folder) / "float.tflite")
        channels_last = litert_torch.to_channel_last_io(model.eval(), args=[0])
        shape = np.load(job["calibrations"][0], mmap_mode="r").shape[1:]
        litert_torch.convert(channels_last, (torch.zeros(1, *shape),)).export(plain)
        for calibration, out in zip(job["calibrations"], job["outs"], strict=True):
            worker = quantizer.Quantizer(plain)
            worker.load_quantization_recipe(recipe.static_wi8_ai8())
            feeds = [{"args_0": sample[None]} for sample in np.load(calibration)]
            ranges = worker.calibrate({"serving_default": feeds})
            worker.quantize(ranges).export_model(out, overwrite=True)


if __name__ == "__main__":
    main()
