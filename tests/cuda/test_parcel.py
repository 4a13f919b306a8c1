"""Archives of programs that somebody tampered with: one message each, nothing is run."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuda.nets import BLOCK, fused, graph
from edgefuse.archive import pack, packed, read_members
from edgefuse.cuda import parcel
from edgefuse.cuda.lower.graph import lower
from edgefuse.errors import StageError
from edgefuse.graph.shapes import at_shapes

Row = dict[str, Any]


@functools.cache
def archive() -> dict[str, bytes]:
    import tempfile

    model = at_shapes(fused(graph(BLOCK)), {}).model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.tar"
        parcel.write([lower(model, "fp16", name="net", bucket="batch 2")], path)
        return read_members(path)


def first(program: Row, role: str) -> Row:
    found: Row = next(t for t in program["tensors"] if t["role"] == role)
    return found


def of(role: str, /, **changes: Any) -> Callable[[Row], None]:
    return lambda program: first(program, role).update(changes)


def attribute(**changes: Any) -> Callable[[Row], None]:
    return lambda program: program["launches"][0]["attributes"].update(changes)


def launch(**changes: Any) -> Callable[[Row], None]:
    return lambda program: program["launches"][0].update(changes)


def step(**changes: Any) -> Callable[[Row], None]:
    return lambda program: program["launches"][0]["epilogue"][0].update(changes)


def moved(by: int) -> Callable[[Row], None]:
    """The whole arena elsewhere, plan and tensors alike."""

    def change(program: Row) -> None:
        program["arena"]["offsets"] = [o + by for o in program["arena"]["offsets"]]
        for tensor in program["tensors"]:
            tensor["offset"] += 0 if tensor["role"] == "weight" else by

    return change


def looped(program: Row) -> None:
    own = program["launches"][0]
    own["inputs"] = [own["output"]]


def refused(members: dict[str, bytes], tmp_path: Path) -> str:
    path = tmp_path / "bad.tar"
    pack(members, path)
    with pytest.raises(StageError) as caught:
        parcel.read(path)
    return caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of("weight", offset=10**9), "beyond the end of the weights"),
        (of("weight", offset=-256), "offset"),
        (of("weight", offset=2), "no multiple of 256"),
        (of("inner", offset=10**9), "does not fit its buffer"),
        (moved(256 * 4000), "would hold every buffer by itself"),
        (moved(2**50), "would hold every buffer by itself"),
        (moved(-256 * 4000), "offset: Input should be greater than or equal to 0"),
        (lambda p: p["arena"]["offsets"].pop(), "one offset for each buffer"),
        (of("inner", shape=[2**40, 2**40]), "32 bits"),
        (of("inner", shape=[-1, -8, 8, 8]), "has no elements"),
        (of("inner", shape=["a"]), "shape.0"),
        (of("inner", shape=[1.5]), "shape.0"),
        (of("inner", dtype="float8"), "dtype"),
        (of("inner", role="outer"), "role"),
        (of("inner", name=["a"]), "name"),
        (of("inner", alias_of="nobody"), "no alias of"),
        (of("input", quantization={"scale": 0, "zero_point": 0}), "scale"),
        (looped, "read before it is written"),
        (lambda p: p["launches"].reverse(), "does not fit its buffer"),
        (launch(kernel="../../x"), "there is no kernel"),
        (launch(kernel=["conv"]), "kernel"),
        (launch(inputs=[["x"]]), "inputs.0"),
        (launch(output="nobody"), "does not exist"),
        (attribute(strides=[0, 0]), "strides"),
        (attribute(strides=[-1, -1]), "strides"),
        (attribute(dilations=[0, 1]), "dilations"),
        (attribute(pads=[10**12, 1, 1, 1]), "cannot make"),
        (attribute(pads=None), "pads"),
        (attribute(pads="1111"), "pads"),
        (attribute(layout="CHWN"), "layout"),
        (attribute(pad_value="x"), "pad_value"),
        (attribute(another=1), "another"),
        (step(kind="launder"), "there is no step"),
        (step(operands=["acc", "%x"]), "operands.1"),
        (step(operands=["acc", ""]), "operands.1"),
        (step(operands=[3, 3]), "operands.0"),
        (lambda p: p.update(precision="fp8"), "precision"),
        (lambda p: p.update(tensors=[]), "does not exist"),
        (lambda p: p.update(tensors=None), "tensors"),
        (lambda p: p.update(weights_bytes=p["weights_bytes"] + 256), "weights of another length"),
        (lambda p: p.update(schema=99), "schema 99"),
    ],
)
def test_a_tampered_program(change: Callable[[Row], None], words: str, tmp_path: Path) -> None:
    members = dict(archive())
    program = copy.deepcopy(json.loads(members["programs/0.json"]))
    change(program)
    members["programs/0.json"] = json.dumps(program).encode()
    assert words in refused(members, tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("programs/0.json", b"{", "not a program"),
        ("programs/0.json", b"[]", "not a program"),
        ("programs/0.json", b"[" * 200_000, "not a program"),
        ("programs/0.json", b"\xff\xfe", "no archive of programs"),
        ("index.json", b"[]", "no archive of programs"),
        ("index.json", b'{"schema": 1, "buckets": []}', "it holds no bucket"),
        ("index.json", b'{"schema": 1, "buckets": ["x"]}', "no archive of programs"),
        ("index.json", b'{"schema": 2, "buckets": []}', "schema 2"),
    ],
)
def test_a_tampered_archive(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    assert words in refused({**archive(), name: data}, tmp_path)


def test_other_weights_of_the_same_length(tmp_path: Path) -> None:
    (name,) = (n for n in archive() if n.startswith("weights/"))
    data = archive()[name]
    for changed in (data[:-1], bytes([data[0] ^ 1]) + data[1:]):
        assert "does not match its SHA-256" in refused({**archive(), name: changed}, tmp_path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "whole.tar"
    path.write_bytes(packed(archive()))
    ((program, weights),) = parcel.read(path)
    parcel.write([(program, weights)], tmp_path / "again.tar")
    assert path.read_bytes() == (tmp_path / "again.tar").read_bytes()
