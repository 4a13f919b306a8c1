"""The command about memory: arenas, and training steps within budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgefuse.cli_app import (
    JsonOption,
    QuietOption,
    SetOption,
    TargetOption,
    app,
    encoding,
    end_by,
    tell,
)
from edgefuse.errors import UsageError


@app.command()
def memory(
    source: Annotated[
        Path,
        typer.Argument(
            help="A recipe, or an .onnx or .tflite file (judged by tflite-micro without --target)."
        ),
    ],
    there: Annotated[
        str | None,
        typer.Option("--memory", help="What there is, as 512KiB: the largest batch, and tiles."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="The picture; build/<name>/memory/memory.svg if absent.")
    ] = None,
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    training: Annotated[
        bool, typer.Option("--training", help="A training step's peak and time instead.")
    ] = False,
    budgets: Annotated[
        list[str], typer.Option("--budget", help="Of its peak, as 40% or 300MiB; may be repeated.")
    ] = [],  # noqa: B006
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Tell what the arena is made of, its lower bound, and what each technique would save."""
    if budgets and not training:
        raise UsageError("--budget is of a training step: it needs --training")
    if training:
        if there or svg or target:
            raise UsageError("--training knows no --memory, --svg or --target")
        _training_memory(source, budgets, settings, as_json, quiet)
        return
    from edgefuse.commands.memory import memory as planned
    from edgefuse.sizes import bytes_of

    document, picture, error = planned(
        source,
        memory_bytes=None if there is None else bytes_of(there, "--memory"),
        settings=settings,
        target=target,
        svg=svg,
        quiet=quiet or as_json,
    )

    def words() -> str:
        from edgefuse.report.memory import memory_table

        return memory_table(document, encoding=encoding(), paths=[str(picture)])

    tell(document, words, as_json=as_json)
    end_by(error)


def _training_memory(
    source: Path, budgets: list[str], settings: list[str], as_json: bool, quiet: bool
) -> None:
    from edgefuse.commands.memory_training import training_memory

    document, error = training_memory(
        source, budgets=budgets, settings=settings, quiet=quiet or as_json
    )

    def words() -> str:
        from edgefuse.report.memory_training import training_table

        return training_table(document, encoding=encoding())

    tell(document, words, as_json=as_json)
    end_by(error)
