"""Commands on targets: list, set up, calibrate, and how their kernels agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgefuse.cli_app import JsonOption, QuietOption, app, tell
from edgefuse.ending import print_result, say


@app.command()
def targets() -> None:
    """List the targets, what each needs, and whether it was ever tried on hardware."""
    from edgefuse.commands.setup import target_lines

    for line in target_lines():
        print_result(line)


@app.command()
def setup(
    names: Annotated[list[str], typer.Argument(metavar="TARGET...", help="Names of targets.")],
    quiet: QuietOption = False,
) -> None:
    """Prepare targets: emulators, runtimes and runners, in the cache, without root."""
    from edgefuse.commands.setup import set_up

    for line in set_up(names, (lambda line: None) if quiet else say):
        print_result(line)


@app.command("calibrate-target")
def calibrate_target(
    target: Annotated[str, typer.Argument(help="An emulated target.")],
    board: Annotated[str, typer.Option(help="The target of the real board.")],
    bundles: Annotated[
        list[Path], typer.Option("--bundle", help="With an int8 model; may be repeated.")
    ],
) -> None:
    """Measure on a real board what an emulated target's instructions come to in milliseconds."""
    from edgefuse.commands.calibrate import calibrate

    found, path = calibrate(target, board, bundles, say)
    print_result(
        f"{target}: {found.ms_per_million_instructions:.4g} ms per million instructions on "
        f"{found.board}, single models within {found.spread_percent:g}% ({len(found.models)})"
        f" -> {path}"
    )


@app.command()
def conformance(
    source: Annotated[
        Path, typer.Argument(help="A .tflite file, a .bundle.tar, or a run's output folder.")
    ],
    names: Annotated[
        list[str],
        typer.Option("--path", help="Only this kernel path or target; may be repeated."),
    ] = [],  # noqa: B006
    within: Annotated[
        int, typer.Option(min=0, help="Steps of the output (LSB) that do not count as different.")
    ] = 16,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run golden vectors on every kernel path here: bit-exact, within n LSB, or different."""
    from edgefuse.commands.conformance import conformance_lines, examine_conformance

    document, code = examine_conformance(
        source,
        names=names,
        max_lsb=within,
        progress=lambda name: None if quiet or as_json else say(f"  {name}"),
    )
    tell(document, lambda: "\n".join(conformance_lines(document)), as_json=as_json)
    if code:
        raise typer.Exit(code)
