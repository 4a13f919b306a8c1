"""The base of every section of a recipe or target: immutable, typed, without unknown keys."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    field_validator,
)

SHA256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, 64 hex digits.")]
NAME = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


def _fraction(value: Any) -> Any:
    """Accept ``1/255`` beside a plain number."""
    if isinstance(value, str) and (m := re.fullmatch(r"\s*([\d.]+)\s*/\s*([\d.]+)\s*", value)):
        if float(m[2]) == 0.0:
            raise ValueError("division by zero")
        return float(m[1]) / float(m[2])
    return value


Number = Annotated[float, BeforeValidator(_fraction)]


class Section(BaseModel):
    """A part of a recipe: immutable, typed, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        """Refuse ``yes``, which pydantic reads as 1 where a number is due."""
        result = read(value)
        if _true_as_number(value, result):
            raise ValueError("a number is due, not true or false (`yes` and `on` are true to YAML)")
        return result


def _true_as_number(given: Any, read: Any) -> bool:
    if isinstance(given, list) and isinstance(read, Sequence):
        return any(map(_true_as_number, given, read))
    return isinstance(given, bool) and type(read) in (int, float)
