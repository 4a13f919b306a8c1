from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgefuse.cli import app
from edgefuse.commands import setup as command_setup
from edgefuse.devices.device import Kind
from edgefuse.errors import FetchError, RecipeError
from edgefuse.target import Target


class Kinds:
    """In place of the registry: one kind whose preparing is watched."""

    def __init__(self, there: bool = False, fails: bool = False) -> None:
        self.prepared: list[str] = []
        self.there, self.fails = there, fails

    def prepare(self, target: Target, folder: Path) -> Iterator[str]:
        self.prepared.append(target.name)
        yield "downloading"
        if self.fails:
            raise FetchError("the network is gone")

    def all(self) -> dict[str, Kind]:
        kind = Kind("qemu", None, self.prepare, lambda *_: {"an emulator": self.there})  # type: ignore[arg-type]
        names = ("qemu", "tflite_micro", "ethos_u", "edgetpu", "remote", "cuda")
        return dict.fromkeys(names, kind) | {"host": Kind("host", None)}  # type: ignore[arg-type]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Kinds:
    made = Kinds()
    monkeypatch.setattr(command_setup, "DEVICES", made)
    return made


def test_each_target_once_and_steps_apart_from_results(kinds: Kinds) -> None:
    steps: list[str] = []
    names = ["emu-cortex-a53", "host", "emu-cortex-a53"]
    lines = list(command_setup.set_up(names, steps.append))
    assert kinds.prepared == ["emu-cortex-a53"]
    assert steps == ["emu-cortex-a53: downloading"]
    assert lines[0].startswith("emu-cortex-a53: ready in ")
    assert lines[1] == "host: nothing to set up"


def test_an_unknown_target_stops_before_anything_is_done(kinds: Kinds) -> None:
    with pytest.raises(RecipeError, match="emu-cortex-a54"):
        list(command_setup.set_up(["emu-cortex-a53", "emu-cortex-a54"], lambda _: None))
    assert kinds.prepared == []


def test_what_cannot_be_had_is_an_error(kinds: Kinds) -> None:
    kinds.fails = True
    with pytest.raises(FetchError, match="network"):
        list(command_setup.set_up(["emu-cortex-a53"], lambda _: None))


def test_the_list_tells_what_is_needed_and_by_which_command(kinds: Kinds) -> None:
    text = "\n".join(command_setup.target_lines())
    assert "needs an emulator" in text
    assert "not set up: edgefuse setup emu-cortex-a53" in text
    assert "setup host" not in text
    kinds.there = True
    text = "\n".join(command_setup.target_lines())
    assert "has an emulator" in text
    assert "not set up" not in text


def test_the_command(kinds: Kinds) -> None:
    done = CliRunner().invoke(app, ["setup", "emu-cortex-a53", "--quiet"])
    assert done.exit_code == 0
    assert done.stdout.startswith("emu-cortex-a53: ready in ")
    assert kinds.prepared == ["emu-cortex-a53"]
