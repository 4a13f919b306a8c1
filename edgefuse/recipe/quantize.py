"""What a recipe says about quantisation: formats, ranges, and what is done to keep accuracy."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from edgefuse.errors import UsageError
from edgefuse.section import Section
from edgefuse.sizes import budget_of

RangeMethod = Literal["percentile", "minmax", "mse", "entropy"]
Format = Literal["int8", "int16x8", "dynamic_range", "float16"]
BoundaryType = Literal["int8", "uint8", "int16", "float32"]
#: 6.02 dB a bit and 1.76 dB, of a sine that fills the range.
_MOST_DB_OF_8_BITS = 49.9
_BOUNDARY: dict[str, tuple[BoundaryType, ...]] = {
    "int8": ("int8", "uint8", "float32"),
    "int16x8": ("int16", "float32"),
    "dynamic_range": ("float32",),
    "float16": ("float32",),
}


def _expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


Expression = Annotated[str, Field(min_length=1)]


class TensorRule(Section):
    """Another range for some activation tensors; the first rule that matches counts."""

    match: Expression = Field(
        description="Regular expression, found anywhere in the TFLite tensor's name."
    )
    ranges: RangeMethod = Field(description="As quantize.ranges.")
    tail_percent: float = Field(0.01, ge=0, lt=50, description="As quantize.tail_percent.")

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        return _expression(value)


class Goal(Section):
    """What the quantised model must reach on data.validation; the cheapest way is searched for."""

    max_drop_points: float | None = Field(None, description="Top-1; needs labels.")
    min_agreement: float | None = Field(
        None, gt=0, le=1, description="Fraction of samples whose first class is the float model's."
    )
    min_sqnr_db: float | None = Field(None, description="The least of all outputs.")
    time_limit_s: int = Field(600, gt=0, description="No candidate is begun after this time.")

    @field_validator("min_agreement", mode="before")
    @classmethod
    def _fraction(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and 1 < value <= 100:
            raise ValueError(f"a fraction is due: write {value / 100:g} for {value:g}%")
        return value

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        if (self.max_drop_points, self.min_agreement, self.min_sqnr_db) == (None, None, None):
            raise ValueError("a goal without a threshold is reached by anything: give at least one")
        if self.max_drop_points is not None and self.max_drop_points < 0:
            raise ValueError("max_drop_points below 0 asks for int8 to be better than float")
        if self.max_drop_points is not None and self.max_drop_points >= 100:
            raise ValueError("a drop of 100 points is reached by anything")
        return self


class Qat(Section):
    """Quantisation-aware fine-tuning on data.training, BatchNorm folded and so frozen."""

    steps: int = Field(200, gt=0, description="Optimiser steps.")
    learning_rate: float = Field(
        1e-4,
        gt=0,
        le=1,
        description="Of Adam, in shares of a channel's largest weight; decayed to 0 by a cosine.",
    )
    batch: int = Field(8, gt=0, description="Samples a step.")
    label_weight: float = Field(
        0.0, ge=0, le=1, description="Share of cross-entropy on labels; the rest is distillation."
    )
    memory_budget: Annotated[int, Field(gt=0)] | str | None = Field(
        None,
        description="Peak of a step: bytes, 300MiB, or a share of the plain step's as 40%; pieces "
        "of the network run twice to keep to it. The trained weights are the same.",
    )

    @field_validator("memory_budget", mode="before")
    @classmethod
    def _size_or_share(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("give bytes, a size as 300MiB, or a share as 40%")
        if isinstance(value, str):
            try:
                budget_of(value, "memory_budget")
            except UsageError as error:
                raise ValueError(f"{error.message}; {error.hint}") from None
        return value

    @property
    def budget(self) -> int | float | None:
        """Bytes, or a share in (0, 1]."""
        held = self.memory_budget
        return budget_of(held, "memory_budget") if isinstance(held, str) else held


class Quantize(Section):
    """Float TFLite to quantised TFLite."""

    format: Format = Field(
        "int8",
        description="int8: weights and activations; int16x8: int16 activations, int8 weights; "
        "dynamic_range: int8 weights, float activations; float16: weights.",
    )
    weights: Literal["per_channel", "per_tensor"] = Field(
        "per_channel", description="Scales of the weights; some targets know per_tensor only."
    )
    ranges: RangeMethod = Field(
        "percentile",
        description="How an activation's range follows from its values: percentile cuts the "
        "rarest, minmax keeps all, mse has the least squared error, entropy the least divergence.",
    )
    tail_percent: float = Field(
        0.01,
        ge=0,
        lt=50,
        description="Cut from each end of a tensor's values (percentile); the model's inputs and "
        "outputs are never cut.",
    )
    tensors: tuple[TensorRule, ...] = Field((), description="Other ranges for some tensors.")
    head: Literal["values", "classes"] = Field(
        "values",
        description="What the output is for: values keeps all of its range; classes clips the low "
        "side, which never decides the first class (judge it by agreement, not by SQNR).",
    )
    equalize: bool = Field(
        False, description="Cross-layer equalisation: channels of consecutive layers share scales."
    )
    rounding: Literal["nearest", "gptq"] = Field(
        "nearest",
        description="Of the weights. gptq: in closed form, each error made good by the weights "
        "that follow, on the samples' quantised inputs; biases keep each layer's mean.",
    )
    correct_bias: Literal["none", "head", "layers"] = Field(
        "none",
        description="Take the mean error, on the calibration samples, off the bias. head: of the "
        "last FULLY_CONNECTED, against the float model; layers: of every layer in order, what "
        "rounding its weights did.",
    )
    keep_float: tuple[Expression, ...] = Field(
        (),
        description="Operators that stay float: regular expressions, found in the name of an "
        "operator's first output. Each is also to be permitted in check.permit_float.",
    )
    int16: tuple[Expression, ...] = Field(
        (),
        description="Operators with int16 activations, as keep_float; probed on the target.",
    )
    input: BoundaryType | None = Field(
        None, description="Type of the inputs: int8, uint8, int16, float32; null: the format's own."
    )
    output: BoundaryType | None = Field(None, description="Type of the outputs, as input.")
    goal: Goal | None = Field(None, description="Search for the cheapest way to reach this.")
    qat: Qat | None = Field(None, description="Fine-tune when all else fails; needs data.training.")

    @field_validator("keep_float", "int16")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_expression(item) for item in value)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for side in ("input", "output"):
            given, allowed = getattr(self, side), _BOUNDARY[self.format]
            if given is not None and given not in allowed:
                raise ValueError(
                    f"{side}: {given} does not exist in format {self.format}: {', '.join(allowed)}"
                )
        sqnr = self.goal.min_sqnr_db if self.goal else None
        if sqnr is not None and self.head == "classes":
            raise ValueError(
                "head: classes clips what goal.min_sqnr_db judges: give min_agreement instead, or "
                "head: values"
            )
        if sqnr is not None and sqnr > _MOST_DB_OF_8_BITS and self.output_type in ("int8", "uint8"):
            raise ValueError(
                f"goal.min_sqnr_db {sqnr:g} cannot be met by an output of 8 bits (at most "
                f"{_MOST_DB_OF_8_BITS:g} dB): lower it, or set output: float32"
            )
        if self.format != "int8":
            for key in ("keep_float", "int16", "goal", "qat"):
                if getattr(self, key):
                    raise ValueError(f"{key} needs format: int8 (found {self.format})")
        if self.format in ("dynamic_range", "float16"):
            ranges = {"tensors": bool(self.tensors), "head": self.head == "classes"}
            for key, asked in ranges.items():
                if asked:
                    raise ValueError(
                        f"{key} is about ranges, and {self.format} has none: its activations "
                        "stay float"
                    )
        self._refuse_layers()
        return self

    def _refuse_layers(self) -> None:
        """Refuse what works on integer layers in formats that have none of the kind."""
        rounded, corrected = self.rounding != "nearest", self.correct_bias
        if self.format in ("dynamic_range", "float16"):
            for key, asked in (("rounding", rounded), ("correct_bias", corrected != "none")):
                if asked:
                    raise ValueError(
                        f"{key} works on layers with integer inputs, and {self.format} has none: "
                        f"leave it out, or set format: int8"
                    )
        if self.format == "int16x8" and corrected == "head":
            raise ValueError(
                "correct_bias: head needs int32 biases, and those of int16x8 are int64: set "
                "correct_bias: layers, or leave it out"
            )

    @property
    def may_equalize(self) -> bool:
        """Whether the equalised float file is needed: asked for, or tried by the search."""
        return self.equalize or self.goal is not None

    @property
    def input_type(self) -> BoundaryType:
        return self.input or _BOUNDARY[self.format][0]

    @property
    def output_type(self) -> BoundaryType:
        return self.output or _BOUNDARY[self.format][0]
