"""What a program's JSON has to be, before anything of it is believed: names, types, signs.

A program comes out of a bundle, so it is hostile input. Whether its parts fit each other is left to
:mod:`edgefuse.cuda.faults`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from edgefuse.cuda.storage import Dtype, Precision
from edgefuse.section import Section

_Count = Annotated[int, Field(ge=0, lt=2**62)]
_Size = Annotated[int, Field(ge=1, lt=2**31)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Operand = Annotated[str, Field(pattern=r"^([%$][0-9]{1,9}|[^%$][\s\S]*)$")]
_View = tuple[_Count, tuple[_Count, ...]]


class _Quantization(Section):
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    zero_point: Annotated[int, Field(ge=-128, le=127)]


class _Tensor(Section):
    name: Annotated[str, Field(min_length=1)]
    shape: tuple[int, ...]
    dtype: Dtype
    role: Literal["input", "output", "weight", "inner"]
    offset: _Count
    quantization: _Quantization | None
    alias_of: str
    module: str


class _Step(Section):
    kind: str
    operands: tuple[_Operand, ...]
    constants: tuple[Annotated[float, Field(allow_inf_nan=True)], ...]


class _Attributes(Section):
    strides: tuple[_Size, _Size] = (1, 1)
    dilations: tuple[_Size, _Size] = (1, 1)
    window: tuple[_Size, _Size] = (1, 1)
    pads: tuple[_Count, _Count, _Count, _Count] = (0, 0, 0, 0)
    pad_value: _Finite = 0
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    kind: str = ""
    count_padding: Literal[0, 1] = 0
    sizes: tuple[_Size, ...] = ()
    extents: tuple[_Size, ...] = ()
    shape: tuple[_Size, ...] = ()
    views: tuple[_View, ...] = ()
    epsilon: _Finite = 0
    scale: _Finite = 1


class _Launch(Section):
    name: str
    kernel: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    output: str
    attributes: _Attributes
    inner: tuple[_Step, ...]
    epilogue: tuple[_Step, ...]
    groups: tuple[str, ...]
    nodes: tuple[str, ...]
    module: str
    matrix_flops: _Count
    vector_flops: _Count
    bytes_read: _Count
    bytes_written: _Count


class _Buffer(Section):
    name: str
    size_bytes: _Count
    first: _Count
    last: _Count
    tensors: tuple[str, ...]


class _Arena(Section):
    owner: str
    buffers: tuple[_Buffer, ...]
    offsets: tuple[_Count, ...]
    steps: tuple[str, ...]
    bound_bytes: _Count
    proven: bool


class _Program(Section):
    schema_version: int = Field(alias="schema")
    name: str
    bucket: str
    precision: Precision
    weights_bytes: _Count
    floor_bytes: _Count
    notes: tuple[str, ...]
    tensors: tuple[_Tensor, ...]
    launches: tuple[_Launch, ...]
    arena: _Arena


def breach(text: str) -> str | None:
    """The first thing in a program's JSON text that has no place there, in words; None: nothing."""
    try:
        _Program.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'text'}: {first['msg']}"
    return None
