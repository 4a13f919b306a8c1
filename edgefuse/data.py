"""Sample sets: pictures by content, folders of pictures, arrays; each with a digest.

``open_samples`` reads what a recipe says and answers at once, without network: how many samples,
their names, groups and labels, and a digest that is the same wherever the files lie. Decoding
happens while streaming, one sample at a time, so that memory does not grow with the set.

Samples that come from one photograph (its crops, the two sides of a stereo pair, byte-equal
copies) share a ``group``: confidence intervals resample groups, never samples.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse import pictures
from edgefuse.arrays import ArrayFile
from edgefuse.artifact import digest_bytes, digest_json
from edgefuse.errors import DataError, RecipeError
from edgefuse.fetch import local_path
from edgefuse.listing import Memo, Picture, folder_pictures, manifest_pictures
from edgefuse.recipe import Blob, Preprocess, Samples
from edgefuse.recipe.shapes import Input

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from edgefuse.fetch import Downloads

    Float32 = npt.NDArray[np.float32]
    Feeds = dict[str, Float32]


@dataclass(frozen=True)
class Sample:
    """One sample, ready for the source model.

    Attributes:
        feeds: float32 by input name, first axis of length 1, in the source model's layout.
        label: class index, or None.
        group: the source picture.
        name: for messages.
    """

    feeds: Feeds
    label: int | None
    group: str
    name: str


@dataclass(frozen=True)
class Entry:
    """What is known of a sample without decoding it."""

    name: str
    group: str
    label: int | None


@dataclass(frozen=True)
class SampleSet:
    """An ordered set of samples.

    Attributes:
        digest: 64 hex digits over contents, labels, names, groups, crops and preprocessing.
        entries: name, group and label of each sample, in order.
        blobs: what must be downloaded first.
        contents: SHA-256 -> name of each picture (of the file, for arrays).
        where: the folder, manifest or file, for messages.
        stream: yields the samples.
    """

    digest: str
    entries: tuple[Entry, ...]
    blobs: tuple[Blob, ...]
    contents: Mapping[str, str]
    where: str
    stream: Callable[[Downloads | None], Iterator[Sample]]

    @property
    def count(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(entry.group for entry in self.entries)

    @property
    def labelled(self) -> bool:
        return all(entry.label is not None for entry in self.entries)

    def samples(self, downloads: Downloads | None = None) -> Iterator[Sample]:
        """Every sample in order, made when it is asked for.

        Raises:
            DataError: a sample that cannot be used, by name.
            FetchError: a picture that cannot be downloaded.
        """
        return self.stream(downloads)


def open_samples(
    samples: Samples,
    *,
    preprocess: Preprocess | None,
    inputs: Sequence[Input],
    base: Path,
    memo: Path | None = None,
) -> SampleSet:
    """Open a sample set of a recipe, without network and without decoding.

    Args:
        samples: the recipe's section.
        preprocess: the contract; needed for pictures, no part of arrays.
        inputs: the source model's inputs; empty when they are not known yet (then the set has
            its digest and entries, and cannot be streamed).
        base: the recipe's folder.
        memo: a JSON file that remembers digests of files by size, times and inode.

    Raises:
        RecipeError: the recipe names something that does not exist or does not fit the model.
        DataError: the data cannot be used.
    """
    if samples.arrays is not None:
        return _array_set(_existing(samples.arrays, base, "arrays"), inputs, Memo(memo))
    if preprocess is None:
        raise RecipeError("picture data needs a preprocess section", where="preprocess")
    _check_fit(preprocess, inputs)
    if samples.manifest is not None:
        path = _existing(samples.manifest, base, "manifest")
        found = manifest_pictures(path)
    else:
        path = _existing(samples.folder or "", base, "folder")
        found = folder_pictures(path, samples.split, Memo(memo))
    return _picture_set(found, samples, preprocess, inputs, str(path))


def require_labels(samples: SampleSet, why: str) -> None:
    """Raise DataError unless every sample has a label; ``why`` says what needs them."""
    if not samples.labelled:
        raise DataError(
            f"{why} needs labels, and this sample set has none",
            hint="add labels.csv (file,class_index), labels in the manifest, or a labels array",
            where=samples.where,
        )


def overlap(a: SampleSet, b: SampleSet) -> list[str]:
    """Names, as ``a`` has them, of the pictures whose bytes are in both sets."""
    return [name for sha256, name in a.contents.items() if sha256 in b.contents]


def batches(samples: Iterable[Sample], batch: int) -> Iterator[tuple[Feeds, list[Sample]]]:
    """Stack samples for a model of static batch ``batch``.

    The last stack repeats its last sample until it is full; the list holds the true ones, so
    results beyond its length are to be dropped.
    """
    import numpy as np

    held: list[Sample] = []
    for sample in chain(samples, [None]):
        if sample is not None:
            held.append(sample)
        if len(held) == batch or (sample is None and held):
            padded = held + held[-1:] * (batch - len(held))
            names = held[0].feeds
            yield {n: np.concatenate([s.feeds[n] for s in padded]) for n in names}, held
            held = []


def take(samples: SampleSet, downloads: Downloads | None, count: int, batch: int) -> list[Feeds]:
    """Feeds of the first samples, spread over at most ``count`` stacks of ``batch``."""
    stream = batches(samples.samples(downloads), batch)
    return [feeds for feeds, _ in islice(stream, count)]


def _existing(text: str, base: Path, key: str) -> Path:
    try:
        path = local_path(text, base)
    except RecipeError as error:
        raise RecipeError(error.message, hint=error.hint, where=key) from None
    kind = path.is_dir if key == "folder" else path.is_file
    if not kind():
        what = "folder" if key == "folder" else "file"
        hint = f"the recipe says {text!r}; relative paths start at {base}"
        if "EDGEFUSE_DATA" in text:
            hint = f"EDGEFUSE_DATA must name the folder with your pictures ({text})"
        raise RecipeError(f"no such {what}: {path}", hint=hint, where=key)
    return path


def _check_fit(preprocess: Preprocess, inputs: Sequence[Input]) -> None:
    if not inputs:
        return
    if len(inputs) > 1:
        raise RecipeError(
            f"pictures feed one input, and the model has {len(inputs)}: "
            f"{', '.join(i.name for i in inputs)}",
            hint="give the samples as arrays (.npz, keyed by input name)",
        )
    height, width = preprocess.crop
    made = (3, height, width) if preprocess.layout == "NCHW" else (height, width, 3)
    if tuple(inputs[0].shape[1:]) != made:
        raise RecipeError(
            f"preprocessing makes [N, {', '.join(map(str, made))}], the model's input "
            f"{inputs[0].name!r} takes {list(inputs[0].shape)}",
            hint="adapt preprocess.crop and preprocess.layout",
            where="preprocess",
        )


def _picture_set(
    found: Sequence[Picture],
    samples: Samples,
    preprocess: Preprocess,
    inputs: Sequence[Input],
    where: str,
) -> SampleSet:
    crops = samples.crops
    plan: list[tuple[Picture, int | None]] = [(picture, None) for picture in found]
    if crops is not None:
        marks = [crops.count * i // len(found) for i in range(len(found) + 1)]
        plan = [
            (picture, index)
            for picture, begin, end in zip(found, marks, marks[1:])
            for index in range(end - begin)
        ]

    entries = tuple(
        Entry(p.name if i is None else f"{p.name}#{i}", p.group, p.label) for p, i in plan
    )
    used = {picture.sha256: picture for picture, _ in plan}
    blobs = tuple(p.source for p in used.values() if isinstance(p.source, Blob))

    def stream(downloads: Downloads | None) -> Iterator[Sample]:
        name = _single(inputs)
        if blobs and downloads is None:
            raise ValueError("this sample set needs downloads")
        paths = dict(zip((b.sha256 for b in blobs), downloads.get_all(blobs) if downloads else []))
        last: tuple[Picture, Any] | None = None
        for entry, (picture, index) in zip(entries, plan):
            if last is None or last[0] is not picture:
                last = picture, _decoded(picture, paths)
            box = None
            if crops is not None and index is not None:
                box = pictures.crop_box(last[1].size, crops, picture.name, index)
            x = pictures.preprocess(last[1], preprocess, box=box, name=entry.name)
            yield Sample({name: x}, entry.label, entry.group, entry.name)

    return SampleSet(
        digest=digest_json(
            {
                "pictures": [[p.sha256, p.name, p.label, p.group] for p in found],
                "crops": crops.model_dump(mode="json") if crops else None,
                "preprocess": preprocess.model_dump(mode="json"),
            }
        ),
        entries=entries,
        blobs=blobs,
        contents={sha256: picture.name for sha256, picture in used.items()},
        where=where,
        stream=stream,
    )


def _single(inputs: Sequence[Input]) -> str:
    if len(inputs) != 1:
        raise ValueError("the sample set was opened without the model's inputs")
    return inputs[0].name


def _decoded(picture: Picture, paths: Mapping[str, Path]) -> Image:
    path = picture.source if isinstance(picture.source, Path) else paths[picture.sha256]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if digest_bytes(data) != picture.sha256:
        raise DataError(f"picture {picture.name} changed during the run", where=str(path))
    return pictures.decode(io.BytesIO(data), picture.name, str(path))


def _array_set(path: Path, inputs: Sequence[Input], memo: Memo) -> SampleSet:
    file = ArrayFile(path)
    shapes = {i.name: tuple(i.shape[1:]) for i in inputs}
    count, labels = file.check(shapes)
    digest = memo.digest(path)
    memo.save()
    names = [f"{path.name}[{index}]" for index in range(count)]
    entries = tuple(Entry(name, name, label) for name, label in zip(names, labels))

    def stream(_: Downloads | None) -> Iterator[Sample]:
        if not inputs:
            raise ValueError("the sample set was opened without the model's inputs")
        for entry, feeds in zip(entries, file.rows(list(shapes))):
            yield Sample(feeds, entry.label, entry.group, entry.name)

    return SampleSet(
        digest=digest_json({"arrays": digest}),
        entries=entries,
        blobs=(),
        contents={digest: path.name},
        where=str(path),
        stream=stream,
    )
