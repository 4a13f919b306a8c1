"""YAML files with places: validation errors that name file:line and the remedy."""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from edgefuse.errors import RecipeError
from edgefuse.yaml_text import KeyPath, TextReader

ModelType = TypeVar("ModelType", bound=BaseModel)
_SHOWN = 120  # characters of a wrong value


@dataclass(frozen=True)
class Document:
    """A YAML file's data with the line of every key path.

    Attributes:
        path: the file.
        data: plain dictionaries, lists and scalars.
        lines: 1-based line by key path.
        overrides: key paths set on the command line, with the text that set them.
    """

    path: Path
    data: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int:
        """The line of the key path or of its nearest ancestor; 0 when it has none."""
        known = (self.lines.get(path[:end]) for end in range(len(path), -1, -1))
        return next((line for line in known if line is not None), 0)

    def where(self, path: KeyPath) -> str:
        """``file:line`` of the key path or of its nearest ancestor; ``--set ...`` if it came so."""
        for end in range(len(path), -1, -1):
            for over, text in self.overrides.items():
                if over == path[:end] or (end == len(path) and over[: len(path)] == path):
                    return f"--set {text}"
            if path[:end] in self.lines:
                return f"{self.path}:{self.lines[path[:end]]}"
        return str(self.path)


def read_yaml(path: Path) -> Document:
    """Read a YAML mapping.

    Raises:
        RecipeError: missing or unreadable file, not YAML, not a mapping, a duplicate key.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # A pipe may never end, nor may a device.
            raise RecipeError("cannot be read: no regular file", where=str(path))
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"no such file: {path}", hint=_nearby(path)) from None
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:  # Not UTF-8, or no name that a file can have.
        raise RecipeError(f"cannot be read: {error}", where=str(path)) from None
    reader = TextReader(str(path))
    data = reader.read(text)
    if not isinstance(data, dict):
        raise RecipeError("expected a mapping of keys at the top", where=str(path))
    return Document(path, data, reader.lines)


def with_overrides(document: Document, settings: Sequence[str]) -> Document:
    """Apply ``a.b=value`` settings; the value is YAML.

    Raises:
        RecipeError: for a setting without '=', or a path through something that is no mapping.
    """
    data = _copy(document.data)
    overrides: dict[KeyPath, str] = {}
    for text in settings:
        keys, equals, value = text.partition("=")
        text = _cut(text)
        if not equals or not keys.strip():
            raise RecipeError(f"--set {text}: expected KEY.PATH=VALUE")
        path: KeyPath = tuple(int(k) if k.isdecimal() else k for k in keys.strip().split("."))
        try:
            parsed = TextReader(f"--set {text}", places=False).read(value)
        except RecipeError as error:
            raise RecipeError(error.message, where=f"--set {text}") from None
        place: Any = data
        for index, key in enumerate(path):
            last = index == len(path) - 1
            if isinstance(place, list) and isinstance(key, int) and key < len(place):
                if last:
                    place[key] = parsed
            elif isinstance(place, dict) and isinstance(key, str):
                if last:
                    place[key] = parsed
                elif not isinstance(place.get(key), dict | list):
                    place[key] = {}
            else:
                raise RecipeError(
                    f"--set {text}: {'.'.join(map(str, path[:index])) or 'the recipe'} "
                    f"has no {key!r}"
                )
            if not last:
                place = place[key]
        overrides[path] = text
    lines = {
        path: line
        for path, line in document.lines.items()
        if not any(path[: len(over)] == over for over in overrides)
    }
    return Document(document.path, data, lines, overrides)


def validate(document: Document, model: type[ModelType]) -> ModelType:
    """Turn a document into a frozen model.

    Raises:
        RecipeError: every problem with its place, key path, what is allowed, nearest spelling.
    """
    try:
        read = model.model_validate(document.data)
        for path in _truths(document.data, read, ()):
            raise RecipeError(
                f"{'.'.join(map(str, path))}: a number is due, not true or false (`yes` and `on` "
                "are true to YAML)",
                where=document.where(path),
            )
        return read
    except ValidationError as error:
        relevant = sorted(
            _relevant(document.data, error.errors()), key=lambda e: document.line(e["loc"])
        )
        problems = [_describe(document, model, e) for e in relevant]
    (where, message, hint), *rest = problems
    more = "".join(f"\n{w}: {m}" + (f"\n  hint: {h}" if h else "") for w, m, h in rest)
    if more:
        message, hint = message + (f"\n  hint: {hint}" if hint else "") + more, ""
    raise RecipeError(message, hint=hint, where=where)


def _truths(data: Any, read: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Where the document says true or false and pydantic read a number."""
    if isinstance(data, bool) and type(read) in (int, float):
        yield path
    elif isinstance(data, list) and isinstance(read, Sequence):
        for index, (given, value) in enumerate(zip(data, read)):
            yield from _truths(given, value, (*path, index))
    elif isinstance(data, dict):
        if isinstance(read, BaseModel):
            fields = type(read).model_fields.items()
            read = {info.alias or name: getattr(read, name) for name, info in fields}
        if isinstance(read, Mapping):
            for key, given in data.items():
                yield from _truths(given, read.get(key), (*path, key))


def _cut(text: str) -> str:
    """Text of the user's as messages show it."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _copy(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copy(value) for key, value in data.items()}
    return [_copy(value) for value in data] if isinstance(data, list) else data


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    names = sorted(p.name for p in folder.glob("*.yaml"))
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"did you mean {folder / close[0]}?"
    return f"{folder} holds: {', '.join(names[:8])}" if names else ""


def _relevant(data: Any, errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Of a union's alternatives, keep the errors of the one that the value is nearest to."""
    groups: dict[KeyPath, list[ErrorDetails]] = {}
    for error in errors:
        location = error["loc"]
        groups.setdefault(location[: _known(data, error)[1]], []).append(error)
    kept: list[ErrorDetails] = []
    for location, group in groups.items():
        below = [k for k in groups if k != location and k[: len(location)] == location]
        if below and all(e["type"] == "too_short" for e in group):
            continue
        alternatives: dict[Any, list[ErrorDetails]] = {}
        for error in group:
            alternatives.setdefault(error["loc"][len(location) : len(location) + 1], []).append(
                error
            )
        by_fit = sorted(
            alternatives.values(),
            key=lambda es: (any(_wrong_shape(e) for e in es), len(es)),
        )
        kept.extend(by_fit[0])
    return kept


def _wrong_shape(error: ErrorDetails) -> bool:
    """Whether the value is not even of the alternative's kind (a mapping where text is due)."""
    if error["type"] == "literal_error":
        return isinstance(error["input"], dict | list)
    return error["type"] in ("model_type", "dict_type", "none_required")


def _known(data: Any, error: ErrorDetails) -> tuple[KeyPath, int]:
    """The key path of an error, and how many parts of its location come before the first that is
    no key: pydantic puts the names of a union's alternatives among them."""
    path: list[str | int] = []
    parts = error["loc"]
    before = len(parts)
    for index, part in enumerate(parts):
        held = (
            data
            if isinstance(data, dict)
            else dict(enumerate(data))
            if isinstance(data, list)
            else {}
        )
        if part in held:
            data = held[part]
        elif error["type"] != "missing" or index < len(parts) - 1:
            before = min(before, index)
            continue
        path.append(part)
    return tuple(path), before


def _is_alternative(part: str | int) -> bool:
    return isinstance(part, str) and (part[:1].isupper() or "[" in part)


def _describe(
    document: Document, model: type[BaseModel], error: ErrorDetails
) -> tuple[str, str, str]:
    path, _ = _known(document.data, error)
    dotted = ".".join(map(str, path)) or "the document"
    where = document.where(path)
    kind, value = error["type"], error.get("input")
    if kind == "value_error":
        where = document.where(_named(document, path, str(error["msg"])))
    if kind == "extra_forbidden":
        allowed = _fields(model, error["loc"][:-1])
        close = difflib.get_close_matches(str(path[-1]), allowed, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return where, f"unknown key: {dotted}", f"{hint}allowed here: {', '.join(allowed)}"
    if kind == "missing":
        allowed = _fields(model, error["loc"][:-1])
        return where, f"missing key: {dotted}", f"keys here: {', '.join(allowed)}"
    text = str(error["msg"]).removeprefix("Value error, ")
    found = _cut(value) if isinstance(value, str) else value
    shown = f" (found: {found!r})" if not isinstance(value, dict | list) else ""
    hint = ""
    if kind == "too_short":
        text = f"needs at least {error['ctx']['min_length']}"
    if kind in ("model_type", "model_attributes_type"):
        text = "expected a mapping"
        hint = f"keys here: {', '.join(_fields(model, error['loc']))}"
    if kind == "literal_error" and isinstance(value, str):
        options = [
            o.strip("' ") for o in str(error["ctx"]["expected"]).replace(" or ", ",").split(",")
        ]
        close = difflib.get_close_matches(value, options, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}?" if close else ""
        hint = "leave the quotes out" if value in close else hint
    key = f"{dotted}: " if path else ""
    return where, f"{key}{text[:1].lower() + text[1:]}{shown}", hint


def _named(document: Document, path: KeyPath, message: str) -> KeyPath:
    """The key below ``path`` that the message of a rule about several keys speaks of first.

    The one named most fully counts; ``path`` itself when the document holds none of them.
    """
    words = re.findall(r"[a-z_]\w*(?:\.\w+)*", message)
    found = [(*path, *word.split(".")) for word in words]
    held = [key for key in found if key in document.lines or key in document.overrides]
    return max(held, key=len, default=path)


def _fields(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys allowed at a location of pydantic's error."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        candidates = _models(current)
        if _is_alternative(part):
            current = next((m for m in candidates if m.__name__ == part), current)
            continue
        for candidate in candidates:
            for name, info in candidate.model_fields.items():
                if part in (name, info.alias):
                    current = info.annotation
    return sorted(
        info.alias or name for m in _models(current) for name, info in m.model_fields.items()
    )


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in get_args(annotation) for m in _models(inner)]


def load(path: Path, model: type[ModelType], settings: Sequence[str] = ()) -> ModelType:
    """Read, override and validate a file in one step; see the parts for the errors."""
    return validate(with_overrides(read_yaml(path), settings), model)
