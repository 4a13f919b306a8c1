"""The catalogue of rows: names, selection, and why a recipe does not have one."""

from __future__ import annotations

import pytest

from edgefuse.compare import rows as catalogue
from edgefuse.compare.rows import ROWS, select, why_not_from, why_not_installed
from edgefuse.errors import UsageError

_TORCH_ON_GPU = ("eager", "channels_last", "inductor")


def test_names_and_titles_differ() -> None:
    assert len({row.name for row in ROWS}) == len({row.title for row in ROWS}) == len(ROWS) == 26


def test_the_order_is_that_of_the_catalogue() -> None:
    assert [row.name for row in select(["xla", "eager", "xla"])] == ["eager", "xla"]
    assert select([]) == ROWS


@pytest.mark.parametrize(
    ("name", "near"), [("onnxruntime_al", "onnxruntime_all"), ("folder", "folded")]
)
def test_an_unknown_name_has_the_nearest_spelling(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"--row {name}: no such row") as caught:
        select(["eager", name])
    assert caught.value.exit_code == 2
    assert f"did you mean {near}?" in caught.value.hint and "litert_int8" in caught.value.hint


def test_what_a_source_has() -> None:
    def there(source: str) -> set[str]:
        return {row.name for row in ROWS if not why_not_from(row, source)}

    everything = {row.name for row in ROWS}
    assert there("torch") == everything
    torch_rows = {"eager", "folded", "torchscript", "inductor"}
    torch_rows |= {f"cuda_{t}_{p}" for t in _TORCH_ON_GPU for p in ("fp32", "fp16")}
    assert there("onnx") == everything - torch_rows
    assert there("tflite") == {"litert_float", "litert_int8"}
    assert why_not_from(ROWS[0], "onnx") == "the recipe's source is an .onnx file"
    assert why_not_from(ROWS[0], "tflite") == "the recipe's source is a .tflite file"


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": object(), "tensorflow": object(), "onnx2tf": None, "tf_keras": object()}
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", there.get)
    by_name = {row.name: row for row in ROWS}
    assert why_not_installed(by_name["eager"]) == ""
    assert "not installed: onnx2tf (pip install" in why_not_installed(by_name["xla"])
    assert "not installed: openvino (pip install" in why_not_installed(by_name["openvino"])
