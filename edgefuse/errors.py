"""Every failure edgefuse reports, with the exit code it ends the process with.

::

    EdgefuseError                 3   a stage or tool failed
    |-- UsageError                2   the command line is wrong
    |-- RecipeError               2   a recipe or target file is wrong (file:line, key path)
    |-- GateFailed                1   a gate did not pass
    |-- SourceError               3   a model or its weights cannot be used
    |-- DataError                 3   a sample set cannot be used
    |-- FetchError                3   a download failed on every mirror, or has the wrong hash
    |-- ParityError               3   a stage changed the numbers
    |-- StageError                3   a stage cannot do its work
    |-- ToolError                 3   a foreign tool or library failed or is missing
    |-- StoreError                3   the store cannot be read or written (full disk, permissions)
    |-- DeviceUnavailable         4   a target cannot be reached
    |   `-- ConnectionCut         4   the way to it broke while something was done there
    |-- Inconclusive              4   a gate could not be decided
    |-- FleetFailed             any   devices of a fleet failed; the worst of their exit codes
    `-- ReleaseStopped          any   a recipe of `release` did not pass; that run's exit code

A run ended by Ctrl-C exits with 130. Errors are raised where the cause is known; exceptions of
foreign libraries are translated where the library is imported; ``cli.py`` alone catches.
"""

from __future__ import annotations

from collections.abc import Mapping

EXIT_INTERRUPTED = 130
EXIT_CODES: Mapping[int, str] = {
    0: "every requested stage ran and every gate passed",
    1: "a gate did not pass",
    2: "the recipe or the command line is wrong",
    3: "a stage or a tool failed",
    4: "a device is unavailable, or a gate is inconclusive",
    130: "interrupted (Ctrl-C)",
}


class EdgefuseError(Exception):
    """A failure that a user can act on.

    Args:
        message: what is wrong, one sentence.
        hint: the remedy, one sentence; empty when there is none.
        where: the place: ``file:line``, a node, a tensor, a path.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{place}{self.message}{remedy}"


class UsageError(EdgefuseError):
    exit_code = 2


class RecipeError(EdgefuseError):
    exit_code = 2


class GateFailed(EdgefuseError):
    exit_code = 1


class SourceError(EdgefuseError):
    pass


class DataError(EdgefuseError):
    pass


class FetchError(EdgefuseError):
    pass


class ParityError(EdgefuseError):
    pass


class StageError(EdgefuseError):
    pass


class ToolError(EdgefuseError):
    pass


class StoreError(EdgefuseError):
    pass


class DeviceUnavailable(EdgefuseError):
    exit_code = 4


class Inconclusive(EdgefuseError):
    exit_code = 4
