"""What a model costs on a device, beside others: measured until every check is decided.

Problem: a machine's milliseconds drift by more than the difference that is asked for, an emulator's
instruction counts do not drift at all, and a device may be reached for a while only. So files run
interleaved, ratios are taken between neighbours in time, and a measurement that leaves a check
inconclusive is repeated a bounded number of times, all its rounds counting together.

``again`` is the reference's second copy: the ratio of the two is 1 but for noise, and its distance
from 1 stands beside the ratios as ``noise_band``.

Sustained: it is measured until the time is over, and the second half judged. A board that grows hot
slows down; both halves' medians are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.devices.device import Cost, Device, Provenance, Unit
from edgefuse.errors import RecipeError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.recipe import LatencyGate
    from edgefuse.verdict import Check

    Array = np.ndarray[Any, Any]

Rows = tuple[tuple[float, ...], ...]


@dataclass
class Series:
    """Costs of named files over one or several measurements.

    Attributes:
        rows: [process][round] of each file, in ``unit``; one value where the device counts exactly.
        operators: each file's cost by operator, where the device can tell.
        conditions: of the last measurement.
        measurements: how many there were.
        halves: medians of the int8 file in the first and second half of a sustained one.
    """

    unit: Unit
    provenance: Provenance
    rows: dict[str, Rows]
    operators: dict[str, tuple[float, ...]]
    conditions: Mapping[str, Any]
    measurements: int = 1
    halves: tuple[float, ...] = field(default=())

    @property
    def exact(self) -> bool:
        """Whether the figures have no noise."""
        return self.unit != "ms"

    def values(self, name: str) -> Array:
        """[processes, rounds]"""
        import numpy as np

        return np.array(self.rows[name])

    def figures(self) -> dict[str, Any]:
        """For evidence: rounded to what is meaningful."""
        import numpy as np

        found: dict[str, Any] = {"unit": self.unit}
        for name in self.rows:
            if name != "again":
                values = self.values(name).ravel()
                found[name] = (
                    {self.unit: round(float(values[0]))}
                    if self.exact
                    else {
                        f"p{percent}_{self.unit}": round(float(np.percentile(values, percent)), 4)
                        for percent in (50, 90)
                    }
                )
        for name in ("float", "baseline"):
            if name in self.rows:
                ratios = np.median(self.values("int8") / self.values(name), axis=1)
                found[f"ratio_to_{name}"] = round(float(np.median(ratios)), 4)
                if not self.exact:
                    found[f"process_ratios_to_{name}"] = [round(float(r), 4) for r in ratios]
        if not self.exact:
            pairs = np.median(self.values("again") / self.values(self.reference), axis=1)
            found["noise_band"] = round(float(np.abs(pairs - 1).max()), 4)
            found["measurements"] = self.measurements
        if self.halves:
            found["sustained_p50_ms"] = [round(value, 4) for value in self.halves]
        if self.operators.get("int8"):
            found["operators_of_int8"] = [round(value) for value in self.operators["int8"]]
        return {**found, "conditions": dict(self.conditions)}

    @property
    def reference(self) -> str:
        """The file that ``again`` is a copy of."""
        return reference(self.rows)


def reference(files: Mapping[str, Any]) -> str:
    """Of several files the one that runs twice."""
    return next(name for name in ("float", "baseline", "int8") if name in files)


def measure(
    device: Device,
    files: Mapping[str, Path],
    feeds: Mapping[str, Mapping[str, Array]],
    gate: LatencyGate,
    *,
    judge: Callable[[Series], Sequence[Check]],
    progress: Callable[[int, int, str], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Series, Sequence[Check]]:
    """Measure until ``judge`` finds no check inconclusive, at most ``gate.repeats`` times.

    Args:
        files: ``int8``, and what it is compared with: ``float``, ``baseline``.
        feeds: of each file.

    Raises:
        DeviceUnavailable, StageError, ToolError, Inconclusive: as the device's ``cost``.
    """
    names = [*files, "again"]
    paths = [*files.values(), files[reference(files)]]
    fed = [*(feeds[name] for name in files), feeds[reference(files)]]

    def once() -> Cost:
        return device.cost(paths, fed, processes=gate.processes, rounds=gate.rounds)

    begin = clock()
    costs = [once()]
    while costs[0].unit == "ms" and (gone := clock() - begin) < gate.sustained_s:
        progress(int(gone), gate.sustained_s, "seconds of sustained load")
        costs.append(once())
    halves = _halves(costs, names.index("int8")) if gate.sustained_s else ()
    if halves:
        costs = costs[len(costs) // 2 :]
    while True:
        progress(len(costs), 0, "measurements")
        series = _joined(names, costs, halves)
        checks = judge(series)
        decided = all(check.answer != "inconclusive" for check in checks)
        if decided or series.exact or len(costs) >= gate.repeats:
            return series, checks
        costs.append(once())


def checks_of(
    series: Series, gate: LatencyGate, ratio_limit: float | None, seed: int
) -> list[Check]:
    """The gate's checks on a measurement.

    Args:
        ratio_limit: the limit of the ratio to float; None for none.

    Raises:
        RecipeError: a threshold in a unit that this target does not give.
    """
    import numpy as np

    from edgefuse.bounds import paired_ratio, time_percentile_bound
    from edgefuse.verdict import Check

    int8 = series.values("int8")
    found = []
    for name, limit in (("float", ratio_limit), ("baseline", gate.max_ratio_to_baseline)):
        if limit is None:
            continue
        said, n = f"ratio to {name}", int8.size
        if series.exact:
            value = bound = float(int8[0, 0] / series.values(name)[0, 0])
        else:
            ratio = paired_ratio(int8, series.values(name), seed=seed)
            value, bound = ratio.median, ratio.upper
        found.append(Check(said, value, bound, "<=", limit, "", n))
    for key, unit, name in (
        ("max_p90_ms", "ms", "p90"),
        ("max_instructions", "instructions", "instructions"),
        ("max_cycles", "cycles", "cycles"),
    ):
        most = getattr(gate, key)
        if most is None:
            continue
        if series.unit != unit:
            raise RecipeError(
                f"cannot be judged: this target gives {series.unit}",
                hint="give this target its own thresholds under gates.targets",
                where=f"gates.latency.{key}",
            )
        if unit == "ms":
            p90 = time_percentile_bound(int8, 90.0, seed=seed)
            found.append(Check(name, p90.point, p90.bound, "<=", most, "ms", int8.size))
        else:
            exact = float(np.max(int8))
            found.append(Check(name, exact, exact, "<=", float(most), "", 1))
    return found


def _joined(names: Sequence[str], costs: Sequence[Cost], halves: tuple[float, ...]) -> Series:
    last = costs[-1]
    return Series(
        last.unit,
        last.provenance,
        {
            name: tuple(row for cost in costs for row in cost.rows[k])
            for k, name in enumerate(names)
        },
        dict(zip(names, last.operators)),
        last.conditions,
        len(costs),
        halves,
    )


def _halves(costs: Sequence[Cost], place: int) -> tuple[float, ...]:
    """Medians of a file in the first and the second half of the measurements."""
    import statistics

    middle = len(costs) // 2
    parts = (costs[:middle], costs[middle:]) if middle else (costs, costs)
    return tuple(
        statistics.median(t for cost in part for row in cost.rows[place] for t in row)
        for part in parts
    )
