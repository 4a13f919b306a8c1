"""Commands on bundles: release, verify, sign, and their way onto devices and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgefuse.cli_app import (
    JsonOption,
    KeyOption,
    PassphraseOption,
    QuietOption,
    SignOption,
    TargetsOption,
    VerboseOption,
    WaitOption,
    app,
    command_line,
    end_by,
    tell,
)
from edgefuse.ending import print_result, say
from edgefuse.errors import EdgefuseError

if TYPE_CHECKING:
    from edgefuse.commands.push import DeviceReport


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
    from edgefuse.commands.release import release_all

    for line in release_all(
        recipes,
        out,
        quiet=quiet,
        command=command_line(),
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
    from edgefuse.commands.verify import verification_lines, verify_bundle

    document, error = verify_bundle(
        bundle,
        key=key,
        target=target,
        rebuild=rebuild,
        sources=sources,
        quiet=quiet or as_json,
        verbose=verbose,
        command=command_line(),
    )
    tell(document, lambda: "\n".join(verification_lines(document)), as_json=as_json, quiet=quiet)
    end_by(error)


@app.command()
def keygen(
    path: Annotated[Path, typer.Argument(help="The private key to write; the public: PATH.pub.")],
    passphrase_file: PassphraseOption = None,
) -> None:
    """Make a pair of keys to sign bundles with."""
    from edgefuse.commands.sign import make_keys

    for line in make_keys(path, passphrase_file):
        print_result(line)


@app.command()
def sign(
    bundle: Annotated[Path, typer.Argument(help="A .bundle.tar with its evidence.json beside it.")],
    key: Annotated[Path, typer.Option(help="The private key.")],
    passphrase_file: PassphraseOption = None,
) -> None:
    """Sign a bundle and its evidence as they lie there: write signature.json beside them."""
    from edgefuse.commands.sign import sign_bundle

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
    from edgefuse.commands.push import push_bundle

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
    from edgefuse.commands.push import roll_back

    _print_devices(roll_back(targets, wait_s=wait, tell=_steps(quiet or as_json)), as_json)


@app.command()
def status(targets: TargetsOption, as_json: JsonOption = False) -> None:
    """Tell which versions lie on targets, and whether they are whole. Changes nothing."""
    from edgefuse.commands import push as pushing

    found = pushing.status(targets)
    lines = [line for one in found for line in one.lines]
    print_result(pushing.as_json(found) if as_json else "\n".join(lines))
    _end_by(lambda: pushing.require_healthy(found), as_json)


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
    from edgefuse.commands import push as pushing

    _print_devices(pushing.prune(targets, keep=keep, wait_s=wait), as_json)


def _steps(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else say


def _print_devices(reports: list[DeviceReport], as_json: bool) -> None:
    """A line for each device and its steps, then the worst of what failed."""
    from edgefuse.commands import push as pushing

    lines = [line for one in reports for line in (one.line, *(f"  {s}" for s in one.steps))]
    print_result(pushing.as_json(reports) if as_json else "\n".join(lines))
    _end_by(lambda: pushing.require_all(reports), as_json)


def _end_by(check: Callable[[], None], as_json: bool) -> None:
    """Make a check that may fail; the JSON that was printed stays the only one."""
    try:
        check()
    except EdgefuseError as error:
        if not as_json:
            raise
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code) from None
