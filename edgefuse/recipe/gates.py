"""Section ``gates``: what a model must pass before it is packaged."""

from pydantic import Field, model_validator
from typing_extensions import Self

from edgefuse.recipe.files import LocalFile
from edgefuse.recipe.quantize import Goal
from edgefuse.section import NAME, Bytes, Section


class AccuracyGate(Section):
    """On data.evaluation, judged by the one-sided 95% bound, resampled by source picture."""

    min_agreement_percent: float | None = Field(
        None, gt=0, le=100, description="Samples whose first class is the float model's."
    )
    min_sqnr_db: float | None = Field(
        None, description="Signal of a float output to the error of the int8 one; the least of all."
    )
    max_drop_points: float | None = Field(None, ge=0, description="Top-1; needs labels.")
    resamples: int = Field(2000, ge=200, description="Bootstrap resamples.")

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        limits = (self.min_agreement_percent, self.min_sqnr_db, self.max_drop_points)
        if all(limit is None for limit in limits):
            raise ValueError("a gate without a threshold decides nothing: give at least one")
        return self


class MemoryGate(Section):
    """Bytes the target's runtime needs for the int8 model."""

    max_arena_bytes: Bytes = Field(
        description="Activations, built-in kernels; in bytes or as 512KiB."
    )
    max_model_bytes: Bytes | None = Field(
        None, description="Size of the .tflite file, in bytes or as 2MiB."
    )


class LatencyGate(Section):
    """Int8 on the target, beside the float file and an earlier bundle, interleaved.

    A machine or a board is timed in milliseconds, an emulated CPU counted in instructions, an NPU
    estimated in cycles: ratios are of whatever the target gives.
    """

    max_ratio_to_float: float | None = Field(
        None, gt=0, description="Median of int8 over float, round by round."
    )
    max_ratio_without_int8_dot: float | None = Field(
        None,
        gt=0,
        description="Instead of max_ratio_to_float on a CPU without an int8 dot product (VNNI, "
        "AMX, ARM dotprod or i8mm), where int8 arithmetic is no faster than float. Which of the "
        "two was applied is recorded as evidence.",
    )
    max_p90_ms: float | None = Field(None, gt=0, description="Only sensible on one known board.")
    max_instructions: int | None = Field(
        None, gt=0, description="Of one invoke; targets that count instructions."
    )
    max_cycles: int | None = Field(None, gt=0, description="Of one invoke; targets with an NPU.")
    baseline: LocalFile | None = Field(
        None, description="An earlier bundle of the same model, e.g. the one released last."
    )
    max_ratio_to_baseline: float | None = Field(
        None, gt=0, description="Of the int8 file to the baseline's."
    )
    processes: int = Field(5, ge=2, le=50, description="Fresh processes.")
    rounds: int = Field(40, ge=10, description="Interleaved rounds a process.")
    repeats: int = Field(
        3,
        ge=1,
        le=20,
        description="How often it is measured at most while a check is inconclusive; all rounds "
        "count together.",
    )
    sustained_s: int = Field(
        0,
        ge=0,
        le=86400,
        description="Measure for so long, and judge the second half: a board that grows hot slows "
        "down.",
    )

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        if self.max_ratio_without_int8_dot is not None and self.max_ratio_to_float is None:
            raise ValueError("max_ratio_without_int8_dot needs max_ratio_to_float beside it")
        if (self.baseline is None) != (self.max_ratio_to_baseline is None):
            raise ValueError("baseline and max_ratio_to_baseline need each other")
        limits = (
            *(self.max_ratio_to_float, self.max_p90_ms, self.max_instructions),
            *(self.max_cycles, self.max_ratio_to_baseline),
        )
        if all(limit is None for limit in limits):
            raise ValueError("a gate without a threshold decides nothing: give at least one")
        return self


class TargetGates(Section):
    """Gates on one target instead of the recipe's own; null: none there, which is recorded."""

    accuracy: AccuracyGate | None = None
    memory: MemoryGate | None = None
    latency: LatencyGate | None = None


class Gates(Section):
    """What the model must pass before it is packaged."""

    accuracy: AccuracyGate | None = None
    memory: MemoryGate | None = None
    latency: LatencyGate | None = None
    targets: dict[NAME, TargetGates] = Field(
        default_factory=dict,
        description="Other thresholds on a target, by its name: a gate given here replaces the "
        "recipe's as a whole.",
    )

    def on(self, target: str) -> Self:
        """The gates as they are on a target."""
        own = self.targets.get(target)
        if own is None:
            return self
        return self.model_copy(update={n: getattr(own, n) for n in own.model_fields_set})


def check_goal_reaches(goal: Goal, gate: AccuracyGate) -> None:
    """Refuse a goal that is met where the gate's own threshold is not.

    Raises:
        ValueError: it is.
    """
    agreement = None if goal.min_agreement is None else 100 * goal.min_agreement
    for key, own, theirs, sign in (
        ("max_drop_points", goal.max_drop_points, gate.max_drop_points, -1),
        ("min_sqnr_db", goal.min_sqnr_db, gate.min_sqnr_db, 1),
        ("min_agreement", agreement, gate.min_agreement_percent, 1),
    ):
        if own is not None and theirs is not None and sign * (own - theirs) < -1e-9:
            raise ValueError(
                f"quantize.goal.{key} is met at {own:g}, where gates.accuracy still fails "
                f"({theirs:g}): ask of the goal at least what the gate asks"
            )
