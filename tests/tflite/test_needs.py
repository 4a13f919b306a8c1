"""What a file asks of a runtime: operators, number formats, the least version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.tflite.needs import runtime_needs
from edgefuse.tflite.read import parse_model, read_model

from .conftest import Pair
from .tiny import Builder


def needs(dtype: str, stated: bytes | None = None, custom: str = "") -> dict[str, Any]:
    b = Builder()
    scales = () if dtype == "float32" else (0.5,)
    x, y, z = (b.tensor(name, (1, 4), dtype, scales=scales) for name in "xyz")
    b.op("RELU", (x,), (y,))
    b.op("CUSTOM" if custom else "RELU", (y,), (z,), custom=custom)
    if stated is not None:
        buffer, entry = b.schema.BufferT(), b.schema.MetadataT()
        buffer.data = np.frombuffer(stated, np.uint8)
        entry.name, entry.buffer = b"min_runtime_version", len(b.model.buffers)
        b.model.buffers.append(buffer)
        b.model.metadata = [entry]
    return runtime_needs(parse_model(b.finish({"x": x}, {"z": z})))


def test_operators_are_counted_with_their_versions(pair: Pair) -> None:
    found = runtime_needs(read_model(pair.int8_path))
    rows = {(row["name"], row["version"]): row["count"] for row in found["operators"]}
    assert sum(rows.values()) == len(read_model(pair.int8_path).operators)
    assert any(name == "CONV_2D" and version >= 1 for name, version in rows)
    assert found["int8_activations"] and not found["float_operators"]
    assert found["minimum"] == "1.14.0"
    float_needs = runtime_needs(read_model(pair.float_path))
    assert float_needs["float_operators"] and not float_needs["int8_activations"]


def test_custom_operators_by_their_own_name() -> None:
    found = needs("float32", custom="FlexErf")
    assert found["custom_operators"] == ["FlexErf"]
    assert {row["name"]: row["count"] for row in found["operators"]} == {"FlexErf": 1, "RELU": 1}


@pytest.mark.parametrize(
    ("dtype", "stated", "minimum"),
    [
        ("float32", None, None),
        ("float32", b"1.6.0\0\0\0", "1.6.0"),
        ("int8", b"1.6.0", "1.14.0"),
        ("int8", b"2.17.0", "2.17.0"),
        ("int8", b"1.9.0", "1.14.0"),
        ("int16", None, "2.4.0"),
        ("int16", b"", "2.4.0"),
        ("int8", b"UNKNOWN", "1.14.0"),
    ],
)
def test_the_least_version(dtype: str, stated: bytes | None, minimum: str | None) -> None:
    found = needs(dtype, stated)
    assert found["minimum"] == minimum
    known = stated if stated and stated[:1].isdigit() else None
    assert found["stated_minimum"] == (known and known.rstrip(b"\0").decode())


@pytest.mark.parametrize("scales", [(0.5,), (0.5, 0.25)])
def test_a_dense_layer_with_a_scale_for_each_output(scales: tuple[float, ...]) -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4), "int8", scales=(0.5,)), b.tensor("y", (1, 2), "int8", scales=(1,))
    w = b.tensor("w", value=np.ones((2, 4), np.int8), scales=scales)
    b.op("FULLY_CONNECTED", (x, w, -1), (y,))
    found = runtime_needs(parse_model(b.finish({"x": x}, {"y": y})))
    assert found["per_channel_dense"] is (len(scales) > 1)
