"""The cheapest way of quantising that reaches a goal.

Techniques are tried in the order of what they cost: first those that leave the file as fast as it
was (ranges, bias correction, rounding, equalisation), then the fewest layers in float, in islands
around the tensors that are blamed for most of the noise. Each candidate is a real file on the
target's runtime, judged on samples that it was not calibrated on, against the float file. The first
that reaches the goal is taken; the frontier says what each step would gain, and its time beside the
float file.

The goal is judged by the figures themselves: whether the result may ship is the gate's decision, by
its bounds and on other samples. Layers become float only where ``check.permit_float`` allows their
operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.quant.search.goal import Judge, Score, shortfall

if TYPE_CHECKING:
    from edgefuse.quant.make import Made, Maker
    from edgefuse.recipe.quantize import Goal, Quantize

_TAILS_PERCENT = (0.005, 0.001)


@dataclass(frozen=True)
class Trial:
    """One candidate.

    Attributes:
        technique: what it adds, for people.
        options: what the recipe's quantize section would say beyond its own words.
        score: on the validation samples.
        meets: whether it reaches the goal.
        float_layers: output tensors of the layers raised to float.
        latency_ratio: median time beside the float file, measured on the target; None where it was
            not measured.
        seconds: to make and to judge it.
    """

    technique: str
    options: Mapping[str, Any]
    score: Score
    meets: bool
    float_layers: tuple[str, ...]
    latency_ratio: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "float_layers": list(self.float_layers)}


@dataclass(frozen=True)
class Blamed:
    """A layer that may be raised, the costliest first.

    Attributes:
        tensor: its output's name in the float file.
        code: its TFLite operator.
        share_percent: of the output's noise.
    """

    tensor: str
    code: str
    share_percent: float


@dataclass(frozen=True)
class Found:
    """How a search ended.

    Attributes:
        made: the file: the first that reached the goal, else the nearest.
        best: its trial.
        trials: all, in order.
        blamed: the layers by their share of the noise; empty when nobody asked.
        untried: why the search stopped short of everything; empty when it did not.
        refused: techniques that do not know the model, and why.
    """

    made: Made
    best: Trial
    trials: tuple[Trial, ...]
    blamed: tuple[Blamed, ...]
    untried: str
    refused: tuple[str, ...] = ()

    def evidence(self, goal: Goal) -> dict[str, Any]:
        """The path taken and the frontier."""
        return {
            "goal": goal.model_dump(mode="json", exclude_none=True),
            "reached": self.best.meets,
            "chosen": self.best.technique,
            "options": dict(self.best.options),
            "float_layers": list(self.best.float_layers),
            "trials": [trial.to_json() for trial in self.trials],
            "blamed": [asdict(layer) for layer in self.blamed[:10]],
            "untried": self.untried,
            "refused": list(self.refused),
        }


def search(
    maker: Maker,
    options: Quantize,
    judge: Judge,
    *,
    blame: Callable[[Made], Sequence[Blamed]],
    islands: Callable[[Sequence[Blamed]], Sequence[tuple[str, ...]]],
    latency: Callable[[Path], float],
    last_resort: Callable[[Quantize], tuple[Made, str]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Try techniques until the goal is reached or none is left.

    Args:
        options: the recipe's; ``goal`` says when to stop.
        blame: the layers of a file by their share of its noise.
        islands: of blamed layers, the groups that may be raised together, the best first.
        latency: a file's time beside the float file's, on the target.
        last_resort: makes a file by fine-tuning, and says what it did.

    Raises:
        StageError, DataError: as making a file does.
    """
    assert options.goal is not None
    run = _Run(maker, options, options.goal, judge, latency, clock)
    plain = options.model_copy(update={"goal": None, "qat": None})
    for technique, changes in _free_of_charge(plain):
        if run.done:
            return run.found(())
        run.attempt(technique, plain, changes)
    if run.done:
        return run.found(())
    run.time_best()
    blamed = tuple(blame(run.made))
    groups = islands(blamed)
    if groups and not run.done:
        _raise_layers(run, plain, groups)
    elif not run.done:
        run.untried = (
            "no layer was raised to float: check.permit_float allows none of the operators "
            "that are to blame"
        )
    if not run.done and last_resort is not None:
        run.fine_tune(plain, last_resort)
    return run.found(blamed)


def _free_of_charge(options: Quantize) -> Iterator[tuple[str, dict[str, Any]]]:
    """Techniques that leave the operators as they are, cheapest first; none twice."""
    gptq: dict[str, Any] = {"rounding": "gptq"}
    if options.correct_bias == "none":
        gptq["correct_bias"] = "layers"
    even = {**gptq, "equalize": True}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("the recipe's own options", {}),
        ("bias correction of layers", {"correct_bias": "layers"}),
        ("rounding by GPTQ", gptq),
        ("equalised channels, GPTQ", even),
    ]
    for tail in _TAILS_PERCENT:
        ranges = {"ranges": "percentile", "tail_percent": tail}
        steps.append((f"equalised channels, GPTQ, ranges at {tail:g}%", {**even, **ranges}))
        steps.append((f"GPTQ, ranges at {tail:g}%", {**gptq, **ranges}))
    steps.append(("equalised channels, GPTQ, ranges of least error", {**even, "ranges": "mse"}))
    tried = []
    for technique, changes in steps:
        asked = options.model_copy(update=changes)
        if asked not in tried:
            tried.append(asked)
            yield technique, changes


def _raise_layers(run: _Run, options: Quantize, groups: Sequence[tuple[str, ...]]) -> None:
    """Raise 1, 2, 4 ... of the first groups; then the fewest between the last two."""
    base = run.best_changes

    def attempt(count: int) -> bool:
        names = tuple(name for group in groups[:count] for name in group)
        technique = f"{len(names)} layer{'s' if len(names) > 1 else ''} in float"
        return run.attempt(technique, options, base, names)

    enough, short = 1, 0
    while not run.late and not attempt(enough):
        if enough == len(groups):
            return
        short, enough = enough, min(2 * enough, len(groups))
    while enough - short > 1 and not run.late:
        middle = (short + enough) // 2
        short, enough = (short, middle) if attempt(middle) else (middle, enough)


class _Run:
    """A search under way."""

    def __init__(
        self,
        maker: Maker,
        options: Quantize,
        goal: Goal,
        judge: Judge,
        latency: Callable[[Path], float],
        clock: Callable[[], float],
    ) -> None:
        self._maker, self._options, self._goal, self._judge = maker, options, goal, judge
        self._latency, self._clock, self._begin = latency, clock, clock()
        self._kept: tuple[Made, Trial, dict[str, Any]] | None = None
        self.trials: list[Trial] = []
        self.refused: list[str] = []
        self.untried = ""

    @property
    def late(self) -> bool:
        if self._clock() - self._begin <= self._goal.time_limit_s:
            return False
        self.untried = f"the time limit of {self._goal.time_limit_s} s was reached"
        return True

    @property
    def done(self) -> bool:
        """Whether the goal is reached, or the time is up."""
        return bool(self.trials) and (any(trial.meets for trial in self.trials) or self.late)

    @property
    def made(self) -> Made:
        assert self._kept is not None
        return self._kept[0]

    @property
    def best_changes(self) -> dict[str, Any]:
        assert self._kept is not None
        return dict(self._kept[2])

    def attempt(
        self,
        technique: str,
        options: Quantize,
        changes: Mapping[str, Any],
        float_layers: tuple[str, ...] = (),
    ) -> bool:
        """Make and judge one file; keep it when it is the best so far.

        Returns:
            Whether it reaches the goal. Not so where the technique does not know the model: that
            is noted, and the search goes on.

        Raises:
            StageError: the recipe's own options do not make a file.
        """
        import re

        from edgefuse.errors import StageError

        begin = self._clock()
        more = dict(changes)
        if float_layers:
            more["keep_float"] = (
                *options.keep_float,
                *(f"^{re.escape(name)}$" for name in float_layers),
            )
        path = self._maker.material.work / f"trial{len(self.trials)}.tflite"
        try:
            made = self._maker.make(options.model_copy(update=more), path)
        except StageError as error:
            if not self.trials:
                raise
            path.unlink(missing_ok=True)
            self.refused.append(f"{technique}: {error.message}")
            return False
        self._take(made, technique, more, float_layers, begin)
        return self.trials[-1].meets

    def fine_tune(
        self, options: Quantize, last_resort: Callable[[Quantize], tuple[Made, str]]
    ) -> None:
        begin, base = self._clock(), self.best_changes
        base.pop("keep_float", None)
        made, technique = last_resort(options.model_copy(update=base))
        self._take(made, technique, {**base, "qat": "the recipe's"}, (), begin)

    def _take(
        self,
        made: Made,
        technique: str,
        changes: dict[str, Any],
        float_layers: tuple[str, ...],
        begin: float,
    ) -> None:
        score = self._judge.score(made.path)
        meets = shortfall(score, self._goal) <= 0
        ratio = self._latency(made.path) if float_layers else None
        trial = Trial(
            technique, changes, score, meets, float_layers, ratio, round(self._clock() - begin, 2)
        )
        self.trials.append(trial)
        # Nobody knows how many there will be.
        told = f"candidate {len(self.trials)}, {technique}: {score.told()}"
        self._maker.material.progress(len(self.trials), 0, told)
        if self._kept is None or self._better(trial, self._kept[1]):
            previous, self._kept = self._kept, (made, trial, dict(changes))
            if previous is not None:
                previous[0].path.unlink(missing_ok=True)
        else:
            made.path.unlink(missing_ok=True)

    def _better(self, trial: Trial, kept: Trial) -> bool:
        """Nearer the goal, then with less noise; when both reach it, with fewer float layers."""
        if trial.meets and kept.meets:
            return len(trial.float_layers) < len(kept.float_layers)
        near, nearest = (shortfall(one.score, self._goal) for one in (trial, kept))
        return (near, -trial.score.sqnr_db) < (nearest, -kept.score.sqnr_db)

    def time_best(self) -> None:
        """Measure the best full-integer file, for the frontier."""
        from dataclasses import replace

        assert self._kept is not None
        made, trial, changes = self._kept
        timed = replace(trial, latency_ratio=self._latency(made.path))
        self.trials[self.trials.index(trial)] = timed
        self._kept = (made, timed, changes)

    def found(self, blamed: tuple[Blamed, ...]) -> Found:
        assert self._kept is not None
        made, trial, _ = self._kept
        refused = tuple(dict.fromkeys(self.refused))
        return Found(made, trial, tuple(self.trials), blamed, self.untried, refused)
