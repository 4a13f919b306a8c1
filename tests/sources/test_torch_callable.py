"""PyTorch sources: found, built, in eval mode, with weights that fit, and no pickled code run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgefuse.errors import RecipeError, SourceError, ToolError
from edgefuse.recipe import TorchModel
from edgefuse.sources import torch_callable

torch = pytest.importorskip("torch")

NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.dense = torch.nn.Linear(4, width)

    def forward(self, x):
        return self.dense(x)

class Lab:
    make = staticmethod(lambda: Net().eval())

def make(width=3):
    return Net(width).eval()
"""


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder, self.warnings = folder, list[str]()
        (folder / "users_net.py").write_text(NET)

    def load(self, callable: str = "users_net:make", weights: Any = "random", **more: Any) -> Any:
        context: Any = SimpleNamespace(
            base=self.folder, warn=self.warnings.append, local=lambda f: self.folder / f.path
        )
        fields = {"callable": callable, "weights": weights, "arguments": more.pop("arguments", {})}
        return torch_callable.load(TorchModel.model_validate(fields), more.get("seed", 0), context)

    def save(self, state: Any, **options: Any) -> dict[str, str]:
        torch.save(state, self.folder / "w.pth", **options)
        return {"path": "w.pth"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield Place(tmp_path)
    assert sys.path == before
    for name in [n for n in sys.modules if n.startswith("users_")]:
        del sys.modules[name]


def state(**changes: Any) -> dict[str, Any]:
    return {"dense.weight": torch.ones(3, 4), "dense.bias": torch.zeros(3), **changes}


def test_random_weights_follow_the_seed(place: Place) -> None:
    one, same, other = (place.load(seed=seed).dense.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_arguments_and_dotted_attributes(place: Place) -> None:
    assert place.load(arguments={"width": 7}).dense.out_features == 7
    assert place.load("users_net:Lab.make").dense.out_features == 3
    assert place.load("users_net:Net").dense.out_features == 3
    assert place.warnings == [
        "users_net:Net returned a model in training mode: switched to eval mode"
    ]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}])
def test_weights_are_loaded(place: Place, legacy: bool, wrap: Any) -> None:
    weights = place.save(wrap(state()), _use_new_zipfile_serialization=not legacy)
    assert torch.equal(place.load(weights=weights).dense.weight, torch.ones(3, 4))


def test_what_wrappers_put_before_every_name_is_told(place: Place) -> None:
    weights = {f"module.{name}": value for name, value in state().items()}
    with pytest.raises(SourceError, match=r"missing dense\.bias") as caught:
        place.load(weights=place.save(weights))
    assert "begins with 'module.'" in (caught.value.hint or "")
    with pytest.raises(SourceError) as caught:
        place.load(weights=place.save({**weights, "more": torch.ones(1)}))
    assert "another architecture" in (caught.value.hint or "")


def test_the_callable_may_import_beside_the_recipe_when_it_is_called(place: Place) -> None:
    (place.folder / "users_part.py").write_text("WIDTH = 5\n")
    lazy = "\ndef lazy():\n    from users_part import WIDTH\n    return Net(WIDTH).eval()\n"
    (place.folder / "users_net.py").write_text(NET + lazy)
    assert place.load("users_net:lazy").dense.out_features == 5


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (state(more=torch.ones(1)), "unexpected more"),
        ({"dense.weight": torch.ones(3, 4)}, "missing dense.bias"),
        (state(**{"dense.bias": torch.zeros(4)}), r"dense.bias has shape \(4,\), the model has"),
        ({f"k{i}": torch.ones(1) for i in range(5)}, "and 4 more"),
        (state(**{"dense.bias": torch.full((3,), float("inf"))}), "NaN or infinity in dense.bias"),
        (state(**{"dense.bias": torch.tensor([0, float("nan"), 0])}), "NaN or infinity"),
        ([1, 2], "does not hold a mapping"),
        ({1: torch.ones(1)}, "does not hold a mapping"),
        ({"a": 3}, "does not hold a mapping"),
        ({"state_dict": 3}, "does not hold a mapping"),
        (torch.ones(3), "does not hold a mapping"),
    ],
)
def test_weights_that_do_not_fit(place: Place, weights: Any, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        place.load(weights=place.save(weights))
    assert caught.value.hint and caught.value.where and "\n" not in caught.value.message


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: torch.save({"a": Harmful()}, path),
        lambda path: torch.save(torch.nn.Linear(1, 1), path),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04 cut"),
        lambda path: path.write_text("hello"),
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
    ],
)
def test_files_that_are_no_state_dict(place: Place, damage: Any) -> None:
    weights = place.save(state())
    damage(place.folder / "w.pth")
    with pytest.raises(SourceError, match="not a PyTorch state dict") as caught:
        place.load(weights=weights)
    assert not (place.folder / "executed").exists()
    assert "weights_only" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("source", "callable", "kind", "said"),
    [
        ("", "users_gone:make", RecipeError, "cannot import 'users_gone'"),
        ("import users_gone\n", "users_net:make", RecipeError, "No module named 'users_gone'"),
        ("1 / 0\n", "users_net:make", RecipeError, "importing 'users_net' failed: ZeroDivision"),
        ("raise SystemExit(0)\n", "users_net:make", RecipeError, "failed: SystemExit"),
        ("def mak(): pass\n", "users_net:make", RecipeError, "has no 'make'"),
        ("make = 3\n", "users_net:make", RecipeError, "users_net:make is not callable"),
        ("def make(): return 3\n", "users_net:make", RecipeError, "returned int, not a torch"),
        ("def make(): return Net\n" + NET.replace("def make", "def other"), "users_net:make",
         RecipeError, "returned type, not a torch"),
        ("def make(): raise KeyError('a\\nb')\n", "users_net:make", SourceError, "KeyError"),
        ("import sys\ndef make(): sys.exit(2)\n", "users_net:make", SourceError, "SystemExit: 2"),
        ("def make(a): pass\n", "users_net:make", SourceError, "missing 1 required positional"),
    ],
)  # fmt: skip
def test_callables_that_do_not_build(place: Place, source, callable, kind, said) -> None:
    (place.folder / "users_net.py").write_text(source)
    with pytest.raises(kind) as caught:
        place.load(callable)
    assert said in caught.value.message and "\n" not in caught.value.message
    assert caught.value.where == "model.torch.callable" and caught.value.hint


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("def train(self, mode=True): return super().train(True)", "still in training mode"),
        ("def train(self): return self", "eval() failed: TypeError"),
    ],
)
def test_models_that_stay_in_training_mode(place: Place, train: str, said: str) -> None:
    text = NET.replace("    def forward", f"    {train}\n\n    def forward").replace(".eval()", "")
    (place.folder / "users_net.py").write_text(text)
    with pytest.raises(SourceError) as caught:
        place.load()
    assert said in caught.value.message and caught.value.hint


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ToolError, match="PyTorch is not installed") as caught:
        torch_callable.import_torch()
    assert "pip install 'edgefuse[torch]'" in caught.value.hint
