"""Cache keys: everything that can change a stage's result, as readable parts and one digest.

The parts are stored with the result, so that ``edgefuse why`` can say what changed. Files enter
by content, never by path or mirror; our own code enters by the source of the stage's module and
of all modules of this package that it imports, found by parsing, so that planning imports none
of them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.machinery
import importlib.util
import json
import mmap
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import digest_bytes, digest_file, digest_json
from edgefuse.errors import RecipeError, SourceError, StoreError
from edgefuse.fetch import local_path
from edgefuse.recipe import Blob, LocalFile, Recipe, TorchModel
from edgefuse.section import Section
from edgefuse.store import default_root, write_changed

if TYPE_CHECKING:
    from edgefuse.stage import Stage

_PACKAGE = Path(__file__).parent
# A string that names a module of ours: a worker, run with -m.
_WORKER = re.compile(r"edgefuse(\.\w+)*\.\w+_worker")


def local_file(base: Path, file: LocalFile, where: str = "") -> tuple[Path, str]:
    """A recipe's local file and its SHA-256.

    Raises:
        RecipeError: the file is missing.
        SourceError: its SHA-256 is not the recipe's.
    """
    path = local_path(file.path, base)
    if not path.is_file():
        raise RecipeError(
            f"no such file: {path}", where=where, hint="paths are relative to the recipe's folder"
        )
    try:
        found = digest_file(path)
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if file.sha256 and found != file.sha256:
        raise SourceError(
            f"SHA-256 is {found}, the recipe says {file.sha256}",
            where=str(path),
            hint="the file changed: restore it, or correct the recipe",
        )
    return path, found


def content(value: Any, base: Path, where: str = "") -> Any:
    """A recipe value as it enters a key: files by content, paths and mirrors left out.

    Args:
        where: the value's dotted place in the recipe, for messages.
    """
    if isinstance(value, Blob):
        return {"sha256": value.sha256}
    if isinstance(value, LocalFile):
        path, sha256 = local_file(base, value, where)
        try:
            return {"sha256": sha256, **_external_data(path)}
        except OSError as error:
            place = str(error.filename or path)
            raise RecipeError(f"cannot be read: {error.strerror}", where=place) from None
    if isinstance(value, Section):
        fields = {
            name: content(getattr(value, name), base, f"{where}.{name}".lstrip("."))
            for name in type(value).model_fields
        }
        if isinstance(value, TorchModel):
            fields["source"] = callable_digest(value.callable, base)
        return fields
    if isinstance(value, Mapping):
        return {key: content(item, base, f"{where}.{key}") for key, item in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [content(item, base, where) for item in value]
    return value


def _external_data(path: Path) -> dict[str, Any]:
    """Digests of the files that an .onnx keeps its weights in.

    Read from the bytes of the protobuf entries ``location: NAME``, since planning imports no onnx.
    """
    if path.suffix.lower() != ".onnx":
        return {}
    with path.open("rb") as stream:
        if not stream.seek(0, 2):
            return {}
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # The length: seven bits a byte, the least first.
            found = re.finditer(rb"\x0a\x08location\x12([\x80-\xff]?[\x01-\x7f])", data)
            names = {
                bytes(data[m.end() : m.end() + sum((b & 127) << 7 * i for i, b in enumerate(m[1]))])
                for m in found
            }
    files = {
        name: path.parent / name
        for raw in names
        if (name := raw.decode("utf-8", "replace")) and "\0" not in name
    }
    digests = {name: digest_file(file) for name, file in sorted(files.items()) if file.is_file()}
    return {"external_data": digests} if digests else {}


def blobs_in(value: Any) -> Iterator[Blob]:
    """Every Blob below a recipe value."""
    if isinstance(value, Blob):
        yield value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            yield from blobs_in(getattr(value, name))


def section(recipe: Recipe, dotted: str) -> Any:
    """The value at ``a.b`` of a recipe; None where a parent is None."""
    value: Any = recipe
    for name in dotted.split("."):
        value = getattr(value, name) if value is not None else None
    return value


def static_parts(recipe: Recipe, stage: Stage, base: Path) -> dict[str, Any]:
    """The parts of a key that are known before any stage has run."""
    written = {"written": written_recipe(recipe)} if stage.writes_recipe else {}
    return {
        **written,
        "recipe": {"name": recipe.name, "seed": recipe.seed},
        "config": {name: content(section(recipe, name), base, name) for name in stage.sections},
        "tools": {"python": platform.python_version(), **versions(stage.tools)},
        "code": code_digest(stage.run.__module__),
    }


def written_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe with its defaults; absolute paths of this machine are cut to their names."""
    sections = (n for n in Recipe.model_fields if n != "schema_version")
    return {"schema": 1, **{name: _portable(getattr(recipe, name)) for name in sections}}


def _portable(value: Any, key: str = "") -> Any:
    if isinstance(value, Section):
        fields = {n: _portable(getattr(value, n), n) for n in type(value).model_fields}
        return {n: v for n, v in fields.items() if v is not None}
    if isinstance(value, Mapping):
        return {k: _portable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_portable(v) for v in value]
    local = key in ("manifest", "folder", "arrays", "path")
    if local and isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return value


def versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Installed versions; 'missing' for what is not installed."""
    return {name: version(name) for name in distributions}


@functools.cache
def version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"


def key_of(parts: Mapping[str, Any]) -> str:
    return digest_json(parts)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf that differs between two keys' parts, as (path, old, new)."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(set(old) | set(new)):
            yield from differences(old.get(name), new.get(name), f"{path}.{name}".lstrip("."))
    elif old != new:
        yield path, old, new


@functools.cache
def code_digest(module: str) -> str:
    """SHA-256 over the sources of a module and of all modules of this package it reaches."""
    seen: dict[str, str] = {}
    reached: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            digest, imports = _own(name)
            if digest:
                seen[name] = digest
            pending.extend(imports)
    return digest_json(seen)


@functools.cache
def _own(name: str) -> tuple[str, tuple[str, ...]]:
    """Digest of one of our modules and what it imports; no digest when it is none of ours."""
    file = _module_file(name, _PACKAGE.parent)
    if file is None:
        return "", tuple(_registered(name))
    source, imports = _parse(file, name)
    return digest_bytes(source), tuple(imports)


@functools.cache
def callable_digest(spec: str, base: Path) -> str:
    """SHA-256 over the sources a user's ``module:callable`` reaches.

    Modules beside the recipe, in the working folder, in this package, or importable from another
    place that is neither the standard library nor site-packages (``pip install -e``, PYTHONPATH)
    are followed; installed packages count by name and version only.
    """
    seen: dict[str, str] = {}
    pending = [spec.partition(":")[0]]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        top, _, rest = name.partition(".")
        own = top == _PACKAGE.name
        if rest and not own:
            pending.append(name.rpartition(".")[0])
        roots = [base.absolute(), Path.cwd(), *([_PACKAGE.parent] if own else [])]
        file = next((f for root in roots if (f := _module_file(name, root))), None)
        file = file or _linked_file(top, rest)
        if file is None:
            seen[name] = _installed(top)
        elif file.suffix != ".py":
            seen[name] = digest_file(file)
        else:
            source, imports = _parse(file, name)
            seen[name] = digest_bytes(source)
            pending.extend(imports)
    return digest_json(seen)


def _linked_file(top: str, rest: str) -> Path | None:
    """A module's file where its package is importable but not installed; imports nothing."""
    if top in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    folders = [Path(place).absolute() for place in spec.submodule_search_locations or ()]
    origin = Path(spec.origin).absolute() if spec.has_location and spec.origin else None
    if any(map(_is_installed, [origin] if origin else folders)):
        return None
    if not rest:
        return origin if origin is not None and origin.is_file() else None
    return next((f for folder in folders if (f := _module_file(rest, folder))), None)


def _is_installed(path: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(sysconfig.get_path(n)) for n in ("stdlib", "platstdlib"))


@functools.cache
def _installed(module: str) -> str:
    """The version of what brought an installed module, also where it has another name (PIL)."""
    found = version(module)
    if found != "missing" or module in sys.stdlib_module_names:
        return found
    names = sorted(set(_distributions().get(module, ())))
    return ", ".join(f"{name} {version(name)}" for name in names) or found


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _module_file(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    built = (path.with_name(path.name + end) for end in importlib.machinery.EXTENSION_SUFFIXES)
    for candidate in (path / "__init__.py", path.with_name(f"{path.name}.py"), *built):
        if candidate.is_file():
            return candidate
    return None


def _parse(file: Path, module: str) -> tuple[bytes, list[str]]:
    """A module's source and the modules it may import, ``if TYPE_CHECKING`` blocks left out."""
    source = file.read_bytes()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    known = _known_imports()
    place = f"{package} {digest_bytes(source)}"
    if place not in known:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            raise RecipeError(f"not valid Python: {error}", where=str(file)) from None
        known[place] = sorted(set(_imports(tree, package)))
    return source, known[place]


@functools.cache
def _known_imports() -> dict[str, list[str]]:
    """What sources of given bytes import, from earlier runs: parsing them all takes a second."""
    try:
        record = json.loads(_imports_file().read_text(encoding="utf-8"))
        known: dict[str, list[str]] = record["imports"]
        return known if digest_json(known) == record["digest"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _imports_file() -> Path:
    return default_root() / f"imports-{code_version()}.json"


@functools.cache
def code_version() -> str:
    """Digest of this module: it decides what counts as an import."""
    return digest_bytes(Path(__file__).read_bytes())[:16]


def remember_imports() -> None:
    """Keep what was parsed for the next run; a store that cannot be written is no matter here."""
    known = _known_imports()
    text = json.dumps({"digest": digest_json(known), "imports": known}, sort_keys=True)
    with contextlib.suppress(OSError, StoreError):
        write_changed(_imports_file(), text.encode())


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            parts = package.split(".")
            prefix = ".".join(parts[: len(parts) - child.level + 1]) if child.level else ""
            stem = ".".join(filter(None, (prefix, child.module)))
            yield stem
            yield from (f"{stem}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Constant) and _WORKER.fullmatch(str(child.value)):
            yield str(child.value)
        yield from _imports(child, package)


def _registered(name: str) -> Iterator[str]:
    """The modules of a registry's folder, if this is a registry: who imports it, uses them all."""
    module, _, attribute = name.rpartition(".")
    file = _module_file(module, _PACKAGE.parent) if attribute.isupper() else None
    if file is None:
        return
    source = file.read_bytes()
    known = _known_imports()
    place = f"registry {attribute} {digest_bytes(source)}"
    if place not in known:
        known[place] = list(_registry_folders(ast.parse(source), attribute))
    for folder in known[place]:
        files = _PACKAGE.parent.joinpath(*folder.split(".")).glob("*.py")
        yield from (f"{folder}.{file.stem}" for file in sorted(files))


def _registry_folders(tree: ast.Module, attribute: str) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=target),
                value=ast.Call(
                    func=ast.Name(id="Registry"), args=[ast.Constant(value=str(folder))]
                ),
            ) if target == attribute:
                yield folder
