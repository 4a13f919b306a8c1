"""``edgefuse conformance``: one model on every kernel path that this machine can play.

What is given is a .tflite file, a bundle, a folder that a run wrote or an unpacked bundle. A bundle
brings its golden vectors, and their outputs as they were when it was packed; a bare file gets
seeded ones.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from edgefuse.errors import SourceError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.devices.device import Place
    from edgefuse.devices.measure.kernel_paths import KernelPath

    Array = np.ndarray[Any, Any]

_RANDOM_VECTORS = 4


@dataclass(frozen=True)
class Subject:
    """What is examined.

    Attributes:
        golden: stored outputs, one a feed; None for a bare file.
        kernels: whose they are: reference or builtin.
        vectors: where they come from, in words.
    """

    model: Path
    feeds: tuple[Mapping[str, Array], ...]
    golden: tuple[dict[str, Array], ...] | None
    kernels: str
    vectors: str


def examine_conformance(
    source: Path,
    *,
    names: Sequence[str] = (),
    max_lsb: int = 16,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], int]:
    """The document, and the exit code: 1 when a path is different, 3 when one failed, 4 when a
    path that was named could not be played.

    Raises:
        UsageError: no such file or path.
        SourceError: a damaged model or bundle.
    """
    from edgefuse.devices.device import Place, prepared_folder
    from edgefuse.devices.measure.conformance import examine

    with tempfile.TemporaryDirectory(prefix="edgefuse-conformance-") as folder:
        work = Path(folder)
        subject = read_subject(source, work)
        place = Place(work / "paths", work / "conformance.log", prepared_folder())
        place.work.mkdir()
        paths = _paths(place, names)
        document = examine(
            subject.model,
            subject.feeds,
            paths,
            work,
            golden=subject.golden,
            golden_kernels=subject.kernels,
            max_lsb=max_lsb,
            progress=progress,
        )
    document = {"schema": 1, "source": str(source), "vectors": subject.vectors, **document}
    if names:
        wanted = set(names)
        rows = [row for row in document["paths"] if row["path"] in wanted]
        played = sum(row["label"] not in ("not played", "failed") for row in rows)
        document |= {"paths": rows, "played": played}
    labels = {row["label"] for row in document["paths"]}
    code = 4 if names and "not played" in labels else 0
    code = 3 if "failed" in labels else code
    return document, 1 if "different" in labels else code


def _paths(place: Place, names: Sequence[str]) -> list[KernelPath]:
    """All paths; with names those alone, and the ones that golden outputs come from."""
    from edgefuse.devices.measure.conformance import GOLDEN_PATHS
    from edgefuse.devices.measure.kernel_paths import kernel_paths
    from edgefuse.target import list_targets, load_target

    targets = [load_target(str(path)) for path in list_targets().values()]
    found = kernel_paths(targets, place, names)
    known = [path.name for path in found]
    for name in names:
        if name not in known:
            raise UsageError(
                f"no kernel path is called {name!r}", hint=f"paths: {', '.join(known)}"
            )
    return [path for path in found if not names or path.name in (*names, *GOLDEN_PATHS)]


def read_subject(source: Path, work: Path) -> Subject:
    """The model and its vectors.

    Raises:
        UsageError: nothing of the kind is there.
        SourceError: a bundle without what its manifest says.
    """
    if source.is_dir():
        if (source / "manifest.json").is_file():
            return _of_bundle(source)
        bundles = sorted(source.glob("*.bundle.tar"))
        if len(bundles) != 1:
            raise UsageError(
                f"{source} holds {len(bundles)} bundles, not one",
                hint="give the bundle or the .tflite file itself",
            )
        source = bundles[0]
    if not source.is_file():
        raise UsageError(f"{source}: no such file", hint="give a .tflite file or a .bundle.tar")
    if source.suffix == ".tar":
        from edgefuse.archive import unpack

        folder = work / "bundle"
        folder.mkdir()
        unpack(source, folder)
        return _of_bundle(folder)
    return _of_file(source)


def _of_file(path: Path) -> Subject:
    from edgefuse.devices.measure.bench_worker import random_feeds
    from edgefuse.tflite.read import read_model, signature_of

    signature = signature_of(read_model(path))
    feeds = tuple(random_feeds(signature, seed) for seed in range(_RANDOM_VECTORS))
    return Subject(path, feeds, None, "reference", f"seeded, 0 to {_RANDOM_VECTORS - 1}")


def _of_bundle(folder: Path) -> Subject:
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        rows = manifest["golden"]["vectors"]
        if not rows:
            raise KeyError("golden.vectors")
        return Subject(
            _member(folder, manifest["models"]["int8"]),
            tuple(_arrays(folder, row["inputs"]) for row in rows),
            tuple(_arrays(folder, row["outputs"]) for row in rows),
            manifest["golden"]["kernels"],
            "golden, of the bundle",
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError) as error:
        raise SourceError(
            f"the bundle's manifest or golden vectors are damaged: {error}", where=str(folder)
        ) from error


def _arrays(folder: Path, paths: Mapping[str, str]) -> dict[str, Array]:
    import numpy as np

    return {
        name: np.load(_member(folder, path), allow_pickle=False) for name, path in paths.items()
    }


def _member(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is outside the bundle")
    return folder / path


def conformance_lines(document: Mapping[str, Any]) -> list[str]:
    """The table for the terminal, and a line for each departure and each path not played."""
    golden = document["golden"]
    rows = document["paths"]
    width = max(len(row["path"]) for row in rows)
    lines = [
        f"{document['model']}: {golden['vectors']} vectors ({document['vectors']}), "
        f"golden: {golden['kernels']}" + (", as stored" if golden["stored"] else ""),
        f"{'path':<{width}}  {'result':<14} {'largest':>9} {'differing':>9}  first departure",
    ]
    for row in rows:
        if row["label"] in ("not played", "failed"):
            lines.append(f"{row['path']:<{width}}  {row['text']:<14} {row['reason']}")
            continue
        largest = _amount(row)
        share = f"{100 * row['share']:.2f}%"
        lines.append(
            f"{row['path']:<{width}}  {row['text']:<14} {largest:>9} {share:>9}  {_place(row)}"
        )
    lines.append(f"{document['played']} paths played")
    return lines


def _place(row: Mapping[str, Any]) -> str:
    found = row["departure"]
    if found is None:
        return str(row["reason"])
    note = f"; {found['note']}" if found["note"] else ""
    return f"{found['operator']} ({_amount(found)} in {100 * found['share']:.2f}%{note})"


def _amount(held: Mapping[str, Any]) -> str:
    if held["largest"] is None:
        return "unlike"
    return f"{held['largest']:.0f} LSB" if held["unit"] == "LSB" else f"{held['largest']:.2g}"
