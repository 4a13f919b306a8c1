"""Padding absorbed in odd models: maxima, several inputs, batches, computed kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.memory.shrink.absorb_pad import Form, absorb_padding
from edgefuse.tflite.read import parse_model
from edgefuse.tflite.runtime import open_model

from ..nets import Net, equal, pictures, results

FORMS: tuple[Form, ...] = ("wider_kernels", "turned")


def _padded_with(net: Net, source: int, value: int | None) -> int:
    """A pixel on each side: PADV2 with ``value``, or PAD."""
    padded = net.pad(source, (1, 1), (1, 1))
    if value is not None:
        held = net.b.graph.operators.pop()
        tensor = net.b.graph.tensors[padded].quantization
        scale, zero = [float(tensor.scale[0])], [int(tensor.zeroPoint[0])]
        constant = net.b.tensor(
            f"value{padded}", value=np.array(value, np.int8), scales=scale, zeros=zero
        )
        inputs = (int(held.inputs[0]), int(held.inputs[1]), constant)
        net.b.op("PADV2", inputs, (padded,), options=("PadV2Options", {}))
    return padded


def _maximum(net: Net, source: int, stride: int = 2) -> int:
    h, w, c = net.shapes[source]
    made = net.made(f"max{source}", ((h - 3) // stride + 1, (w - 3) // stride + 1, c))
    window = {"filterHeight": 3, "filterWidth": 3, "strideW": stride, "strideH": stride}
    net.b.op("MAX_POOL_2D", (source,), (made,), options=("Pool2DOptions", window | {"padding": 1}))
    return made


def residual(size: tuple[int, int], value: int | None = -128) -> bytes:
    """As ResNet begins: a padded 3 x 3, a padded maximum, a block whose shortcut strides."""
    net = Net(size)
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 8, 3, 2, "VALID", "RELU")
    x = _maximum(net, _padded_with(net, x, value))
    main = net.conv(net.pad(x, (1, 1), (1, 1)), 12, 3, 2, "VALID", "RELU")
    x = net.add(net.conv(main, 12, 3), net.conv(x, 12, 1, 2))
    return net.finish(net.pooled(x))


@pytest.mark.parametrize("kernels", ["builtin", "default", "reference"])
@pytest.mark.parametrize("size", [(32, 32), (48, 32)])
def test_a_maximum_ignores_the_outside(size: tuple[int, int], kernels: str, tmp_path: Path) -> None:
    data = residual(size)
    changed, facts = absorb_padding(data, "turned")
    assert facts.left == () and len(facts.absorbed) == 3
    assert facts.multiply_adds == facts.multiply_adds_before
    counts = parse_model(changed).operator_counts()
    assert {"PAD", "PADV2"}.isdisjoint(counts)
    assert counts["STRIDED_SLICE"] == 1  # What the strided shortcut reads is picked.
    given = pictures(data)
    assert equal(
        results(data, tmp_path, given, kernels), results(changed, tmp_path, given, kernels)
    )


@pytest.mark.parametrize("value", [-7, -128 + 1, None])
def test_a_maximum_of_another_value_is_left_alone(value: int | None, tmp_path: Path) -> None:
    data = residual((32, 32), value)
    for form in FORMS:
        changed, facts = absorb_padding(data, form)
        assert any("lowest value" in reason for _, reason in facts.left)
        given = pictures(data)
        assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))


def _run(data: bytes, folder: Path, feeds: list[dict[str, Any]]) -> list[list[Any]]:
    path = folder / "model.tflite"
    path.write_bytes(data)
    model = open_model(path, kernels="builtin")
    return [[v for _, v in sorted(model.run(feed).items())] for feed in feeds]


@pytest.mark.parametrize("form", FORMS)
def test_two_pictures_and_one_pad_for_two_readers(form: Form, tmp_path: Path) -> None:
    net = Net((12, 16))
    other = net.made("other", (12, 16, 3))
    padded = net.pad(net.image, (1, 1), (1, 1))
    x = net.add(net.conv(padded, 8, 3, 2, "VALID"), net.conv(padded, 8, 3, 2, "VALID"))
    y = net.conv(net.pad(other, (1, 1), (1, 1)), 8, 3, 2, "VALID")
    out = net.conv(net.add(x, y), 4, 3)
    data = net.b.finish({"picture": net.image, "other": other}, {"map": out, "picked": x})
    changed, facts = absorb_padding(data, form)
    assert len(facts.absorbed) == 2 and facts.left == ()
    random = np.random.default_rng(2)
    names = [name for name, _ in parse_model(data).signature_inputs]
    feeds = [{n: random.integers(-128, 128, (1, 12, 16, 3), np.int8) for n in names}] * 2
    before, after = (_run(held, tmp_path, feeds) for held in (data, changed))
    assert all(np.array_equal(a, b) for a, b in zip(before[0], after[0], strict=True))


def _of_batch(data: bytes, batch: int) -> bytes:
    from edgefuse.tflite.edit import Edit

    edit = Edit(data)
    for tensor in edit.graph.tensors:
        if not tensor.buffer and len(tensor.shape) == 4:
            tensor.shape = [batch, *tensor.shape[1:]]
    return edit.packed()


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_three(form: Form, tmp_path: Path) -> None:
    data = _of_batch(residual((32, 32)), 3)
    changed, facts = absorb_padding(data, form)
    assert facts.absorbed
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))


@pytest.mark.parametrize("form", FORMS)
def test_signatures_and_metadata_stay(form: Form) -> None:
    from edgefuse.tflite.edit import Edit

    edit = Edit(residual((32, 32)))
    entry = edit.schema.MetadataT()
    entry.name, entry.buffer = b"note", len(edit.model.buffers)
    held = edit.schema.BufferT()
    held.data = np.frombuffer(b"kept", np.uint8)
    edit.model.buffers.append(held)
    edit.model.metadata = [entry]
    data = edit.packed()
    changed, _ = absorb_padding(data, form)
    before, after = parse_model(data), parse_model(changed)
    assert changed != data
    assert [n for n, _ in before.signature_inputs] == [n for n, _ in after.signature_inputs]
    assert [n for n, _ in before.signature_outputs] == [n for n, _ in after.signature_outputs]
    found = Edit(changed).model
    (kept,) = found.metadata
    assert bytes(found.buffers[kept.buffer].data) == b"kept"


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_that_is_computed_is_left_alone(form: Form) -> None:
    net = Net((8, 8), integer=False)
    padded = net.pad(net.image, (1, 1), (1, 1))
    net.conv(padded, 4, 3, 2, "VALID")
    operator = net.b.graph.operators[-1]
    held = int(operator.inputs[1])
    half = net.b.tensor("half", value=np.zeros((4, 3, 3, 3), np.float16))
    net.b.graph.tensors[held].buffer = 0
    made = net.b.graph.operators.pop()
    net.b.op("DEQUANTIZE", (half,), (held,))
    net.b.graph.operators.append(made)
    changed, facts = absorb_padding(data := net.finish(int(operator.outputs[0])), form)
    assert changed is data
    assert "its kernel is no constant" in facts.left[0][1]


@pytest.mark.parametrize("seed", range(8))
def test_random_nets(seed: int, tmp_path: Path) -> None:
    """Whatever is absorbed or left, every bit stays."""
    random = np.random.default_rng(seed)
    net = Net((int(random.integers(9, 24)), int(random.integers(9, 24))))
    x = net.image
    for _ in range(4):
        if min(net.shapes[x][:2]) < 6:
            break
        kernel, stride = int(random.choice([1, 2, 3, 5])), int(random.integers(1, 4))
        pad = [tuple(int(n) for n in random.integers(0, 3, 2)) for _ in range(2)]
        source = net.pad(x, pad[0], pad[1]) if random.random() < 0.8 else x
        channels = int(random.choice([0, 4, 8]))
        kernel = min(kernel, *net.shapes[source][:2])
        x = net.conv(source, channels, kernel, stride, "VALID" if source != x else "SAME")
        if random.random() < 0.3:
            x = net.add(x, net.conv(x, net.shapes[x][2], 3))
    data = net.finish(net.conv(x, 4, 1), net.pooled(x))
    given = pictures(data, 2)
    whole = results(data, tmp_path, given)
    for form in FORMS:
        changed, _ = absorb_padding(data, form)
        assert equal(whole, results(changed, tmp_path, given))
