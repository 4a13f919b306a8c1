"""Sample sets: the preprocessing contract, digests, splits, crops, arrays, and every bad input."""

from __future__ import annotations

import csv
import io
import os
import random
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgefuse import listing, pictures
from edgefuse.artifact import digest_bytes
from edgefuse.data import SampleSet, batches, open_samples, overlap, require_labels
from edgefuse.errors import DataError, EdgefuseError, RecipeError
from edgefuse.fetch import Downloads
from edgefuse.recipe import Crops, Preprocess, Samples, Split, TensorShape

CONFIGS = Path(__file__).parent.parent / "configs" / "data"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONTRACT = Preprocess(resize=16, crop=(8, 8), mean=MEAN, std=STD)
INPUTS = [TensorShape(name="x", shape=(1, 3, 8, 8))]


def noise(seed: int, size: tuple[int, int] = (24, 16)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures, labelled."""
    place = tmp_path / "pictures"
    (place / "deep").mkdir(parents=True)
    rows = []
    for i in range(10):
        name = f"deep/p{i}.png" if i % 2 else f"p{i}.png"
        noise(i).save(place / name)
        rows.append(f"{name},{i},class {i}")
    (place / "labels.csv").write_text("\n".join(["file,class_index,class_name", *rows]) + "\n")
    return place


def opened(where: Path, **options: Any) -> SampleSet:
    keys = {k: options.pop(k) for k in ("preprocess", "inputs", "memo") if k in options}
    keys = {"preprocess": CONTRACT, "inputs": INPUTS, **keys}
    return open_samples(Samples(folder=str(where), **options), base=Path("/"), **keys)


def test_numbers_are_the_referees_at_256_and_224() -> None:
    image = noise(1, (300, 256))
    contract = Preprocess(resize=256, crop=(224, 224), mean=MEAN, std=STD)
    left, top = (300 - 224) // 2, (256 - 224) // 2
    box = (left, top, left + 224, top + 224)
    x = np.asarray(image.crop(box), np.float32) / 255
    expected = (x - np.float32(MEAN)) / np.float32(STD)
    found = pictures.preprocess(image, contract)
    assert found.dtype == np.float32 and found.shape == (1, 3, 224, 224)
    assert np.array_equal(found[0].transpose(1, 2, 0), expected)


def test_layout_colour_order_and_scale() -> None:
    image = Image.new("RGB", (4, 4), (10, 20, 30))
    plain = {"crop": (2, 2), "scale": 1.0}
    nhwc = pictures.preprocess(image, Preprocess(**plain, layout="NHWC", colour="BGR"))
    assert nhwc.shape == (1, 2, 2, 3) and nhwc[0, 0, 0].tolist() == [30, 20, 10]
    lite = Preprocess(**plain, mean=(127, 127, 127), std=(128, 128, 128))
    assert pictures.preprocess(image, lite)[0, :, 0, 0].tolist() == [
        (v - 127) / 128 for v in (10, 20, 30)
    ]
    swapped = Preprocess(**plain, colour="BGR", mean=(30, 20, 10))
    assert not pictures.preprocess(image, swapped).any()
    assert nhwc.flags["C_CONTIGUOUS"]


@pytest.mark.parametrize(
    ("size", "resized"),
    [((451, 300), (384, 256)), ((300, 451), (256, 384)), ((64, 64), (256, 256))],
)
def test_short_side_is_resized_and_the_crop_is_central(size, resized) -> None:
    image = noise(3, size)
    contract = Preprocess(resize=256, crop=(200, 100), scale=1.0, layout="NHWC")
    whole = np.asarray(image.resize(resized, Image.Resampling.BILINEAR), np.float32)
    top, left = (resized[1] - 200) // 2, (resized[0] - 100) // 2
    found = pictures.preprocess(image, contract)[0]
    assert np.array_equal(found, whole[top : top + 200, left : left + 100])


def test_too_small_a_picture_is_named() -> None:
    with pytest.raises(DataError, match=r"tiny.png is 9 x 5 pixels .* 8 x 8"):
        pictures.preprocess(noise(0, (9, 5)), Preprocess(crop=(8, 8)), name="tiny.png")


def decoded(image: Image.Image, suffix: str = "png", **options: Any) -> list[int]:
    stream = io.BytesIO()
    image.save(stream, suffix, **options)
    stream.seek(0)
    found = pictures.decode(stream, "p", "here")
    assert found.mode == "RGB"
    return list(found.getpixel((0, 0)))


def test_every_kind_of_picture_becomes_rgb() -> None:
    assert decoded(Image.new("L", (2, 2), 100)) == [100] * 3
    assert decoded(Image.new("1", (2, 2), 1)) == [255] * 3
    assert decoded(Image.new("RGBA", (2, 2), (9, 8, 7, 0))) == [9, 8, 7]
    assert decoded(Image.new("LA", (2, 2), (50, 3))) == [50] * 3
    palette = Image.new("RGB", (2, 2), (204, 0, 0)).convert("P")
    assert decoded(palette, transparency=b"\x00\x10") == [204, 0, 0]
    deep = Image.fromarray(np.full((2, 2), 32896, np.uint16))
    assert decoded(deep) == [128] * 3
    assert decoded(Image.fromarray(np.full((2, 2), 65535, np.uint16)), "tiff") == [255] * 3
    assert decoded(Image.new("CMYK", (2, 2), (0, 0, 0, 255)), "tiff") == [0, 0, 0]
    with pytest.raises(DataError, match="floating-point"):
        decoded(Image.fromarray(np.zeros((2, 2), np.float32)), "tiff")


def test_exif_orientation_is_not_applied() -> None:
    image, exif = noise(1, (20, 10)), Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    image.save(stream, "jpeg", exif=exif)
    assert pictures.decode(io.BytesIO(stream.getvalue()), "p", "").size == (20, 10)


def test_folder_reads_labels_in_file_order(folder: Path) -> None:
    found = opened(folder)
    assert found.count == 10 and found.labelled and not found.blobs
    assert found.names[:2] == ("p0.png", "deep/p1.png")
    samples = list(found.samples())
    assert [s.label for s in samples] == list(range(10))
    assert [s.name for s in samples] == list(found.names)
    assert samples[3].feeds["x"].shape == (1, 3, 8, 8)
    require_labels(found, "the gate")


def test_split_is_the_referees(folder: Path) -> None:
    with (folder / "labels.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    random.Random(7).shuffle(rows)
    first = opened(folder, split=Split(seed=7, first=4))
    rest = opened(folder, split=Split(seed=7, after=4))
    assert list(first.names + rest.names) == [row["file"] for row in rows]
    assert [e.label for e in rest.entries] == [int(row["class_index"]) for row in rows[4:]]
    assert overlap(first, rest) == []
    assert overlap(first, opened(folder)) == list(first.names)


def test_digest_follows_content_and_not_place(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    digest = opened(folder).digest
    assert opened(moved).digest == digest
    assert opened(moved, inputs=[]).digest == digest
    others = {
        opened(folder, split=Split(first=5)).digest,
        opened(folder, split=Split(seed=1, first=5)).digest,
        opened(folder, crops=Crops(count=10)).digest,
        opened(folder, preprocess=CONTRACT.model_copy(update={"colour": "BGR"})).digest,
    }
    noise(99).save(moved / "p0.png")
    others.add(opened(moved).digest)
    table = moved / "labels.csv"
    table.write_text(table.read_text().replace("p2.png,2", "p2.png,3"))
    others.add(opened(moved).digest)
    assert len(others) == 6 and digest not in others


def test_memo_is_used_and_never_trusted_too_early(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo, read = tmp_path / "memo.json", []
    real = listing.digest_file
    monkeypatch.setattr(listing, "digest_file", lambda p: (read.append(p), real(p))[1])
    digest = opened(folder, memo=memo).digest
    assert opened(folder, memo=memo).digest == digest
    assert len(read) == 20
    now = time.time_ns
    monkeypatch.setattr(listing.time, "time_ns", lambda: now() + 5_000_000_000)
    opened(folder, memo=memo)
    read.clear()
    assert opened(folder, memo=memo).digest == digest
    assert not read
    state = (folder / "p0.png").stat()
    noise(50).save(folder / "p0.png")
    os.utime(folder / "p0.png", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert opened(folder, memo=memo).digest != digest
    assert len(read) == 1
    memo.write_text("{ damaged")
    assert opened(folder, memo=memo).count == 10


def test_unlabelled_folder_is_sorted_and_recursive(folder: Path) -> None:
    (folder / "labels.csv").unlink()
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / "notes.txt").write_text("x")
    found = opened(folder)
    assert list(found.names) == sorted(found.names) and found.count == 10
    assert not found.labelled
    with pytest.raises(DataError, match="max_drop_points needs labels"):
        require_labels(found, "max_drop_points")


def test_equal_files_share_a_group(folder: Path) -> None:
    shutil.copy(folder / "p0.png", folder / "p2.png")
    assert len(set(opened(folder).groups)) == 9


def test_crops_are_seeded_spread_and_independent_of_order(folder: Path) -> None:
    crops = Crops(count=25, seed=3, min_fraction=0.6)
    found = opened(folder, crops=crops)
    assert found.count == 25 and len(set(found.groups)) == 10
    counts = [found.groups.count(g) for g in set(found.groups)]
    assert set(counts) == {2, 3}
    whole = {s.name: s.feeds["x"] for s in found.samples()}
    shuffled = opened(folder, crops=crops, split=Split(seed=1, after=0))
    for sample in shuffled.samples():
        if sample.name in whole:
            assert np.array_equal(sample.feeds["x"], whole[sample.name])
    for index in range(200):
        left, top, right, bottom = pictures.crop_box((24, 16), crops, "n", index)
        assert right - left == bottom - top and 10 <= right - left <= 16
        assert 0 <= left <= right <= 24 and 0 <= top <= bottom <= 16
    few = opened(folder, crops=Crops(count=5))
    assert len(set(few.groups)) == 5


def test_a_picture_that_changes_after_opening(folder: Path) -> None:
    found = opened(folder)
    noise(77).save(folder / "p0.png")
    with pytest.raises(DataError, match=r"p0\.png changed during the run"):
        next(found.samples())


def table(folder: Path, text: str) -> None:
    (folder / "labels.csv").write_text(text)


BAD_FOLDERS = {
    "columns": (lambda f: table(f, "name,label\np0.png,1\n"), r"no column file or class_index"),
    "empty table": (lambda f: table(f, ""), "found: nothing"),
    "no rows": (lambda f: table(f, "file,class_index\n"), "lists no pictures"),
    "label": (lambda f: table(f, "file,class_index\np0.png,cat\n"), r"labels.csv:2: .*'cat'"),
    "no label": (lambda f: table(f, "file,class_index\np0.png\n"), "must be an integer"),
    "negative": (lambda f: table(f, "file,class_index\np0.png,-1\n"), "must be an integer"),
    "huge": (lambda f: table(f, f"file,class_index\np0.png,{'9' * 5000}\n"), "must be an integer"),
    "missing": (lambda f: table(f, "file,class_index\nq.png,1\n"), r":2: q.png is listed and does"),
    "escape": (lambda f: table(f, "file,class_index\n../p.png,1\n"), "no path inside the folder"),
    "absolute": (lambda f: table(f, "file,class_index\n/p.png,1\n"), "no path inside the folder"),
    "twice": (lambda f: table(f, "file,class_index\np0.png,1\np0.png,1\n"), "listed twice"),
    "not text": (lambda f: (f / "labels.csv").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "no picture": (lambda f: (f / "p0.png").write_text("hello"), r"cannot identify image file\n"),
    "truncated": (
        lambda f: (f / "p0.png").write_bytes((f / "p0.png").read_bytes()[:400]),
        r"picture p0\.png cannot be decoded",
    ),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folders(folder: Path, case: str) -> None:
    spoil, message = BAD_FOLDERS[case]
    spoil(folder)
    with pytest.raises(DataError, match=message) as caught:
        list(opened(folder).samples())
    assert caught.value.where


def test_missing_and_empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEFUSE_DATA", raising=False)
    with pytest.raises(RecipeError, match="export EDGEFUSE_DATA="):
        opened(Path("${EDGEFUSE_DATA}/pictures"))
    monkeypatch.setenv("EDGEFUSE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(RecipeError, match=r"no such folder.*\n.*EDGEFUSE_DATA must name"):
        opened(Path("${EDGEFUSE_DATA}"))
    with pytest.raises(DataError, match="holds no pictures"):
        opened(tmp_path)


def test_parts_of_a_split_are_disjoint_and_whole(folder: Path) -> None:
    parts = [Split(first=4), Split(after=4, first=3), Split(after=7)]
    found = [opened(folder, split=split).names for split in parts]
    assert [len(part) for part in found] == [4, 3, 3]
    assert len({name for part in found for name in part}) == 10


@pytest.mark.parametrize(
    "split", [Split(first=10), Split(first=11), Split(after=10), Split(after=7, first=4)]
)
def test_a_split_that_leaves_nothing(folder: Path, split: Split) -> None:
    with pytest.raises(DataError, match=r"the folder has 10 pictures"):
        opened(folder, split=split)


def test_pictures_must_fit_the_model(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"makes \[N, 3, 8, 8\].*takes \[1, 8, 8, 3\]"):
        opened(folder, inputs=[TensorShape(name="x", shape=(1, 8, 8, 3))])
    with pytest.raises(RecipeError, match=r"the model has 2: x, y"):
        opened(folder, inputs=[*INPUTS, TensorShape(name="y", shape=(1, 3))])
    with pytest.raises(RecipeError, match="needs a preprocess section"):
        opened(folder, preprocess=None)


def test_batches_pad_the_last_one(folder: Path) -> None:
    found = list(batches(opened(folder).samples(), 4))
    assert [len(held) for _, held in found] == [4, 4, 2]
    assert all(feeds["x"].shape == (4, 3, 8, 8) for feeds, _ in found)
    feeds, held = found[2]
    assert np.array_equal(feeds["x"][3], held[1].feeds["x"][0])
    assert [s.name for _, held in found for s in held] == list(opened(folder).names)


def manifest(tmp_path: Path, text: str) -> SampleSet:
    (tmp_path / "m.yaml").write_text(text)
    samples = Samples(manifest="m.yaml")
    return open_samples(samples, preprocess=CONTRACT, inputs=INPUTS, base=tmp_path)


def entry(folder: Path, name: str, extra: str = "") -> str:
    return f"    - {{file: {name}, sha256: {digest_bytes((folder / name).read_bytes())}{extra}}}\n"


HEAD = 'schema: 1\nsources:\n- mirrors: ["file:pictures/{file}"]\n  pictures:\n'


def test_manifest_streams_what_it_lists(folder: Path, tmp_path: Path) -> None:
    text = (
        HEAD
        + entry(folder, "p4.png", ", label: 7, group: s")
        + entry(folder, "p2.png", ", label: 1, group: s")
    )
    found = manifest(tmp_path, text)
    assert [blob.file for blob in found.blobs] == ["p4.png", "p2.png"]
    downloads = Downloads(tmp_path / "store", tmp_path, pytest.fail)
    samples = list(found.samples(downloads))
    assert [(s.name, s.label, s.group) for s in samples] == [("p4.png", 7, "s"), ("p2.png", 1, "s")]
    assert overlap(found, opened(folder)) == ["p4.png", "p2.png"]
    assert manifest(tmp_path, text.replace("label: 7", "label: 8")).digest != found.digest
    moved = manifest(tmp_path, text.replace("file:pictures", "file:other"))
    assert moved.digest == found.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 1\nsources: [", "not valid YAML"),
        (HEAD + "    - {file: a, sha: x}\n", r"m.yaml:5.*unknown key.*sha"),
        ("schema: 2\nsources: []\n", "schema"),
        (HEAD + "    - {file: a, sha256: zz}\n", "sha256"),
        (HEAD + f"    - {{file: a, sha256: {'a' * 64}}}\n" * 2, "file listed twice: a"),
        (
            HEAD + "".join(f"    - {{file: {n}, sha256: {'a' * 64}}}\n" for n in "ab"),
            "sha256 listed twice",
        ),
        (
            HEAD
            + f"    - {{file: a, sha256: {'a' * 64}, label: 1}}\n"
            + f"    - {{file: b, sha256: {'b' * 64}}}\n",
            "label every picture or none; without: b",
        ),
        (
            (HEAD + "".join(f"    - {{file: {n}, sha256: {n * 64}}}\n" for n in "ab")).replace(
                "{file}", "x", 1
            ),
            "needs {file}",
        ),
        (HEAD.replace("file:", "ftp:") + f"    - {{file: a, sha256: {'a' * 64}}}\n", "a mirror is"),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EdgefuseError, match=message):
        manifest(tmp_path, text)


def test_missing_manifest_and_manifest_without_downloads(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        open_samples(Samples(manifest="n"), preprocess=CONTRACT, inputs=INPUTS, base=tmp_path)
    with pytest.raises(ValueError, match="needs downloads"):
        next(manifest(tmp_path, HEAD + entry(folder, "p0.png")).samples())


@pytest.mark.parametrize(
    ("name", "count", "groups", "labelled"),
    [("photographs", 8, 7, False), ("imagenet20", 20, 20, True)],
)
def test_shipped_manifests(name: str, count: int, groups: int, labelled: bool) -> None:
    contract = Preprocess(resize=256, crop=(224, 224))
    samples = Samples(manifest=str(CONFIGS / f"{name}.yaml"))
    found = open_samples(samples, preprocess=contract, inputs=[], base=Path())
    assert (found.count, len(set(found.groups)), found.labelled) == (count, groups, labelled)
    for blob in found.blobs:
        assert [mirror.split(":")[0] for mirror in blob.mirrors][-1] == "https"
        assert sum(mirror.startswith("wheel:") for mirror in blob.mirrors) >= 2
        assert not any(" " in mirror for mirror in blob.mirrors)
    for entry in found.entries:
        if labelled:
            assert int(Path(entry.name).stem.split("_")[-1]) == entry.label


TWO = [TensorShape(name="serving/a:0", shape=(1, 2, 3)), TensorShape(name="b", shape=(1, 4))]


def arrays(path: Path, inputs: list[TensorShape] = TWO, **values: Any) -> SampleSet:
    np.savez(path, **values)
    return open_samples(Samples(arrays=str(path)), preprocess=None, inputs=inputs, base=path.parent)


def test_arrays_are_bound_by_name(tmp_path: Path) -> None:
    a = np.random.default_rng(0).normal(size=(5, 2, 3))
    b = np.asfortranarray(np.arange(20, dtype=np.float32).reshape(5, 4))
    values = {"b": b, "serving/a:0": a, "labels": np.arange(5)}
    found = arrays(tmp_path / "s.npz", **values)
    assert found.count == 5 and found.labelled
    for index, sample in enumerate(found.samples()):
        assert list(sample.feeds) == ["serving/a:0", "b"]
        assert sample.feeds["serving/a:0"].dtype == np.float32
        assert np.array_equal(sample.feeds["serving/a:0"], np.float32(a[index : index + 1]))
        assert np.array_equal(sample.feeds["b"], b[index : index + 1])
        assert sample.label == index
    (tmp_path / "t").mkdir()
    shutil.copy(tmp_path / "s.npz", tmp_path / "t" / "s.npz")
    again = open_samples(Samples(arrays="t/s.npz"), preprocess=None, inputs=TWO, base=tmp_path)
    assert again.digest == found.digest
    feeds, held = next(batches(found.samples(), 3))
    assert feeds["b"].shape == (3, 4) and len(held) == 3


def test_npy_serves_one_input(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    samples = Samples(arrays="x.npy")
    found = open_samples(samples, preprocess=None, inputs=TWO[1:], base=tmp_path)
    assert np.array_equal(np.concatenate([s.feeds["b"] for s in found.samples()]), x)
    with pytest.raises(DataError, match="serves one input, and the model has 2"):
        open_samples(samples, preprocess=None, inputs=TWO, base=tmp_path)


F = np.zeros((2, 4), np.float32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"c": F}, r"named \['c'\], the model's inputs \['b'\]"),
        ({"b": F, "c": F}, "the arrays are named"),
        ({"b": F[:, :3]}, r"has shape \[2, 3\], not \['samples', 4\]"),
        ({"b": F.astype(np.uint8)}, "is uint8, not float32"),
        ({"b": F.astype(np.float16)}, "is float16, not float32"),
        ({"b": F.astype(object)}, "is object, not float32"),
        ({"b": F + np.float32(np.nan)}, "sample 0 'b' holds NaN"),
        ({"b": F.astype(np.float64) + 1e300}, "overflows float32"),
        ({"b": F[:0]}, "one or more samples"),
        ({"b": F, "labels": np.arange(3)}, "equally many"),
        ({"b": F, "labels": np.zeros(2)}, "labels are not integers"),
        ({"b": F, "labels": np.array([0, -1])}, "a label is negative"),
    ],
)
def test_bad_arrays(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(arrays(tmp_path / "s.npz", TWO[1:], **values).samples())


def test_files_that_are_no_arrays(tmp_path: Path) -> None:
    for name, message in [
        ("s.npz", "cannot be read"),
        ("s.npy", "no NumPy array"),
        ("s.x", "suffix"),
    ]:
        (tmp_path / name).write_text("hello, this is no array file")
        with pytest.raises(DataError, match=message):
            open_samples(Samples(arrays=name), preprocess=None, inputs=TWO[1:], base=tmp_path)
    np.save(tmp_path / "cut.npy", F)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-3])
    found = open_samples(Samples(arrays="cut.npy"), preprocess=None, inputs=TWO[1:], base=tmp_path)
    with pytest.raises(DataError, match="cut short"):
        list(found.samples())


def test_memory_does_not_grow_with_the_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "big.npz", b=np.zeros((4000, 1, 4000), np.float32))
    found = open_samples(
        Samples(arrays="big.npz"),
        preprocess=None,
        inputs=[TensorShape(name="b", shape=(1, 1, 4000))],
        base=tmp_path,
    )
    tracemalloc.start()
    assert sum(1 for _ in found.samples()) == 4000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


def test_opening_imports_neither_numpy_nor_pillow(folder: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom edgefuse.data import open_samples\n"
        "from edgefuse.recipe import Preprocess, Samples\n"
        "s = open_samples(Samples(folder=sys.argv[1]), preprocess=Preprocess(crop=(8, 8)), "
        "inputs=[], base=Path())\nassert s.count == 10\n"
        "assert not {'numpy', 'PIL'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)
