"""Sections ``preprocess`` and ``data``: pictures and arrays, and the way to the model's input."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from edgefuse.recipe.files import Blob, LocalFile
from edgefuse.section import Number, Section


class Preprocess(Section):
    """The one contract from a picture to the model's input, used everywhere and shipped."""

    resize: int | None = Field(
        None, gt=0, description="Short side in pixels, bilinear with antialiasing; null: as it is."
    )
    crop: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = Field(
        description="Height and width of the centre crop, in pixels."
    )
    colour: Literal["RGB", "BGR"] = Field("RGB", description="Order of the colour channels.")
    scale: Number = Field(1 / 255, gt=0, description="Factor on the pixel values 0..255; 1/255.")
    mean: tuple[float, float, float] = Field(
        (0.0, 0.0, 0.0), description="Per channel, in the given colour order, after scaling."
    )
    std: tuple[float, float, float] = Field((1.0, 1.0, 1.0), description="As mean; positive.")
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="Of the source model's input.")

    @field_validator("std")
    @classmethod
    def _positive(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0:
            raise ValueError("every standard deviation must be positive")
        return value


class Crops(Section):
    """Seeded square crops of each picture, spread evenly over the pictures."""

    count: int = Field(gt=0, description="Crops in all.")
    seed: int = Field(0, ge=0, description="Places the crops.")
    min_fraction: float = Field(
        0.5, gt=0, le=1, description="Least side of a crop, as a fraction of the short side."
    )


class Split(Section):
    """A part of a seeded shuffle of a folder: the first N, all after N, or the first M after N."""

    seed: int = Field(0, ge=0, description="Shuffles; all parts need the same.")
    first: int | None = Field(None, gt=0, description="Take the first N of what is left.")
    after: int | None = Field(None, ge=0, description="Leave out the first N.")

    @model_validator(mode="after")
    def _one_part(self) -> Self:
        if self.first is None and self.after is None:
            raise ValueError("give first, after, or both")
        return self


class Samples(Section):
    """A set of samples: exactly one of manifest, folder, arrays."""

    manifest: str | None = Field(
        None, description="YAML list of pictures by content, relative to the recipe's folder."
    )
    folder: str | None = Field(
        None, description="A folder of pictures, with labels.csv (file, class_index) or without."
    )
    arrays: str | None = Field(
        None, description="An .npz keyed by input name (first axis: samples), or an .npy."
    )
    crops: Crops | None = Field(None, description="Pictures only; null: each picture once.")
    split: Split | None = Field(None, description="Folders only; null: every picture.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [k for k in ("manifest", "folder", "arrays") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of manifest, folder, arrays (found: {given or 'none'})"
            )
        if self.split and not self.folder:
            raise ValueError("split needs a folder")
        if self.crops and self.arrays:
            raise ValueError("crops need pictures, not arrays")
        return self


class Data(Section):
    """The sample sets, by what they are for."""

    calibration: Samples = Field(description="Sets the quantisation ranges.")
    evaluation: Samples = Field(description="Judged by the accuracy gate; also parity checks.")
    report: Samples | None = Field(None, description="Labelled; reported beside, never gated.")
    validation: Samples | None = Field(
        None,
        description="Decides between techniques of quantize.goal; neither calibrated on nor gated.",
    )
    training: Samples | None = Field(None, description="What quantize.qat learns from.")
    labels: Blob | LocalFile | None = Field(
        None, description="Class names, one a line, shipped in the bundle."
    )


SAMPLE_ROLES = tuple(name for name in Data.model_fields if name != "labels")
