"""Small networks trained on handwritten digits: real scans, out of a wheel, in a minute or two.

The 1,797 scans of 8 by 8 pixels that scikit-learn ships (E. Alpaydin, C. Kaynak: Optical
Recognition of Handwritten Digits, UCI) are enlarged to 40 by 40, grey on three channels, and
shuffled once: 897 to train on, 200 to calibrate with, 300 for a search to decide on, 400 to judge.
40 is chosen because no size of it at any stride is a channel count of the networks, which the
converter would mix up. Training is seeded; weights and arrays are kept in ``EDGEFUSE_CACHE`` by the
digest of the network's code and of what is said here.
"""

from __future__ import annotations

import gzip
import importlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgefuse.artifact import digest_bytes, digest_json
from edgefuse.fetch import Downloads
from edgefuse.keys import version
from edgefuse.recipe import Blob
from edgefuse.store import default_root
from int8.peers import say

DIGITS = Blob(
    file="digits.csv.gz",
    sha256="09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
    mirrors=("wheel:scikit-learn==1.5.2#sklearn/datasets/data/{file}",),
)
SIDE = 40
PARTS = {"training": 897, "calibration": 200, "validation": 300, "evaluation": 400}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Training:
    """A network and how it is trained.

    Attributes:
        arguments: of the callable, as the recipe has them.
        epochs: over the training part, each scan shifted by up to ``shift`` pixels.
    """

    name: str
    callable: str
    arguments: Mapping[str, Any]
    epochs: int
    learning_rate: float
    weight_decay: float = 0.05
    batch: int = 64
    shift: int = 4
    seed: int = 0


def parts() -> dict[str, tuple[Array, Array]]:
    """Pictures, float32 [N, 3, 40, 40] in -1..1, and labels of each part."""
    found = Downloads(default_root() / "downloads", Path.cwd(), say).get_all([DIGITS])[0]
    text = gzip.decompress(found.read_bytes()).decode().splitlines()
    table = np.loadtxt(text, delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    scans = torch.from_numpy(table[order, :64].reshape(-1, 1, 8, 8)) / 8 - 1
    large = torch.nn.functional.interpolate(scans, (SIDE, SIDE), mode="bilinear")
    pictures = large.expand(-1, 3, -1, -1).contiguous().numpy()
    labels = table[order, 64].astype(np.int64)
    ends = np.cumsum([0, *PARTS.values()])
    return {n: (pictures[a:b], labels[a:b]) for n, a, b in zip(PARTS, ends, ends[1:])}


def trained(training: Training) -> Path:
    """The folder with weights.pth, trained.json, and an .npz of each part."""
    module_name = training.callable.partition(":")[0]
    code = Path(importlib.import_module(module_name).__file__ or "").read_bytes()
    facts: dict[str, Any] = {
        "training": asdict(training),
        "parts": PARTS,
        "data": DIGITS.sha256,
        "code": digest_bytes(code),
        "here": digest_bytes(Path(__file__).read_bytes()),
        "torch": version("torch"),
    }
    folder = default_root() / "trained" / f"{training.name}-{digest_json(facts)[:16]}"
    if (folder / "trained.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    data = parts()
    start = time.monotonic()
    model, top1 = _train(training, data)
    torch.save(model.state_dict(), folder / "weights.pth")
    for name, (pictures, labels) in data.items():
        np.savez(folder / f"{name}.npz", image=pictures, labels=labels)
    facts |= {"seconds": round(time.monotonic() - start, 1), "evaluation_top1": top1}
    (folder / "trained.json").write_text(json.dumps(facts, indent=1) + "\n")
    say(f"{training.name}: top-1 {top1:.2f}% after {facts['seconds']} s")
    return folder


def _train(
    training: Training, data: Mapping[str, tuple[Array, Array]]
) -> tuple[torch.nn.Module, float]:
    torch.set_num_threads(1)  # Sums are then in one order on every machine.
    torch.manual_seed(training.seed)
    module_name, _, name = training.callable.partition(":")
    model = getattr(importlib.import_module(module_name), name)(**training.arguments).train()
    pictures, labels = (torch.from_numpy(part) for part in data["training"])
    steps = training.epochs * (len(labels) // training.batch)
    optimiser = torch.optim.AdamW(
        model.parameters(), training.learning_rate, weight_decay=training.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, training.learning_rate, steps)
    for _ in range(training.epochs):
        order = torch.randperm(len(labels))
        for rows in order.split(training.batch)[: len(labels) // training.batch]:
            loss = torch.nn.functional.cross_entropy(
                model(_shifted(pictures[rows], training.shift)), labels[rows], label_smoothing=0.1
            )
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    model.eval()
    judged, truth = (torch.from_numpy(part) for part in data["evaluation"])
    with torch.no_grad():
        hits = (model(judged).argmax(1) == truth).double().mean()
    return model, round(100 * float(hits), 3)


def _shifted(pictures: torch.Tensor, most: int) -> torch.Tensor:
    """The batch shifted by a random number of pixels, the same for all of it; paper stays paper."""
    down, right = (int(n) for n in torch.randint(-most, most + 1, (2,)))
    padded = torch.nn.functional.pad(pictures, (most,) * 4, value=-1.0)
    side = pictures.shape[-1]
    return padded[:, :, most + down : most + down + side, most + right : most + right + side]
