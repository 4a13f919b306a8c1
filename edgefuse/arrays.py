"""Samples in NumPy files, read row by row.

An ``.npz`` holds one array for each model input, under the input's name, samples along the first
axis, and optionally ``labels`` (integers); an ``.npy`` serves models of one input. Arrays are fed
as they are: float32, or float64 rounded to the nearest float32, refused where a value would
overflow. Other types are refused, because it is unknown how they were meant to be normalised.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgefuse.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Float32 = npt.NDArray[np.float32]

LABELS = "labels"


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: Any
    fortran: bool


class ArrayFile:
    """An .npz or .npy of samples; nothing but headers and labels is read before ``rows``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._named = path.suffix.lower() == ".npz"
        if not self._named and path.suffix.lower() != ".npy":
            raise self._error("the suffix must be .npz or .npy", "save with numpy.savez")
        self._headers = {name: self._header(name) for name in self._names()}

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, list[int | None]]:
        """The number of samples and their labels.

        Args:
            shapes: shape of one sample by input name; empty when the inputs are not known yet.

        Raises:
            DataError: names, shapes, types or counts do not fit.
        """
        headers = self._headers
        labelled = LABELS in headers and LABELS not in shapes
        found = [name for name in headers if not (labelled and name == LABELS)]
        if shapes and self._named and sorted(found) != sorted(shapes):
            raise self._error(
                f"the arrays are named {sorted(found)}, the model's inputs {sorted(shapes)}",
                "save as numpy.savez(path, **{input name: array})",
            )
        if not self._named and len(shapes) > 1:
            raise self._error(
                f"an .npy serves one input, and the model has {len(shapes)}: {sorted(shapes)}",
                "save an .npz, keyed by input name",
            )
        counts = {}
        for name in found:
            header, shape = headers[name], next(iter(shapes.values()), None)
            shape = shapes.get(name, shape)
            self._check_one(name, header, shape)
            counts[name] = header.shape[0]
        if labelled:
            counts[LABELS] = headers[LABELS].shape[0] if len(headers[LABELS].shape) == 1 else -1
        if not found or len(set(counts.values())) != 1 or not min(counts.values()):
            raise self._error(
                f"needs one or more samples, equally many in every array (found: {counts})",
                "the first axis counts the samples; labels have one axis",
            )
        count = next(iter(counts.values()))
        return count, self._labels() if labelled else [None] * count

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, Float32]]:
        """The feeds of each sample, first axis of length 1, read one at a time.

        Raises:
            DataError: NaN, infinity, overflow, or a damaged file.
        """
        with contextlib.ExitStack() as stack:
            readers = [self._read(name, stack) for name in names]
            for row in zip(*readers):
                yield dict(zip(names, row))

    def _names(self) -> list[str]:
        if not self._named:
            return [""]
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise self._error(f"cannot be read: {error}", "save with numpy.savez") from None
        if len(set(members)) != len(members):
            raise self._error("holds a name twice", "save with numpy.savez")
        return [member.removesuffix(".npy") for member in members]

    def _header(self, name: str) -> _Header:
        with contextlib.ExitStack() as stack:
            return self._open(name, stack)[1]

    def _open(self, name: str, stack: contextlib.ExitStack) -> tuple[IO[bytes], _Header]:
        from numpy.lib import format as numpy_format

        npy: Any = numpy_format

        try:
            stream: IO[bytes]
            if self._named:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                stream = stack.enter_context(archive.open(f"{name}.npy"))
            else:
                stream = stack.enter_context(self.path.open("rb"))
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
            shape, fortran, dtype = read[npy.read_magic(stream)](stream)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise self._error(f"no NumPy array{self._of(name)}: {error}") from None
        return stream, _Header(shape, dtype, fortran)

    def _check_one(self, name: str, header: _Header, shape: tuple[int, ...] | None) -> None:
        if header.dtype.kind != "f" or header.dtype.itemsize not in (4, 8):
            raise self._error(
                f"the array{self._of(name)} is {header.dtype}, not float32",
                "apply the model's normalisation and save as float32",
            )
        if not header.shape or (shape is not None and header.shape[1:] != shape):
            wanted = "[samples, ...]" if shape is None else str(["samples", *shape])
            raise self._error(
                f"the array{self._of(name)} has shape {list(header.shape)}, not {wanted}",
                _turned(header.shape[1:], shape)
                or "samples along the first axis, then the model's input without its batch axis",
            )

    def _labels(self) -> list[int | None]:
        import numpy as np

        if self._headers[LABELS].dtype.kind not in "iu":
            raise self._error("labels are not integers", "save class indices as int64")
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                labels = arrays[LABELS]
        except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise self._error(f"labels cannot be read: {error}") from None
        if labels.min() < 0:
            raise self._error("a label is negative", "labels are class indices from 0")
        return [int(label) for label in labels]

    def _read(self, name: str, stack: contextlib.ExitStack) -> Iterator[Float32]:
        import numpy as np

        stream, header = self._open("" if not self._named else name, stack)
        shape, dtype = header.shape, header.dtype
        size = dtype.itemsize * math.prod(shape[1:])
        whole: Any = None
        if header.fortran:
            data = self._take(stream, size * shape[0], name)
            whole = np.frombuffer(data, dtype).reshape(shape, order="F")
        for index in range(shape[0]):
            if whole is not None:
                row = whole[index]
            else:
                row = np.frombuffer(self._take(stream, size, name), dtype).reshape(shape[1:])
            with np.errstate(over="ignore"):
                x = np.ascontiguousarray(row[None], np.float32)
            if not np.isfinite(x).all():
                kind = "overflows float32" if np.isfinite(row).all() else "holds NaN or infinity"
                raise self._error(f"sample {index}{self._of(name)} {kind}", "correct the data")
            yield x

    def _take(self, stream: IO[bytes], size: int, name: str) -> bytes:
        try:
            data = stream.read(size)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise self._error(f"the array{self._of(name)} cannot be read: {error}") from None
        if len(data) != size:
            raise self._error(f"the array{self._of(name)} is cut short", "save the file again")
        return data

    def _of(self, name: str) -> str:
        return f" {name!r}" if name else ""

    def _error(self, message: str, hint: str = "") -> DataError:
        return DataError(message, hint=hint, where=str(self.path))


def _turned(found: tuple[int, ...], wanted: tuple[int, ...] | None) -> str:
    """The remedy for arrays that are the input with its channels at the other end."""
    if wanted is None or len(found) != 3 or len(wanted) != 3:
        return ""
    rows, columns, channels = wanted
    if found == (channels, rows, columns):
        return "the arrays are channels-first: save x.transpose(0, 2, 3, 1)"
    channels, rows, columns = wanted
    if found == (rows, columns, channels):
        return "the arrays are channels-last: save x.transpose(0, 3, 1, 2)"
    return ""
