"""The stage equalize: what ReLU6 bounds is left alone where its rare values would be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from quant.weights.networks import feeds
from quant.weights.test_equalize import built, capped

from edgefuse.data import Entry, Sample, SampleSet
from edgefuse.stages.equalize import run
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model


def _samples(held: list[dict[str, Any]]) -> SampleSet:
    entries = tuple(Entry(f"p{k}", f"p{k}", None) for k in range(len(held)))

    def stream(_: Any) -> Iterator[Sample]:
        for entry, feed in zip(entries, held):
            yield Sample(feed, entry.label, entry.group, entry.name)

    return SampleSet("d", entries, (), {}, "arrays", stream)


@pytest.mark.parametrize("rare", [False, True])
def test_what_relu6_bounds_is_left_alone_where_it_would_be_cut(rare: bool, tmp_path: Path) -> None:
    source = tmp_path / "float.tflite"
    source.write_bytes(built(capped))
    seen = [{name: value * 0.3 for name, value in feed.items()} for feed in feeds(source, 24, 1)]
    largest = 12.0 if rare else 0.3
    judged = [
        {name: value * largest for name, value in feed.items()} for feed in feeds(source, 24, 8)
    ]
    sets = {"calibration": _samples(seen), "evaluation": _samples(judged)}
    context: Any = SimpleNamespace(
        samples=sets.__getitem__,
        downloads=None,
        progress=lambda *_: None,
        warn=lambda _: None,
        work=tmp_path,
        file_name="equalized.tflite",
    )
    signature = signature_of(read_model(source))
    recipe: Any = SimpleNamespace(
        quantize=SimpleNamespace(equalize=True),
        model=SimpleNamespace(batch=1, source="tflite", inputs=signature.inputs),
        preprocess=None,
    )
    product = run({"convert": SimpleNamespace(path=source, signature=signature)}, recipe, context)
    assert product.evidence["equalize"]["relu6"] is not rare
    assert ("ReLU6" in product.evidence["summary"]) is rare
    before, after = open_model(source), open_model(product.path)
    for feed in judged[:8]:
        exact, held = before.run(feed)["y"], after.run(feed)["y"]
        np.testing.assert_allclose(held, exact, rtol=1e-3, atol=1e-3 * np.abs(exact).max())
