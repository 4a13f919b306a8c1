from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgefuse.devices.setup.piece import make_piece, require_piece, together
from edgefuse.errors import DeviceUnavailable, EdgefuseError, FetchError


def fill(folder: Path) -> Iterator[str]:
    yield "filling"
    (folder / "file").write_text("whole")


def test_it_is_filled_once(tmp_path: Path) -> None:
    piece = tmp_path / "pieces" / "one"
    assert list(make_piece(piece, fill)) == ["filling"]
    assert (piece / "file").read_text() == "whole"
    assert list(make_piece(piece, fill)) == []


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> Iterator[str]:
        (folder / "half").write_text("half")
        yield "filling"
        raise FetchError("the network is gone")

    with pytest.raises(FetchError):
        list(make_piece(tmp_path / "one", fail))
    assert [path.name for path in tmp_path.iterdir()] == [".one.lock"]
    assert list(make_piece(tmp_path / "one", fill)) == ["filling"]


def test_what_a_killed_setup_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".part-one-abc").mkdir()
    list(make_piece(tmp_path / "one", fill))
    assert not (tmp_path / ".part-one-abc").exists()


def test_two_at_once_fill_it_once(tmp_path: Path) -> None:
    fills = []

    def slowly(folder: Path) -> Iterator[str]:
        fills.append(folder)
        time.sleep(0.2)
        yield from fill(folder)

    threads = [
        threading.Thread(target=lambda: list(make_piece(tmp_path / "one", slowly)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1
    assert (tmp_path / "one" / "file").read_text() == "whole"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgefuseError, match="cannot be"):
        list(make_piece(tmp_path / "file" / "one", fill))


def test_a_missing_piece_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        require_piece(tmp_path / "one", "the emulator is", "emu-cortex-a53")
    assert caught.value.message == "emu-cortex-a53 is not set up: the emulator is missing"
    assert caught.value.hint == "edgefuse setup emu-cortex-a53"


@pytest.mark.parametrize("harm", ["gone", "cut", "link", "list"])
def test_a_damaged_piece_is_noticed_and_made_anew(tmp_path: Path, harm: str) -> None:
    def fill_more(folder: Path) -> Iterator[str]:
        (folder / "below").mkdir()
        (folder / "below" / "link").symlink_to("../file")
        yield from fill(folder)

    piece = tmp_path / "one"
    list(make_piece(piece, fill_more))
    assert require_piece(piece, "it is", "board") == piece
    if harm == "gone":
        (piece / "file").unlink()
    elif harm == "cut":
        (piece / "file").write_text("who")
    elif harm == "link":
        (piece / "below" / "link").unlink()
    else:
        (piece / ".piece.json").write_text("[")
    with pytest.raises(DeviceUnavailable, match="it is damaged"):
        require_piece(piece, "it is", "board")
    assert list(make_piece(piece, fill_more)) == ["filling"]
    assert require_piece(piece, "it is", "board") == piece
    assert sorted(path.name for path in tmp_path.iterdir()) == [".one.lock", "one"]


def test_several_at_once_yield_all_lines_and_then_the_first_error() -> None:
    def work(name: str, fails: bool) -> Iterator[str]:
        yield f"{name} 1"
        if fails:
            raise FetchError(name)
        yield f"{name} 2"

    assert sorted(together([work("a", False), work("b", False)])) == ["a 1", "a 2", "b 1", "b 2"]
    lines = []
    with pytest.raises(FetchError, match="b"):
        for line in together([work("a", False), work("b", True), work("c", True)]):
            lines.append(line)
    assert sorted(lines) == ["a 1", "a 2", "b 1", "c 1"]
