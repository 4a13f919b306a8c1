"""The scales that a model brings along, as they travel with its ONNX file.

A model that held QuantizeLinear and DequantizeLinear keeps what they said as one JSON text in the
file's metadata (:mod:`edgefuse.graph.qdq` takes the nodes out). Values are called by their names in
that very file. Everything is in int8 terms: real = scale * (q - zero_point), q from -128 to 127;
what was uint8 has a zero point that is smaller by 128. A float32 scale written as a decimal number
of 17 digits is read back bit for bit.

Left alone: the numbers of the weights. They are float constants that hold scale * q exactly, so q
is round(w / scale).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.artifact import Quantization, canonical_json

if TYPE_CHECKING:
    import onnx

    from edgefuse.graph.values import Array

METADATA_KEY = "edgefuse.quantization"


@dataclass(frozen=True)
class WeightScales:
    """Of a symmetric int8 weight.

    Attributes:
        scales: one, or one for each index of ``axis``.
        axis: None when there is one scale.
    """

    scales: tuple[float, ...]
    axis: int | None


@dataclass(frozen=True)
class Annotations:
    """What the taken-out nodes said, by name of the value.

    Attributes:
        activations: of computed values and of inputs.
        weights: of constants that a convolution or a matrix product reads as its weight.
        constants: of other constants, the operand of an addition for one.
    """

    activations: Mapping[str, Quantization]
    weights: Mapping[str, WeightScales]
    constants: Mapping[str, Quantization]

    def to_json(self) -> str:
        return canonical_json({"schema": 1, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> Annotations:
        data = json.loads(text)
        return Annotations(
            activations={k: Quantization(**v) for k, v in data["activations"].items()},
            weights={
                k: WeightScales(tuple(v["scales"]), v["axis"]) for k, v in data["weights"].items()
            },
            constants={k: Quantization(**v) for k, v in data["constants"].items()},
        )


def annotations_of(source: Path | onnx.ModelProto) -> Annotations | None:
    """The scales that the file brings; None when it never held any."""
    import onnx

    if isinstance(source, Path):
        source = onnx.load(source, load_external_data=False)
    found = [entry.value for entry in source.metadata_props if entry.key == METADATA_KEY]
    return Annotations.from_json(found[0]) if found else None


def annotated_constants(source: Path, annotations: Annotations) -> dict[str, Array]:
    """The float constants that have scales, by name."""
    import onnx

    wanted = {*annotations.weights, *annotations.constants}
    tensors = onnx.load(source).graph.initializer
    return {t.name: onnx.numpy_helper.to_array(t) for t in tensors if t.name in wanted}


def annotate(proto: onnx.ModelProto, annotations: Annotations) -> None:
    """Write them into the file's metadata, in place of any that were there."""
    kept = [(e.key, e.value) for e in proto.metadata_props if e.key != METADATA_KEY]
    del proto.metadata_props[:]
    for key, value in [*kept, (METADATA_KEY, annotations.to_json())]:
        proto.metadata_props.add(key=key, value=value)
