"""Registration: one entry a file, under the file's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from edgefuse.registry import Registry
from edgefuse.stage import STAGES, restricted


@dataclass(frozen=True)
class Entry:
    name: str


def test_the_name_is_the_files() -> None:
    registry: Registry[Entry] = Registry("package")
    registry.add(Entry("fold"), "package.fold")
    with pytest.raises(ValueError, match="must be named 'fuse'"):
        registry.add(Entry("fold"), "package.fuse")
    with pytest.raises(ValueError, match="twice"):
        registry.add(Entry("fold"), "other.fold")


def test_a_folder_is_discovered_once_and_sorted(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "users_plugins"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from edgefuse.registry import Registry\nALL = Registry('users_plugins')\n"
    )
    for name in ("zeta", "alpha"):
        (package / f"{name}.py").write_text(
            "from dataclasses import dataclass\nfrom users_plugins import ALL\n"
            "@dataclass(frozen=True)\nclass E:\n    name: str\n"
            f"ALL.add(E({name!r}), __name__)\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    from users_plugins import ALL

    assert list(ALL.all()) == ["alpha", "zeta"] == list(ALL.all())
    ALL.all().clear()
    assert len(ALL.all()) == 2


def test_every_stage_is_registered_under_its_file() -> None:
    folder = Path(__file__).parent.parent / "edgefuse" / "stages"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(STAGES.all()) == files
    for stage in STAGES.all().values():
        assert {*stage.inputs, *stage.after} <= files
        assert stage.run.__module__ == f"edgefuse.stages.{stage.name}"


def test_a_stage_sees_only_what_it_declares() -> None:
    from fake_stages import recipe

    stage = STAGES.all()["gate_memory"]
    shown = restricted(recipe(), stage)
    assert shown.name == "tiny" and shown.seed == 0 and shown.gates.memory is None
    with pytest.raises(AttributeError, match="'gate_memory' reads 'data' but does not declare it"):
        _ = shown.data
