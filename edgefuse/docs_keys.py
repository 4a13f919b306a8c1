"""Every key of a pydantic model as Markdown: type, limits, default, description."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_SIGNS = {"gt": "> {}", "ge": ">= {}", "lt": "< {}", "le": "<= {}"}
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}


def key_tables(model: type[BaseModel]) -> str:
    """One table a model class, in the order a reader meets them; ``model`` first.

    Raises:
        ValueError: a key without a description.
    """
    places: dict[type[BaseModel], list[str]] = {}
    _walk(model, "", places)
    parts = []
    for found, paths in places.items():
        where = ", ".join(f"`{path}`" for path in paths if path) or "top level"
        heading = f"{found.__name__}: {where}"
        about = " ".join((found.__doc__ or "").split())
        parts.append(f"### {heading}\n\n{about}\n\n{_table(found)}")
    return "\n\n".join(parts)


def _walk(model: type[BaseModel], path: str, places: dict[type[BaseModel], list[str]]) -> None:
    places.setdefault(model, []).append(path)
    for name, field in model.model_fields.items():
        inner = f"{path}.{field.alias or name}".lstrip(".")
        for found, suffix in _sections(field.annotation):
            _walk(found, inner + suffix, places)


def _sections(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Model classes inside an annotation, and whether they are items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
        return
    many = "[]" if get_origin(annotation) is tuple else ""
    for argument in get_args(annotation):
        for found, suffix in _sections(argument):
            yield found, many + suffix


def _table(model: type[BaseModel]) -> str:
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        about = field.description or _described(field.annotation, field.metadata)
        if not about:
            raise ValueError(f"{model.__name__}.{name} has no description")
        row = (
            f"`{field.alias or name}`",
            _type(field.annotation, field.metadata),
            _default(field),
            about,
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")
    return "\n".join(lines)


def _described(annotation: Any, metadata: list[Any]) -> str:
    """What the annotation says of itself, else the first line of the section it holds."""
    texts = [getattr(item, "description", None) for item in metadata]
    texts += [(found.__doc__ or "").splitlines()[0] for found, _ in _sections(annotation)]
    return next((text for text in texts if text), "")


def _type(annotation: Any, metadata: Any = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], arguments[1:])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        given = [a for a in arguments if a is not type(None)]
        shown = [_type(a, metadata if len(given) == 1 else ()) for a in given]
        return " or ".join(shown) + (" or null" if type(None) in arguments else "")
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_type(arguments[0])}"
        return f"{len(arguments)} of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping from {_type(arguments[0])} to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.__name__
    limits = ", ".join(_limits(metadata))
    return f"{_NAMES.get(annotation, 'anything')}{f' {limits}' if limits else ''}"


def _limits(metadata: Any) -> Iterator[str]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _limits(item.metadata)
        for name, text in _SIGNS.items():
            limit = getattr(item, name, None)
            if limit is not None and not isinstance(item, FieldInfo):
                yield text.format(limit)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "its own defaults"
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and value == 1 / 255:
        return "`1/255`"
    return f"`{json.dumps(value)}`"
