"""What a recipe says about fusion: the passes, and the contract that the final file must keep."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from edgefuse.section import Section


def _known_passes(names: Iterable[str]) -> None:
    known = sorted(p.stem for p in (Path(__file__).parent.parent / "passes").glob("[a-z]*.py"))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"no pass is called {name!r}{meant} (passes: {', '.join(known)})")


class Fuse(Section):
    """Graph fusion."""

    skip: tuple[str, ...] = Field((), description="Passes not to run (`edgefuse passes`).")
    parity_samples: int = Field(2, gt=0, description="Real samples compared with the unfused.")
    max_relative_error: float = Field(1e-4, gt=0, description="Of the largest |output|.")
    fold_size_limit_bytes: int = Field(
        1 << 22, gt=0, description="Constant folding never makes a larger constant."
    )

    @field_validator("skip")
    @classmethod
    def _passes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        _known_passes(value)
        return value


class Contract(Section):
    """What must hold in the final file; a run that breaks it ends with exit code 1."""

    fused: dict[str, Annotated[int, Field(gt=0)]] = Field(
        {},
        description="Pass name -> how many of its fusions must be there, at least. A fusion that "
        "TFLite can express counts only when it is kept to the last operator of the int8 file: "
        "weights that were folded, an activation inside its convolution, a residual addition.",
    )
    operators: dict[
        Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], Annotated[int, Field(ge=0)]
    ] = Field({}, description="TFLite operator -> how many the int8 file holds, exactly.")
    max_float_operators: int | None = Field(
        None, ge=0, description="Operators of the int8 file that compute in float, at most."
    )

    @field_validator("fused")
    @classmethod
    def _passes(cls, value: dict[str, Any]) -> dict[str, Any]:
        _known_passes(value)
        return value
