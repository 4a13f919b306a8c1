"""The command line. Each command is one call into the package; only this module exits."""

from __future__ import annotations

import gc
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from edgefuse.ending import guarded, print_result, say
from edgefuse.errors import EXIT_CODES, EdgefuseError

if TYPE_CHECKING:
    from edgefuse.command_push import DeviceReport

_EXITS = "  ".join(f"{code}: {meaning}." for code, meaning in EXIT_CODES.items())

app = typer.Typer(
    name="edgefuse",
    help="From a trained PyTorch model to a gated int8 TFLite bundle: fused, proven, explained.",
    epilog=f"Exit codes: {_EXITS}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipeArgument = Annotated[Path, typer.Argument(help="The recipe, a YAML file.")]
SetOption = Annotated[
    list[str], typer.Option("--set", help="KEY.PATH=VALUE in the recipe; may be repeated.")
]
TargetOption = Annotated[str | None, typer.Option(help="Another target than the recipe's.")]
UntilOption = Annotated[str | None, typer.Option(help="Stop after this stage.")]
FromOption = Annotated[
    str | None, typer.Option("--from", help="Run this stage and all after anew.")
]
OutOption = Annotated[Path | None, typer.Option(help="Output folder; build/<recipe>/ if absent.")]
TargetsOption = Annotated[
    list[str], typer.Option("--target", help="Name of a target; may be repeated: a fleet.")
]
WaitOption = Annotated[
    float, typer.Option(min=0, help="Seconds that another push to the same device is waited for.")
]
MeasureOption = Annotated[bool, typer.Option("--measure", help="Measure latency anew.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Errors and warnings only.")]
SignOption = Annotated[
    Path | None, typer.Option("--sign", help="Private key that signs what passed (keygen).")
]
KeyOption = Annotated[
    Path | None, typer.Option(help="The only trusted public key; else those configured.")
]
PassphraseOption = Annotated[
    Path | None,
    typer.Option(help="File with the private key's passphrase; else EDGEFUSE_KEY_PASSPHRASE."),
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Say more.")]


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
    from edgefuse.command_run import run_recipe
    from edgefuse.plan import Selection

    document, folder = run_recipe(
        recipe,
        settings=settings,
        target=target,
        selection=Selection(until, start, measure),
        out=out,
        quiet=quiet or as_json,
        verbose=verbose,
        command=_command_line(),
        sign=sign,
        passphrase_file=passphrase_file,
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    elif not quiet:
        from edgefuse.report.table import verdict_table

        encoding = sys.stdout.encoding or "ascii"
        print_result(
            verdict_table(document, 100, encoding=encoding, paths=[str(folder / "report.html")])
        )
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
    """Time the model in other toolchains beside edgefuse's, in turns, one thread each."""
    from edgefuse.command_compare import compare_recipe

    document, folder = compare_recipe(
        recipe,
        settings=settings,
        names=names,
        rounds=rounds,
        invokes=invokes,
        out=out,
        quiet=quiet or as_json,
        verbose=verbose,
        command=_command_line(),
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    elif not quiet:
        from edgefuse.report.comparison import comparison_table

        encoding = sys.stdout.encoding or "ascii"
        paths = [str(folder / "compare.html")]
        print_result(comparison_table(document, encoding=encoding, paths=paths))
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
    from edgefuse.command_explain import explain as explained

    document, error = explained(
        source,
        settings=settings,
        target=target,
        node=node,
        refused_only=refused,
        quiet=quiet or as_json,
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    else:
        from edgefuse.report.explanation import explanation_text

        encoding = sys.stdout.encoding or "ascii"
        print_result(explanation_text(document, encoding=encoding, refused_only=refused))
    if error is not None:
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code)


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
    from edgefuse.command_blame import blame_recipe

    document, folder = blame_recipe(
        recipe,
        int8_file=int8_file,
        samples=samples,
        settings=settings,
        target=target,
        out=out,
        quiet=quiet or as_json,
        verbose=verbose,
        command=_command_line(),
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    elif not quiet:
        from edgefuse.report.blame import blame_table

        encoding = sys.stdout.encoding or "ascii"
        paths = [str(folder / "blame.html")]
        print_result(blame_table(document, encoding=encoding, paths=paths))


@app.command()
def release(
    recipes: Annotated[
        list[Path], typer.Argument(help="Recipes; those with release: true are built.")
    ],
    out: Annotated[Path, typer.Option(help="Where the bundles go.")] = Path("dist"),
    sign: SignOption = None,
    passphrase_file: PassphraseOption = None,
    quiet: QuietOption = False,
) -> None:
    """Build every recipe with release: true, measured anew; stop at the first that fails."""
    from edgefuse.command_release import release_all

    for line in release_all(
        recipes,
        out,
        quiet=quiet,
        command=_command_line(),
        sign=sign,
        passphrase_file=passphrase_file,
    ):
        print_result(line)


@app.command()
def verify(
    bundle: Annotated[Path, typer.Argument(help="A .bundle.tar with its evidence.json beside it.")],
    key: KeyOption = None,
    target: Annotated[
        str | None, typer.Option(help="That must have passed its gates; else any.")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build it again from its recipe; compare the bytes.")
    ] = False,
    sources: Annotated[
        Path | None,
        typer.Option(help="For --rebuild: the recipe's folder, if not here or in configs/."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Check a bundle: hashes, manifest, evidence, signature, golden vectors."""
    from edgefuse.command_verify import verification_lines, verify_bundle

    document, error = verify_bundle(
        bundle,
        key=key,
        target=target,
        rebuild=rebuild,
        sources=sources,
        quiet=quiet or as_json,
        verbose=verbose,
        command=_command_line(),
    )
    if as_json:
        print_result(json.dumps(document, indent=1))
    elif not quiet:
        print_result("\n".join(verification_lines(document)))
    if error is not None:
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code)


@app.command()
def keygen(
    path: Annotated[Path, typer.Argument(help="The private key to write; the public: PATH.pub.")],
    passphrase_file: PassphraseOption = None,
) -> None:
    """Make a pair of keys to sign bundles with."""
    from edgefuse.command_sign import make_keys

    for line in make_keys(path, passphrase_file):
        print_result(line)


@app.command()
def sign(
    bundle: Annotated[Path, typer.Argument(help="A .bundle.tar with its evidence.json beside it.")],
    key: Annotated[Path, typer.Option(help="The private key.")],
    passphrase_file: PassphraseOption = None,
) -> None:
    """Sign a bundle and its evidence as they lie there: write signature.json beside them."""
    from edgefuse.command_sign import sign_bundle

    print_result(sign_bundle(bundle, key, passphrase_file))


@app.command()
def push(
    bundle: Annotated[Path, typer.Argument(help="A .bundle.tar with its evidence.json beside it.")],
    targets: TargetsOption,
    canary: Annotated[
        str | None, typer.Option(help="Which of several targets goes first; the first given.")
    ] = None,
    key: KeyOption = None,
    wait: WaitOption = 60,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Install a bundle that passed its gates on targets, whole or not at all."""
    from edgefuse.command_push import push_bundle

    tell = _steps(quiet or as_json)
    options: dict[str, Any] = {"canary": canary, "wait_s": wait, "dry_run": dry_run, "tell": tell}
    _print_devices(push_bundle(bundle, targets, key=key, **options), as_json)


@app.command()
def rollback(
    targets: TargetsOption,
    wait: WaitOption = 60,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make the version before the current one current again, once it is proven on the device."""
    from edgefuse.command_push import roll_back

    _print_devices(roll_back(targets, wait_s=wait, tell=_steps(quiet or as_json)), as_json)


@app.command()
def status(targets: TargetsOption, as_json: JsonOption = False) -> None:
    """Tell which versions lie on targets, and whether they are whole. Changes nothing."""
    from edgefuse import command_push

    found = command_push.status(targets)
    lines = [line for one in found for line in one.lines]
    print_result(command_push.as_json(found) if as_json else "\n".join(lines))
    _end_by(lambda: command_push.require_healthy(found), as_json)


@app.command()
def prune(
    targets: TargetsOption,
    keep: Annotated[
        int | None, typer.Option(help="Versions that stay; the target's keep_versions if absent.")
    ] = None,
    wait: WaitOption = 60,
    as_json: JsonOption = False,
) -> None:
    """Remove old versions from targets, never the current one nor the one before it."""
    from edgefuse import command_push

    _print_devices(command_push.prune(targets, keep=keep, wait_s=wait), as_json)


def _steps(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else say


def _print_devices(reports: list[DeviceReport], as_json: bool) -> None:
    """A line for each device and its steps, then the worst of what failed."""
    from edgefuse import command_push

    lines = [line for one in reports for line in (one.line, *(f"  {s}" for s in one.steps))]
    print_result(command_push.as_json(reports) if as_json else "\n".join(lines))
    _end_by(lambda: command_push.require_all(reports), as_json)


def _end_by(check: Callable[[], None], as_json: bool) -> None:
    """Make a check that may fail; the JSON that was printed stays the only one."""
    try:
        check()
    except EdgefuseError as error:
        if not as_json:
            raise
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code) from None


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
    from edgefuse.command_conformance import conformance_lines, examine_conformance

    document, code = examine_conformance(
        source,
        names=names,
        max_lsb=within,
        progress=lambda name: None if quiet or as_json else say(f"  {name}"),
    )
    print_result(
        json.dumps(document, indent=1) if as_json else "\n".join(conformance_lines(document))
    )
    if code:
        raise typer.Exit(code)


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
    from edgefuse.command_inspect import plan_lines, plan_rows
    from edgefuse.plan import Selection

    rows = plan_rows(recipe, settings, target, Selection(until, start, measure))
    print_result(json.dumps(rows, indent=1) if as_json else "\n".join(plan_lines(rows)))


@app.command()
def why(
    recipe: RecipeArgument,
    settings: SetOption = [],  # noqa: B006
    target: TargetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what changed since the cached run, stage by stage."""
    from edgefuse.command_inspect import why_lines, why_rows

    rows = why_rows(recipe, settings, target)
    print_result(json.dumps(rows, indent=1) if as_json else "\n".join(why_lines(rows)))


@app.command()
def show(
    artifact: Annotated[str, typer.Argument(help="A file that a run wrote, or its SHA-256.")],
    as_json: JsonOption = False,
) -> None:
    """Show an artifact's lineage: the stages, inputs, versions and evidence that made it."""
    from edgefuse.command_inspect import lineage, lineage_lines

    tree = lineage(artifact)
    print_result(json.dumps(tree, indent=1) if as_json else "\n".join(lineage_lines(tree)))


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
    from edgefuse.command_init import write_recipe

    for line in write_recipe(source, out, shape, force):
        print_result(line)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check the environment: versions, disk, optional tools; name each remedy."""
    from edgefuse.command_doctor import examine

    findings = examine()
    if as_json:
        print_result(json.dumps([vars(f) for f in findings], indent=1))
    else:
        for finding in findings:
            print_result(finding.line)
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


@app.command()
def targets() -> None:
    """List the targets, what each needs, and whether it was ever tried on hardware."""
    from edgefuse.command_setup import target_lines

    for line in target_lines():
        print_result(line)


@app.command()
def setup(
    names: Annotated[list[str], typer.Argument(metavar="TARGET...", help="Names of targets.")],
    quiet: QuietOption = False,
) -> None:
    """Prepare targets: emulators, runtimes and runners, in the cache, without root."""
    from edgefuse.command_setup import set_up

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
    from edgefuse.command_calibrate import calibrate

    found, path = calibrate(target, board, bundles, say)
    print_result(
        f"{target}: {found.ms_per_million_instructions:.4g} ms per million instructions on "
        f"{found.board}, single models within {found.spread_percent:g}% ({len(found.models)})"
        f" -> {path}"
    )


def _command_line() -> str:
    words = [w for w in sys.argv[1:] if w not in ("--json", "-q", "--quiet", "-v", "--verbose")]
    return shlex.join(["edgefuse", *words])


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
