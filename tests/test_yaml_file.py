"""YAML with places: every error names file:line, the key path and the remedy."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from fake_stages import TEXT

from edgefuse.errors import RecipeError
from edgefuse.recipe import Recipe
from edgefuse.target import Target
from edgefuse.yaml_file import load, read_yaml, validate, with_overrides


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT)
    return path


def refused(file: Path, *settings: str, model: Any = Recipe) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load(file, model, settings)
    return caught.value


def edited(file: Path, old: str, new: str) -> Path:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    return file


def test_a_recipe_and_its_lines(file: Path) -> None:
    document = read_yaml(file)
    assert document.line(("model", "inputs", 0, "shape")) == 5
    assert document.where(("model", "inputs", 0, "nothing")) == f"{file}:5"
    assert document.where(("nothing",)) == f"{file}:1"
    assert validate(document, Recipe).name == "tiny"


def test_everything_is_plain_data(file: Path) -> None:
    file.write_text("a: [1, 2.5, true, null, text, {b: 'c'}]\n")
    assert read_yaml(file).data == {"a": [1, 2.5, True, None, "text", {"b": "c"}]}


# Ten aliases of ten aliases: 10^9 values out of 300 bytes.
ALIASES = "a: &a 1\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in itertools.pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", ":3", "key 'a' is given twice"),
        ("a:\n  b: {c: 1, c: 2}\n", ":2", "key 'c' is given twice"),
        ("a: [1\nb: 2\n", ":2", "not valid YAML"),
        ("a: 1\n\tb: 2\n", ":2", "not valid YAML"),
        ("a: *gone\n", ":1", "undefined alias"),
        ("a: !!python/object/apply:os.system ['true']\n", ":1", "not valid YAML"),
        ("a: !!int x\n", "", "not valid YAML"),
        ("a: 2026-99-99\n", "", "not valid YAML"),
        ("1: 2\n", ":1", "a key must be text, not 1"),
        ("- 1\n", "", "expected a mapping"),
        ("", "", "expected a mapping"),
        ("text\n", "", "expected a mapping"),
        ("a: &x [*x]\n", "", "alias of itself"),
        ("a: 1\n---\nb: 2\n", ":2", "not valid YAML"),
        ("a: \0\n", "", "not valid YAML: unacceptable character"),
        ("a: 1\nb: 010\n", ":2", "'010' is a number in base 8 to YAML"),
        ("a: 1\nb: [1:30]\n", ":2", "'1:30' is a number in base 60 to YAML"),
        ("a: 1\nb: 9223372036854775808\n", ":2", "an integer that does not fit 64 bits"),
        ("a: 0x" + "f" * 5000, ":1", "an integer that does not fit 64 bits"),
        (ALIASES, ":1", "more than 100,000 values, aliases followed"),
    ],
)
def test_what_is_no_plain_mapping(file: Path, text: str, where: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        read_yaml(file)
    assert caught.value.where == f"{file}{where}" and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [("a:\n\tb: 2\n", True), ("a: 1\n\tb: 2\n", True), ("a: [1\nb: \t2\n", False)],
)
def test_a_tab_as_indentation_is_named(file: Path, text: str, named: bool) -> None:
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        read_yaml(file)
    assert ("no tabs" in caught.value.hint) is named


def test_merged_keys_may_be_overridden_and_written_ones_not(file: Path) -> None:
    file.write_text("base: &b {x: 1, y: 2}\none:\n  <<: *b\n  y: 3\n")
    assert read_yaml(file).data["one"] == {"x": 1, "y": 3}
    file.write_text("one: &o\n  <<: {x: 1, y: 2}\n  y: 3\ntwo: *o\n")
    assert read_yaml(file).data["two"] == {"x": 1, "y": 3}
    file.write_text("base: &b {x: 1, y: 2}\none:\n  <<: *b\n  y: 3\n  y: 4\n")
    with pytest.raises(RecipeError, match="'y' is given twice"):
        read_yaml(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mobilenet.yaml").write_text("a: 1")
    with pytest.raises(RecipeError, match=r"no such file: .*mobilnet.yaml") as caught:
        read_yaml(tmp_path / "mobilnet.yaml")
    assert caught.value.hint == f"did you mean {tmp_path / 'mobilenet.yaml'}?"
    with pytest.raises(RecipeError) as caught:
        read_yaml(tmp_path / "zzz")
    assert "holds: mobilenet.yaml" in caught.value.hint
    with pytest.raises(RecipeError, match="cannot be read"):
        read_yaml(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(RecipeError, match="cannot be read: no regular file"):
            read_yaml(endless)
    for name in ("n" * 300, "a\0b"):
        with pytest.raises(RecipeError, match="cannot be read"):
            read_yaml(tmp_path / name)
    (tmp_path / "b.yaml").write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_yaml(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        ("data:", "sed: 1\ndata:", 6, "unknown key: sed", "did you mean 'seed'?"),
        ("path: model", "pth: model", 4, "missing key: model.onnx.path", "path"),
        ("name: x,", "nam: x,", 5, "unknown key: model.inputs.0.nam", "did you mean 'name'?"),
        ("name: tiny", "name: [1]", 2, "name: input should be a valid string", ""),
        ("name: tiny\n", "", 1, "missing key: name", "keys here: check"),
        ("name: tiny", "name: a/b", 2, "name: string should match", ""),
        ("[1, 2]", "[1, two]", 5, "model.inputs.0.shape: size 'two' must be an integer", ""),
        ("[1, 2]", "[1, -2]", 5, "model.inputs.0.shape: size -2 must be an integer", ""),
        ("[1, 2]", "[]", 5, "model.inputs.0.shape: needs at least 1", ""),
        ("schema: 1", "schema: 2", 1, "schema", ""),
        ("  onnx", "  tflite: {path: y}\n  onnx", 5, "exactly one of torch, onnx, tflite", ""),
        ("data:", "quantize: {ranges: percentil}\ndata:", 6, "quantize.ranges: input should be",
         "did you mean 'percentile'?"),
        ("data:", "gates: {memory: {}}\ndata:", 6, "missing key: gates.memory.max_arena_bytes", ""),
        ("data:", "gates: {accuracy: {}}\ndata:", 6, "gate without a threshold", ""),
        ("data:", "gates: {acuracy: {}}\ndata:", 6, "unknown key: gates.acuracy", "'accuracy'"),
        ("data:", "fuse: {skip: [fold_conv]}\ndata:", 6, "fuse.skip: no pass is called 'fold_conv'",
         ""),
        ("data:", "release: true\ndata:", 6, "release: true needs all gates", ""),
        ("data.npz}", "data.npz, crops: {count: 2}}", 7, "crops need pictures", ""),
        ("{arrays: data.npz}", "{folder: x}", 6, "needs a preprocess section", ""),
        ("data:", "seed: 1\nquantize:\n  ranges: mse\n  goal: {min_agreement: 1}\ndata:", 9,
         "quantize.goal is judged", "give data.validation"),
        ("data:", "quantize:\n  ranges: mse\n  format: float16\n  rounding: gptq\ndata:", 9,
         "quantize: rounding works on layers with integer inputs, and float16 has none", ""),
        ("data:", "quantize:\n  format: dynamic_range\n  correct_bias: layers\ndata:", 8,
         "quantize: correct_bias works on layers with integer inputs", "set format: int8"),
        ("data:", "quantize:\n  format: int16x8\n  correct_bias: head\ndata:", 8,
         "quantize: correct_bias: head needs int32 biases", "set correct_bias: layers"),
        ("data:", "export: {max_relative_error: .nan}\ndata:", 6, "finite number", ""),
        ("data:", "Sed: 1\ndata:", 6, "unknown key: Sed", "did you mean 'seed'?"),
        ("data:", "'a[0]': 1\ndata:", 6, "unknown key: a[0]", "allowed here"),
        ("data:", "contract: {operators: {TRANSPOSE: -1}}\ndata:", 6,
         "contract.operators.TRANSPOSE: input should be greater", ""),
        ("data:", "seed: yes\ndata:", 6, "seed: a number is due, not true or false", ""),
        ("data:", "memory: {parity_samples: true}\ndata:", 6, "samples: a number is due", ""),
        ("data:", "memory: {arena_bytes: true}\ndata:", 6, "arena_bytes: give bytes, or", ""),
        ("schema: 1", "schema: '1'", 1, "schema: input should be 1", "leave the quotes out"),
        ("schema: 1", "schema: true", 1, "schema: a number is due", ""),
    ],
)  # fmt: skip
def test_problems_have_a_line_a_key_and_a_hint(
    file: Path, old: str, new: str, line: int, message: str, hint: str
) -> None:
    error = refused(edited(file, old, new))
    assert error.where == f"{file}:{line}"
    assert message in error.message, error.message
    assert hint in error.hint + error.message
    assert "[type=" not in str(error) and "pydantic" not in str(error)


@pytest.mark.parametrize(
    ("weights", "key", "said"),
    [
        ("{pth: w.pth}", "model.torch.weights.pth", "did you mean 'path'?"),
        ("{path: w.pth, sha: x}", "model.torch.weights.sha", "did you mean 'sha256'?"),
        ("{path: w.pth, sha256: xyz}", "model.torch.weights.sha256", "match pattern"),
        ("randon", "model.torch.weights", "'random'"),
        ("{file: w, sha256: " + "a" * 64 + "}", "model.torch.weights.mirrors", "missing key"),
        ("{file: w, sha256: " + "a" * 64 + ", mirrors: []}", "model.torch.weights.mirrors", ""),
        ("{file: w, sha256: " + "a" * 64 + ", mirrors: ['ftp://x']}", "model.torch.weights.mirrors",
         "a mirror is https"),
        ("7", "model.torch.weights", ""),
        ("null", "model.torch.weights", ""),
        ("[w.pth]", "model.torch.weights", ""),
        ("{}", "model.torch.weights", "missing key"),
    ],
)  # fmt: skip
def test_of_a_union_only_the_nearest_alternative_complains(
    file: Path, weights: str, key: str, said: str
) -> None:
    torch = f"torch: {{callable: 'a:b', weights: {weights}}}\n  outputs: [y]"
    error = refused(edited(file, "onnx: {path: model.onnx}", torch))
    assert error.where == f"{file}:4"
    assert key in error.message, error.message
    assert said in str(error), str(error)
    for name in ("Blob", "LocalFile", "literal[", "Literal"):
        assert name not in str(error), str(error)
    assert str(error).count(f"{file}:") <= 2, str(error)


def test_all_problems_are_told_in_file_order(file: Path) -> None:
    edited(file, "name: tiny", "nme: tiny")
    edited(file, "data:", "quantize: {tail_percent: 70}\ndata:")
    error = refused(file)
    text = str(error)
    assert [text.index(part) for part in ("missing key: name", "nme", "tail_percent")] == sorted(
        text.index(part) for part in ("missing key: name", "nme", "tail_percent")
    )
    assert f"{file}:6: quantize.tail_percent" in text


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("seed=7", ("seed",), 7),
        ("quantize.ranges=minmax", ("quantize", "ranges"), "minmax"),
        ("model.inputs.0.shape=[2, 4]", ("model", "inputs", 0, "shape"), (2, 4)),
        ("fuse.skip=[fold_constants]", ("fuse", "skip"), ("fold_constants",)),
        ("gates.memory={max_arena_bytes: 5}", ("gates", "memory", "max_arena_bytes"), 5),
        ("description=a=b", ("description",), "a=b"),
        ("data.report=null", ("data", "report"), None),
    ],
)
def test_settings(file: Path, setting: str, path: tuple[Any, ...], value: Any) -> None:
    found: Any = load(file, Recipe, [setting])
    for part in path:
        found = found[part] if isinstance(part, int) else getattr(found, part)
    assert found == value
    assert file.read_text() == TEXT


def test_later_settings_win_and_the_document_is_not_changed(file: Path) -> None:
    document = read_yaml(file)
    changed = with_overrides(document, ["seed=1", "seed=2", "model.inputs.0.name=z"])
    assert changed.data["seed"] == 2 and "seed" not in document.data
    assert document.data["model"]["inputs"][0]["name"] == "x"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("seed", "--set seed: expected KEY.PATH=VALUE"),
        ("=3", "expected KEY.PATH=VALUE"),
        ("seed=[", "--set seed=[: not valid YAML"),
        ("name=2026-99-99", "not valid YAML"),
        ("seed=!!python/name:os.system x", "not valid YAML"),
        ("model.inputs.4.name=x", "model.inputs has no 4"),
        ("model.inputs.name=x", "model.inputs has no 'name'"),
        ("3=x", "the recipe has no 3"),
        ("name.x=3", "name"),
        ("quantize.rnges=minmax", "--set quantize.rnges=minmax: unknown key: quantize.rnges"),
        ("quantize.tail_percent=70", "--set quantize.tail_percent=70: quantize.tail_percent"),
        ("model={}", "--set model={}: "),
        ("model.inputs.\u00b2=1", "model.inputs has no '\u00b2'"),
        ("quantize={seed: 1, seed: 2}", "key 'seed' is given twice"),
        ("seed=010", "--set seed=010: '010' is a number in base 8"),
        ("seed=9223372036854775808", "does not fit 64 bits"),
    ],
)
def test_wrong_settings_are_named(file: Path, setting: str, said: str) -> None:
    assert said in str(refused(file, setting))


def test_long_values_are_cut(file: Path) -> None:
    error = refused(edited(file, "data:", f"seed: {'k' * 5000}\ndata:"))
    assert len(str(error)) < 400 and "kkk..." in str(error)
    edited(file, "seed", "#")
    assert len(str(refused(file, f"seed={'k' * 5000}"))) < 600


def test_targets_use_the_same_reader(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("name: t\nsummary: s\ntransport: local\nruntime: litertt\n")
    error = refused(path, model=Target)
    assert error.where == f"{path}:4" and "did you mean 'litert'?" in error.hint
