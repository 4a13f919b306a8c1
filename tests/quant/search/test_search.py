"""The order of the search, what it keeps, and where it stops; files and judge are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgefuse.errors import StageError
from edgefuse.quant.search.goal import Score
from edgefuse.quant.search.search import Blamed, Found, search
from edgefuse.recipe.quantize import Goal, Quantize

GOAL = Goal(min_sqnr_db=30)
PLAIN = Quantize(goal=GOAL)
LAYERS = [Blamed(f"layer{k}", "CONV_2D", 40.0 - k) for k in range(11)]


@dataclass
class World:
    """A maker that writes what it was asked for, and a judge that reads it."""

    work: Path
    rate: Callable[[Mapping[str, Any]], float]
    seconds: float = 1.0
    now: float = 0.0
    made: list[dict[str, Any]] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)
    unknown: Callable[[Quantize], bool] = lambda _: False

    @property
    def material(self) -> Any:
        return SimpleNamespace(
            work=self.work, progress=lambda done, total, what: self.told.append((total, what))
        )

    def make(self, options: Quantize, destination: Path) -> Any:
        self.now += self.seconds
        if self.unknown(options):
            destination.write_text("half a file")
            raise StageError("L2_NORMALIZATION is not known")
        asked = options.model_dump(mode="json", exclude={"goal", "qat"})
        self.made.append(asked)
        destination.write_text(json.dumps(asked))
        return SimpleNamespace(path=destination)

    def score(self, path: Path) -> Score:
        return Score(None, None, self.rate(json.loads(path.read_text())), 50)

    def latency(self, path: Path) -> float:
        self.timed.append(path.name)
        return 0.5

    def blame(self, made: Any) -> list[Blamed]:
        self.blamed.append(made.path.name)
        assert made.path.exists()
        return LAYERS

    def search(
        self, options: Quantize = PLAIN, permitted: tuple[str, ...] = (), **more: Any
    ) -> Found:
        maker: Any = self
        return search(
            maker, options, maker, blame=self.blame, latency=self.latency,
            islands=lambda blamed: [(b.tensor,) for b in blamed if b.code in permitted],
            clock=lambda: self.now, **more,
        )  # fmt: skip


def floats(needed: int) -> Callable[[Mapping[str, Any]], float]:
    """The goal is reached with so many layers in float."""

    def rate(asked: Mapping[str, Any]) -> float:
        raised = len(asked["keep_float"])
        return 31.0 if raised >= needed else 10.0 + raised

    return rate


def test_the_recipes_own_options_come_first_and_may_be_enough(tmp_path: Path) -> None:
    world = World(tmp_path, lambda _: 30.0)
    found = world.search()
    assert [t.technique for t in found.trials] == ["the recipe's own options"]
    assert found.best.meets and found.untried == "" and found.blamed == ()
    assert not world.timed and not world.blamed
    assert found.made.path.exists()


def test_the_first_that_reaches_the_goal_is_taken(tmp_path: Path) -> None:
    world = World(tmp_path, lambda asked: 33.0 if asked["equalize"] else 25.0)
    found = world.search()
    assert [t.technique for t in found.trials] == [
        "the recipe's own options",
        "bias correction of layers",
        "rounding by GPTQ",
        "equalised channels, GPTQ",
    ]
    assert found.best is found.trials[-1]
    assert found.best.options == {"rounding": "gptq", "correct_bias": "layers", "equalize": True}
    assert [path.name for path in tmp_path.iterdir()] == [found.made.path.name]


def test_no_technique_is_tried_twice(tmp_path: Path) -> None:
    options = Quantize(goal=GOAL, rounding="gptq", correct_bias="layers", equalize=True)
    world = World(tmp_path, lambda _: 5.0)
    world.search(options)
    seen = [json.dumps(asked, sort_keys=True) for asked in world.made]
    assert len(seen) == len(set(seen))
    assert all(asked["rounding"] == "gptq" for asked in world.made)


def test_options_of_the_recipe_stay(tmp_path: Path) -> None:
    options = Quantize(goal=GOAL, input="float32", head="values", keep_float=("stem",))
    world = World(tmp_path, lambda _: 5.0)
    world.search(options, ("CONV_2D",))
    assert {asked["input"] for asked in world.made} == {"float32"}
    assert all(asked["keep_float"][0] == "stem" for asked in world.made)


def test_the_best_is_kept_where_nothing_is_enough(tmp_path: Path) -> None:
    def rate(asked: Mapping[str, Any]) -> float:
        return 29.0 if asked["ranges"] == "mse" else 10.0 + asked["tail_percent"]

    world = World(tmp_path, rate)
    found = world.search()
    assert not found.best.meets
    assert found.best.options["ranges"] == "mse"
    assert found.made.path.exists()
    assert json.loads(found.made.path.read_text())["ranges"] == "mse"
    assert len(list(tmp_path.iterdir())) == 1
    assert "check.permit_float" in found.untried
    assert found.blamed == tuple(LAYERS)


@pytest.mark.parametrize("needed", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
def test_the_fewest_layers_become_float(tmp_path: Path, needed: int) -> None:
    world = World(tmp_path, floats(needed))
    found = world.search(permitted=("CONV_2D",))
    assert found.best.meets
    assert found.best.float_layers == tuple(f"layer{k}" for k in range(needed))
    assert json.loads(found.made.path.read_text())["keep_float"] == [
        f"^layer{k}$" for k in range(needed)
    ]
    raised = [trial for trial in found.trials if trial.float_layers]
    assert len(raised) <= 8
    assert len({trial.float_layers for trial in raised}) == len(raised)


def test_layers_that_are_not_permitted_stay_int8(tmp_path: Path) -> None:
    world = World(tmp_path, floats(1))
    found = world.search(permitted=("FULLY_CONNECTED",))
    assert not found.best.meets
    assert not any(trial.float_layers for trial in found.trials)
    assert "check.permit_float" in found.untried


def test_names_are_taken_word_for_word(tmp_path: Path) -> None:
    world = World(tmp_path, floats(1))
    world.blame = lambda _: [Blamed("a.b/c(d)+", "CONV_2D", 50.0)]  # type: ignore[method-assign]
    found = world.search(permitted=("CONV_2D",))
    assert found.best.options["keep_float"] == (r"^a\.b/c\(d\)\+$",)


def test_time_is_measured_on_the_frontier_alone(tmp_path: Path) -> None:
    world = World(tmp_path, floats(3))
    found = world.search(permitted=("CONV_2D",))
    measured = [trial for trial in found.trials if trial.latency_ratio is not None]
    raised = [trial for trial in found.trials if trial.float_layers]
    # Those with float layers, and the best without.
    assert len(measured) == len(raised) + 1 == len(world.timed)
    assert set(map(id, raised)) <= set(map(id, measured))


def test_no_candidate_is_begun_after_the_time_limit(tmp_path: Path) -> None:
    goal = Goal(min_sqnr_db=30, time_limit_s=2)
    world = World(tmp_path, lambda _: 1.0)
    found = world.search(Quantize(goal=goal), ("CONV_2D",))
    assert len(found.trials) == 3
    assert found.untried == "the time limit of 2 s was reached"
    assert not found.best.meets and found.made.path.exists()


def test_the_time_limit_ends_the_raising_of_layers(tmp_path: Path) -> None:
    free = World(tmp_path / "a", lambda _: 1.0)
    free.work.mkdir()
    count = len(free.search().trials)
    world = World(tmp_path / "b", lambda _: 1.0)
    world.work.mkdir()
    goal = Goal(min_sqnr_db=30, time_limit_s=count + 1)
    found = world.search(Quantize(goal=goal), ("CONV_2D",))
    assert len(found.trials) == count + 2
    assert found.untried == f"the time limit of {count + 1} s was reached"


def test_fine_tuning_comes_last_and_only_when_it_must(tmp_path: Path) -> None:
    world = World(tmp_path, lambda asked: 40.0 if asked.get("tuned") else 20.0)
    calls: list[Quantize] = []

    def last_resort(options: Quantize) -> tuple[Any, str]:
        calls.append(options)
        path = tmp_path / "tuned.tflite"
        path.write_text(json.dumps({"tuned": True}))
        return SimpleNamespace(path=path), "fine-tuning"

    found = world.search(permitted=("CONV_2D",), last_resort=last_resort)
    assert found.best.technique == "fine-tuning" and found.best.meets
    assert calls[0].keep_float == () and calls[0].goal is None
    calls.clear()
    # The last trial of the bisection fails, the one before reached the goal.
    other = World(tmp_path, floats(3))
    found = other.search(permitted=("CONV_2D",), last_resort=last_resort)
    assert not found.trials[-1].meets or len(found.trials[-1].float_layers) == 3
    assert found.best.float_layers and not calls


@pytest.mark.parametrize("needed", [2, 3, 5, 6, 7])
def test_a_goal_that_layers_reach_needs_no_fine_tuning(tmp_path: Path, needed: int) -> None:
    world = World(tmp_path, floats(needed))

    def never(_: Quantize) -> tuple[Any, str]:
        raise AssertionError

    assert world.search(permitted=("CONV_2D",), last_resort=never).best.meets


def test_a_technique_that_does_not_know_the_model_is_noted(tmp_path: Path) -> None:
    world = World(tmp_path, floats(2), unknown=lambda options: options.rounding == "gptq")
    found = world.search(permitted=("CONV_2D",))
    assert found.best.meets and len(found.best.float_layers) == 2
    assert "rounding by GPTQ: L2_NORMALIZATION is not known" in found.refused
    assert [path.name for path in tmp_path.iterdir()] == [found.made.path.name]


def test_the_recipes_own_options_must_make_a_file(tmp_path: Path) -> None:
    world = World(tmp_path, lambda _: 40.0, unknown=lambda _: True)
    with pytest.raises(StageError, match="L2_NORMALIZATION"):
        world.search()


def test_evidence_is_json(tmp_path: Path) -> None:
    world = World(tmp_path, floats(3), unknown=lambda options: options.ranges == "mse")
    found = world.search(permitted=("CONV_2D",))
    evidence = json.loads(json.dumps(found.evidence(GOAL)))
    assert evidence["goal"] == {"min_sqnr_db": 30.0, "time_limit_s": 600}
    assert evidence["reached"] is True
    assert evidence["float_layers"] == ["layer0", "layer1", "layer2"]
    assert len(evidence["trials"]) == len(found.trials)
    assert evidence["trials"][0]["score"]["sqnr_db"] == 10.0
    assert len(evidence["blamed"]) == 10
    assert len(evidence["refused"]) == 1


def test_progress_has_no_total(tmp_path: Path) -> None:
    world = World(tmp_path, lambda _: 31.0)
    world.search()
    assert world.told == [(0, "candidate 1, the recipe's own options: SQNR 31.00 dB")]
