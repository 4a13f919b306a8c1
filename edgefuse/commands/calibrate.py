"""``edgefuse calibrate-target``: what an emulated CPU's instructions come to on a real board.

The int8 models of some bundles are counted under emulation and timed on the board; the ratio of the
two, its median over the models, turns later counts into estimated milliseconds. How far single
models are from it is kept as the spread: few models, or all of a kind, make it look too small.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from edgefuse.archive import unpack
from edgefuse.artifact import digest_file
from edgefuse.errors import StageError, UsageError
from edgefuse.store import write_changed
from edgefuse.target import (
    CalibratedModel,
    Calibration,
    Target,
    calibration_file,
    load_target,
    target_file,
)

_PROCESSES = 5
_ROUNDS = 40


def calibrate(
    target_name: str, board_name: str, bundles: Sequence[Path], tell: Callable[[str], None]
) -> tuple[Calibration, Path]:
    """Count, time, and write the calibration beside the target's file.

    Raises:
        UsageError: a target that is not emulated, a board that is not a real one, no bundle.
        DeviceUnavailable: the board cannot be reached, or the emulator is not set up.
        StageError: a file that is no bundle, or a runtime that refuses its model.
    """
    place = target_file(target_name)
    target, board = load_target(target_name), load_target(board_name)
    if target.emulator is None:
        raise UsageError(f"{target.name} is not emulated: its figures are times already")
    if board.device not in ("host", "remote"):
        raise UsageError(
            f"{board.name} is no real board", hint="give a target that is reached by ssh or adb"
        )
    if not bundles:
        raise UsageError("no bundle to calibrate with", hint="give one or more with --bundle")
    with tempfile.TemporaryDirectory(prefix="edgefuse-calibrate-") as folder:
        work = Path(folder)
        models = [_int8_model(bundle, work / str(n)) for n, bundle in enumerate(bundles)]
        tell(f"{target.name}: counting {len(models)} models")
        counts, _ = _costs(target, models, work / "count")
        tell(f"{board.name}: timing {len(models)} models")
        times, runtime = _costs(board, models, work / "time")
        rows = tuple(
            CalibratedModel(sha256=digest_file(model), instructions=round(count), p50_ms=time)
            for model, count, time in zip(models, counts, times)
        )
    ratios = [row.p50_ms / row.instructions * 1e6 for row in rows]
    middle = statistics.median(ratios)
    found = Calibration(
        board=board.name,
        runtime=runtime,
        ms_per_million_instructions=float(f"{middle:.6g}"),
        spread_percent=round(100 * max(abs(r / middle - 1) for r in ratios), 2),
        models=rows,
    )
    path = calibration_file(place)
    write_changed(path, (found.model_dump_json(indent=1) + "\n").encode())
    return found, path


def _costs(target: Target, models: Sequence[Path], work: Path) -> tuple[list[float], str]:
    """The median cost of one invoke of each model, and the runtime."""
    from edgefuse.devices.device import open_device
    from edgefuse.devices.measure.bench_worker import random_feeds
    from edgefuse.tflite.read import read_model, signature_of

    work.mkdir()
    device = open_device(target, work, work / "log")
    feeds = [random_feeds(signature_of(read_model(model)), 0) for model in models]
    found = device.cost(models, feeds, processes=_PROCESSES, rounds=_ROUNDS)
    medians = [statistics.median(v for row in rows for v in row) for rows in found.rows]
    return medians, device.describe()


def _int8_model(bundle: Path, folder: Path) -> Path:
    if not bundle.is_file():
        raise UsageError(f"no such bundle: {bundle}")
    folder.mkdir()
    found = [n for n in unpack(bundle, folder) if n.endswith("_full_integer_quant.tflite")]
    if len(found) != 1:
        raise StageError("no bundle of edgefuse: it holds no int8 model", where=str(bundle))
    return folder / found[0]
