from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.errors import RecipeError
from edgefuse.target import Target, list_targets, load_target

GOOD = "name: board\nsummary: A board.\ntransport: local\nruntime: litert\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "board.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["host", "host-tflite-runtime"])
def test_shipped_targets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = load_target(name)
    assert target.name == name and target.threads == 1 and target.install_path
    assert target.runtime == ("litert" if name == "host" else "tflite_runtime")


def test_found_by_name_and_path(folder: Path) -> None:
    assert load_target("board") == load_target("targets/board.yaml")
    target = load_target("board")
    assert (target.kernels, target.install_path, target.tried_on_hardware) == (
        "default",
        None,
        False,
    )
    with pytest.raises(Exception, match="frozen"):
        target.threads = 2  # type: ignore[misc]


def test_search_order(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("project")
    (other / "targets").mkdir()
    (other / "configs").mkdir()
    (other / "targets" / "board.yaml").write_text(GOOD.replace("A board", "Another"))
    (other / "targets" / "far.yaml").write_text(GOOD.replace("board", "far"))
    (other / "configs" / "recipe.yaml").write_text("name: recipe\n")
    assert load_target("board", [other / "configs"]).summary == "A board."
    assert load_target("far", [other / "configs"]).name == "far"
    known = list_targets([other / "configs"])
    assert {"board", "far", "host"} <= set(known) and "recipe" not in known


def test_unknown_name(folder: Path) -> None:
    with pytest.raises(RecipeError, match="unknown target 'bord'") as caught:
        load_target("bord")
    assert "did you mean 'board'?" in caught.value.hint and "host" in caught.value.hint
    with pytest.raises(RecipeError, match="no such file"):
        load_target("targets/absent.yaml")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("kernel: builtin\n", "unknown key: kernel", "did you mean 'kernels'?"),
        ("kernels: buildin\n", "kernels: ", "did you mean 'builtin'?"),
        ("threads: 0\n", "threads: ", ""),
    ],
)
def test_wrong_file_shows_the_line(folder: Path, line: str, message: str, hint: str) -> None:
    path = folder / "targets" / "board.yaml"
    path.write_text(GOOD + line)
    with pytest.raises(RecipeError) as caught:
        load_target("board")
    assert caught.value.where.endswith("board.yaml:5")
    assert message in caught.value.message and hint in caught.value.hint


def test_other_faults(folder: Path) -> None:
    path = folder / "targets" / "board.yaml"
    path.write_text(GOOD.replace("transport: local\n", ""))
    with pytest.raises(RecipeError, match="missing key: transport"):
        load_target("board")
    path.write_text(GOOD.replace("name: board", "name: other"))
    with pytest.raises(RecipeError, match=r"lives in a file called 'board\.yaml'"):
        load_target("board")


def test_every_field_is_described() -> None:
    assert all(field.description or name == "name" for name, field in Target.model_fields.items())
