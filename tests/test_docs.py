"""The generated pages are what the code says, and the check notices when they are not."""

import functools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgefuse import docs, docs_passes
from edgefuse.graph.pipeline import ordered_passes
from edgefuse.recipe import Recipe
from edgefuse.stage import STAGES

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def the_code_is_read_once() -> Iterator[None]:
    """The catalogue of passes and the helps of the commands take seconds, and no folder."""
    real = docs._help
    with pytest.MonkeyPatch.context() as patch:
        told = functools.cache(lambda *words: real(words))
        patch.setattr(docs, "_help", lambda words: told(*words))
        patch.setattr(docs_passes, "catalogue", functools.cache(docs_passes.catalogue))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the pages lie in."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "targets"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("edgefuse/passes", "edgefuse/stages"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "README.md", folder)
    docs.write(folder)
    return folder


@pytest.fixture
def checkout(written: Path, tmp_path: Path) -> Path:
    """A copy of them, to be changed."""
    return Path(shutil.copytree(written, tmp_path / "checkout"))


def test_the_pages_of_this_checkout_are_fresh() -> None:
    assert docs.stale(ROOT) == [], "run `make docs`"


def test_writing_twice_changes_nothing(checkout: Path) -> None:
    assert docs.write(checkout) == []
    assert docs.main(["--check", "--root", str(checkout)]) == 0


@pytest.mark.parametrize("name", ["README.md", "configs/README.md", "configs/recipe.schema.json"])
def test_a_stale_page_is_named(
    checkout: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = checkout / name
    page.write_text(page.read_text().replace("seed", "sead").replace("--target", "--torget"))
    assert docs.main(["--check", "--root", str(checkout)]) == 1
    assert capsys.readouterr().out == f"stale: {name}\n"
    assert "sead" in page.read_text() or "--torget" in page.read_text()
    assert docs.main(["--root", str(checkout)]) == 0
    assert docs.stale(checkout) == []


def test_a_missing_page_is_stale(checkout: Path) -> None:
    (checkout / "targets" / "README.md").unlink()
    assert docs.stale(checkout) == [checkout / "targets" / "README.md"]


def test_a_new_target_makes_its_page_stale(checkout: Path) -> None:
    text = (checkout / "targets" / "host.yaml").read_text().replace("name: host\n", "name: board\n")
    (checkout / "targets" / "board.yaml").write_text(text)
    assert docs.stale(checkout) == [checkout / "targets" / "README.md"]


def test_a_readme_without_markers_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "README.md").write_text("# edgefuse\n")
    assert docs.main(["--root", str(checkout)]) == 2
    assert "markers" in capsys.readouterr().err


def test_every_pass_stage_command_and_key_is_there(checkout: Path) -> None:
    catalogue = (checkout / "edgefuse" / "passes" / "README.md").read_text()
    assert all(f"## {entry.name}\n" in catalogue for entry in ordered_passes())
    assert "Refuses when" in catalogue
    assert "ConvAdd<Act>" in catalogue
    stages = (checkout / "edgefuse" / "stages" / "README.md").read_text()
    assert all(f"[{name}]({name}.py)" in stages for name in STAGES.all())
    assert stages.index("[fuse]") < stages.index("[convert]") < stages.index("[package]")
    keys = (checkout / "configs" / "README.md").read_text()
    assert all(f"| `{f.alias or n}` |" in keys for n, f in Recipe.model_fields.items())
    assert "| `max_ratio_to_float` | number > 0 or null |" in keys
    readme = (checkout / "README.md").read_text()
    assert "$ edgefuse run --help" in readme
    assert "$ edgefuse targets --help" in readme


@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "configs/README.md", "targets/README.md", "edgefuse/passes/README.md"),
        *("edgefuse/stages/README.md", "edgefuse/DECISIONS.md", "CHANGELOG.md"),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("https://")]
    assert [link for link in local if not (path.parent / link).exists()] == []
