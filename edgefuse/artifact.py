"""What flows between stages: one immutable file, its signature and its lineage.

An :class:`Artifact` is frozen data. The file lies in the store under its SHA-256; evidence
(measurements and verdicts) is kept beside it and is no part of its identity, so that a new
latency figure never invalidates a conversion.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["onnx", "tflite", "plan", "program", "verdict", "bundle"]
Layout = Literal["NCHW", "NHWC", "other"]


@dataclass(frozen=True)
class Quantization:
    """Affine quantisation of one tensor: real = scale * (quantized - zero_point)."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its name, static shape, NumPy dtype name, layout and quantisation.

    ``turned``: a picture that has to be given turned by 180 degrees, rows and columns reversed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: Layout = "other"
    quantization: Quantization | None = None
    turned: bool = False


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, in the order the file declares them."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Signature:
        def spec(row: Mapping[str, Any]) -> TensorSpec:
            quantization = row.get("quantization")
            return TensorSpec(
                name=row["name"],
                shape=tuple(row["shape"]),
                dtype=row["dtype"],
                layout=row["layout"],
                quantization=Quantization(**quantization) if quantization else None,
                turned=row.get("turned", False),
            )

        return Signature(
            inputs=tuple(spec(row) for row in data["inputs"]),
            outputs=tuple(spec(row) for row in data["outputs"]),
        )


@dataclass(frozen=True)
class Artifact:
    """An immutable file in the store.

    Attributes:
        kind: what the bytes are.
        path: where the bytes lie in the store.
        sha256: 64 hex digits, the digest of the bytes.
        stage: the stage that made it.
        key: the cache key it was made under, 64 hex digits.
        signature: inputs and outputs; empty for verdicts and bundles.
        parents: SHA-256 of every input, by the name of the stage that made it.
        evidence: what was measured while it was made; outside the digest.
        seconds: wall time of the making.
        reused: whether it came out of the store.
    """

    kind: Kind
    path: Path
    sha256: str
    stage: str
    key: str
    signature: Signature = field(default_factory=Signature)
    parents: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reused: bool = False


@dataclass(frozen=True)
class Product:
    """What a stage hands back to the runner: a file in its private folder, not yet stored."""

    kind: Kind
    path: Path
    signature: Signature = field(default_factory=Signature)
    evidence: Mapping[str, Any] = field(default_factory=dict)


def canonical_json(data: Any) -> str:
    """JSON with sorted keys and no spaces: equal data gives equal bytes.

    Raises:
        ValueError: for NaN or infinity.
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_json(data: Any) -> str:
    return digest_bytes(canonical_json(data).encode())


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces; 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
