"""The base of every section of a recipe or target: immutable, typed, without unknown keys."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from edgefuse.sizes import size_or_as_given

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

_Whole = Annotated[int, Field(gt=0)]
#: A size: bytes, or words as 512KiB.
Bytes = Annotated[_Whole, BeforeValidator(size_or_as_given, json_schema_input_type=_Whole | str)]


class Section(BaseModel):
    """A part of a recipe: immutable, typed, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=False)
