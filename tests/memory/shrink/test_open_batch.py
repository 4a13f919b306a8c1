"""A file with an open batch stays one: every rewrite works for as many samples as it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.memory.shrink.shrink import Wish, shrink
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.runtime import load_runtime

from ..nets import Net

KEPT: dict[str, Any] = {"padding": "keep", "edges": False, "order": False}


def _opened(data: bytes) -> bytes:
    edit = Edit(data)
    for tensor in edit.graph.tensors:
        if not tensor.buffer and len(tensor.shape) == 4:
            tensor.shapeSignature = [-1, *(int(n) for n in tensor.shape[1:])]
    return edit.packed()


def _net() -> bytes:
    """Has what every rewrite looks for; its shortcut of 1 x 1 is picked when the network turns."""
    net = Net((64, 48), 8)
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 24, 3, 2, "VALID", "RELU6")
    x = net.add(x, net.conv(net.image, 24, 1, 2))
    return _opened(net.finish(net.conv(net.conv(x, 0, 3, 2), 8, 1)))


def _results(data: bytes, samples: int) -> Any:
    runtime = load_runtime("litert")
    model = runtime.Interpreter(
        model_content=data, experimental_op_resolver_type=runtime.OpResolverType.BUILTIN_REF
    )
    place, shape = (model.get_input_details()[0][key] for key in ("index", "shape"))
    model.resize_tensor_input(place, [samples, *shape[1:]])
    model.allocate_tensors()
    values = np.random.default_rng(1).integers(-128, 128, (samples, *shape[1:]), np.int8)
    model.set_tensor(place, values)
    model.invoke()
    return model.get_tensor(model.get_output_details()[0]["index"])


@pytest.mark.parametrize(
    ("step", "wish"),
    [
        ("padding", Wish(**{**KEPT, "padding": "turned"})),
        ("padding", Wish(**{**KEPT, "padding": "turned"}, kernels="legacy")),
        ("padding", Wish(**{**KEPT, "padding": "wider_kernels"}, max_extra_multiply_adds=1)),
        ("edges", Wish(**{**KEPT, "edges": True})),
        ("tiles", Wish(**KEPT, tiles=(2, 1), last=1, max_extra_multiply_adds=1)),
    ],
    ids=["one_row", "by_axes", "wider_kernels", "edges", "tiles"],
)
def test_a_resized_batch(step: str, wish: Wish) -> None:
    data = _net()
    made, done = shrink(data, wish)
    assert step in {each.name for each in done.steps if each.kept}
    for samples in (1, 3):
        wanted = _results(data, samples)
        assert len(wanted) == samples
        np.testing.assert_array_equal(_results(made, samples), wanted)
