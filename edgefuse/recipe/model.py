"""Section ``model``: where the network comes from, and what it is given."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from edgefuse.recipe.files import Blob, LocalFile
from edgefuse.recipe.shapes import static_sizes
from edgefuse.section import Section


class TorchModel(Section):
    """A PyTorch module built by an importable callable."""

    callable: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="module:callable; the recipe's folder and the working folder are importable.",
    )
    arguments: dict[str, Any] = Field({}, description="Keyword arguments of the callable.")
    weights: Blob | LocalFile | Literal["random", "callable"] = Field(
        description="A state dict by content or by path; 'random' (seeded, never releasable); "
        "'callable': the callable loads them itself (then the export is never cached).",
    )


class TensorShape(Section):
    """One model input."""

    name: str = Field(min_length=1, description="As the samples, the ONNX and the TFLite call it.")
    shape: tuple[Annotated[int, Field(gt=0, strict=True)], ...] = Field(
        min_length=1, description="Static shape, batch first, in the source model's layout."
    )
    dtype: Literal["float32"] = Field("float32", description="Of the source model's input.")

    @field_validator("shape", mode="before")
    @classmethod
    def _static(cls, value: Any) -> Any:
        return static_sizes(value)


class Model(Section):
    """Where the model comes from: exactly one of torch, onnx, tflite."""

    torch: TorchModel | None = None
    onnx: LocalFile | None = Field(None, description="An .onnx file.")
    tflite: LocalFile | None = Field(None, description="A float .tflite file: convert only checks.")
    inputs: tuple[TensorShape, ...] = Field(
        min_length=1,
        description="Names and static shapes, in the order of forward(); dynamic sizes of an "
        "ONNX file are pinned to these.",
    )
    outputs: tuple[str, ...] = Field((), description="Names of the outputs; needed for torch.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [k for k in ("torch", "onnx", "tflite") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of torch, onnx, tflite (found: {given or 'none'})")
        if self.torch and not self.outputs:
            raise ValueError("a torch model needs the names of its outputs")
        names = [i.name for i in self.inputs] + list(self.outputs)
        if len(set(names)) != len(names):
            raise ValueError(f"input and output names must differ: {names}")
        return self

    @property
    def source(self) -> str:
        return "torch" if self.torch else "onnx" if self.onnx else "tflite"

    @property
    def batch(self) -> int:
        """The static batch: the first axis of the first input."""
        return self.inputs[0].shape[0]

    @property
    def random_weights(self) -> bool:
        return self.torch is not None and self.torch.weights == "random"
