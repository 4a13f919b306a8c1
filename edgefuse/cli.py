"""The command line. Each command is one call into the package; only this module exits."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from edgefuse import cli_bundles, cli_memory, cli_targets
from edgefuse.cli_app import (
    FromOption,
    JsonOption,
    MeasureOption,
    OutOption,
    PassphraseOption,
    QuietOption,
    RecipeArgument,
    SetOption,
    SignOption,
    TargetOption,
    UntilOption,
    VerboseOption,
    app,
    command_line,
    encoding,
    end_by,
    tell,
)
from edgefuse.ending import guarded, print_result, say

__all__ = [
    "app",
    "cli_bundles",
    "cli_memory",
    "cli_targets",
    "main",
]  # Importing them registers commands.


@app.command()
def run(
    recipe: RecipeArgument,
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    until: UntilOption = None,
    start: FromOption = None,
    out: OutOption = None,
    measure: MeasureOption = False,
    sign: SignOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a recipe: every stage, every gate, the bundle and the report."""
    from edgefuse.commands.run import run_recipe
    from edgefuse.plan import Selection

    document, folder = run_recipe(
        recipe,
        settings=settings,
        target=target,
        selection=Selection(until, start, measure),
        out=out,
        quiet=quiet or as_json,
        verbose=verbose,
        command=command_line(),
        sign=sign,
        passphrase_file=passphrase_file,
    )

    def words() -> str:
        from edgefuse.report.table import verdict_table

        paths = [str(folder / "report.html")]
        return verdict_table(document, 100, encoding=encoding(), paths=paths)

    tell(document, words, as_json=as_json, quiet=quiet)
    error = document["error"]
    if error:
        place = f"{error['where']}: " if error["where"] else ""
        hint = f"\n  hint: {error['hint']}" if error["hint"] else ""
        say(f"edgefuse: {place}{error['message']}{hint}\n  log: {folder / 'edgefuse.log'}")
        raise typer.Exit(document["exit_code"])


@app.command()
def compare(
    recipe: RecipeArgument,
    names: Annotated[list[str], typer.Option("--row", help="Only this row; may be repeated.")] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each row.")] = 15,
    invokes: Annotated[int, typer.Option(min=1, help="Timed invocations a burst.")] = 5,
    settings: SetOption = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="Output folder; build/<recipe>/compare/ if absent.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Time the model in other toolchains beside edgefuse's, in turns: one thread, or a GPU."""
    from edgefuse.commands.compare import compare_recipe

    document, folder = compare_recipe(
        recipe,
        settings=settings,
        names=names,
        rounds=rounds,
        invokes=invokes,
        out=out,
        quiet=quiet or as_json,
        verbose=verbose,
        command=command_line(),
    )

    def words() -> str:
        from edgefuse.report.comparison import comparison_table

        paths = [str(folder / "compare.html")]
        return comparison_table(document, encoding=encoding(), paths=paths)

    tell(document, words, as_json=as_json, quiet=quiet)
    failed = [row["name"] for row in document["rows"] if row["status"] == "error"]
    if failed:
        say(f"edgefuse: rows failed: {', '.join(failed)}\n  logs: {folder / 'logs'}")
        raise typer.Exit(document["exit_code"])


@app.command()
def explain(
    source: Annotated[Path, typer.Argument(help="A recipe, or an .onnx file.")],
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    node: Annotated[
        str | None, typer.Option(help="Only what concerns this node or torch module.")
    ] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Tell what fused, what did not and why, and the TFLite operator where each ended."""
    from edgefuse.commands.explain import explain as explained

    document, error = explained(
        source,
        settings=settings,
        target=target,
        node=node,
        refused_only=refused,
        quiet=quiet or as_json,
    )

    def words() -> str:
        from edgefuse.report.explanation import explanation_text

        return explanation_text(document, encoding=encoding(), refused_only=refused)

    tell(document, words, as_json=as_json)
    end_by(error)


@app.command()
def blame(
    recipe: RecipeArgument,
    int8_file: Annotated[
        Path | None,
        typer.Option("--int8", help="Another tool's int8 file of this model, blamed instead."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of data.evaluation, spread over it.")] = 32,
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder; build/<recipe>/blame/ if absent.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Tell which layer of the int8 model costs what, and what is wrong with it."""
    from edgefuse.commands.blame import blame_recipe

    document, folder = blame_recipe(
        recipe,
        int8_file=int8_file,
        samples=samples,
        settings=settings,
        target=target,
        out=out,
        quiet=quiet or as_json,
        verbose=verbose,
        command=command_line(),
    )

    def words() -> str:
        from edgefuse.report.blame import blame_table

        paths = [str(folder / "blame.html")]
        return blame_table(document, encoding=encoding(), paths=paths)

    tell(document, words, as_json=as_json, quiet=quiet)


@app.command()
def plan(
    recipe: RecipeArgument,
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    until: UntilOption = None,
    start: FromOption = None,
    measure: MeasureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what would run, cached or not. Changes nothing."""
    from edgefuse.commands.inspect import plan_lines, plan_rows
    from edgefuse.plan import Selection

    rows = plan_rows(recipe, settings, target, Selection(until, start, measure))
    tell(rows, lambda: "\n".join(plan_lines(rows)), as_json=as_json)


@app.command()
def why(
    recipe: RecipeArgument,
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what changed since the cached run, stage by stage."""
    from edgefuse.commands.inspect import why_lines, why_rows

    rows = why_rows(recipe, settings, target)
    tell(rows, lambda: "\n".join(why_lines(rows)), as_json=as_json)


@app.command()
def show(
    artifact: Annotated[str, typer.Argument(help="A file that a run wrote, or its SHA-256.")],
    as_json: JsonOption = False,
) -> None:
    """Show an artifact's lineage: the stages, inputs, versions and evidence that made it."""
    from edgefuse.commands.inspect import lineage, lineage_lines

    tree = lineage(artifact)
    tell(tree, lambda: "\n".join(lineage_lines(tree)), as_json=as_json)


@app.command()
def init(
    source: Annotated[str, typer.Argument(help="module:callable, or an .onnx or .tflite file.")],
    out: Annotated[Path, typer.Option(help="The recipe to write.")] = Path("recipe.yaml"),
    shape: Annotated[
        str, typer.Option(help="Input shape of a torch model, as 1,3,224,224.")
    ] = "1,3,224,224",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a recipe for your own model, to be completed where it says so."""
    from edgefuse.commands.init import write_recipe

    for line in write_recipe(source, out, shape, force):
        print_result(line)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check the environment: versions, disk, optional tools; name each remedy."""
    from edgefuse.commands.doctor import examine

    findings = examine()
    rows = [vars(finding) for finding in findings]
    tell(rows, lambda: "\n".join(finding.line for finding in findings), as_json=as_json)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(3)


@app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from edgefuse.recipe import Recipe

    print_result(json.dumps(Recipe.model_json_schema(by_alias=True), indent=1))


@app.command()
def passes() -> None:
    """List the fusion passes in the order they run."""
    from edgefuse.graph.pipeline import ordered_passes

    for one in ordered_passes():
        after = f" (after {', '.join(one.after)})" if one.after else ""
        print_result(f"{one.phase:<10} {one.name:<28} {one.summary}{after}")


# As `--help` lists them: on the way from a recipe to a device, then what explains and checks.
_ORDER = (
    *("run", "release", "push", "rollback", "status", "prune", "verify", "sign", "keygen"),
    *("explain", "blame", "memory", "compare", "conformance"),
    *("targets", "setup", "calibrate-target"),
    *("plan", "why", "show", "init", "doctor", "schema", "passes"),
)


def _place(command: typer.models.CommandInfo) -> int:
    return _ORDER.index(command.name or command.callback.__name__)  # type: ignore[union-attr]


app.registered_commands.sort(key=_place)


def main() -> NoReturn:
    """The entry point.

    Start-up makes no garbage, and looking for it takes a tenth of a cached run; the runner turns
    collection on before a stage does real work. Neither does a recipe need pydantic's plugins,
    which are looked for in every installed distribution. Streams that the caller closed swallow.
    """
    for name in ("stdin", "stdout", "stderr"):  # in the order of their descriptors
        if getattr(sys, f"__{name}__") is None:
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.exit(guarded(app))


if __name__ == "__main__":
    main()
