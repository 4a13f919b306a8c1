"""The command about memory: arenas, and training steps within budgets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from edgefuse.cli_app import JsonOption, QuietOption, SetOption, TargetOption, app
from edgefuse.ending import print_result, say
from edgefuse.errors import UsageError


@app.command()
def memory(
    source: Annotated[Path, typer.Argument(help="A recipe, or an .onnx or .tflite file.")],
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
    from edgefuse.command_memory import memory as planned
    from edgefuse.sizes import bytes_of

    document, picture, error = planned(
        source,
        memory_bytes=None if there is None else bytes_of(there, "--memory"),
        settings=settings,
        target=target,
        svg=svg,
        quiet=quiet or as_json,
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    else:
        from edgefuse.report.memory import memory_table

        encoding = sys.stdout.encoding or "ascii"
        print_result(memory_table(document, encoding=encoding, paths=[str(picture)]))
    if error is not None:
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code)


def _training_memory(
    source: Path, budgets: list[str], settings: list[str], as_json: bool, quiet: bool
) -> None:
    from edgefuse.command_memory_training import training_memory

    document, error = training_memory(
        source, budgets=budgets, settings=settings, quiet=quiet or as_json
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    else:
        from edgefuse.report.memory_training import training_table

        print_result(training_table(document, encoding=sys.stdout.encoding or "ascii"))
    if error is not None:
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code)
