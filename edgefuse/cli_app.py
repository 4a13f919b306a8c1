"""The command line's application object, and the options that several commands share."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from edgefuse.ending import print_result, say
from edgefuse.errors import EXIT_CODES, EdgefuseError

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


def command_line() -> str:
    words = [w for w in sys.argv[1:] if w not in ("--json", "-q", "--quiet", "-v", "--verbose")]
    return shlex.join(["edgefuse", *words])


def tell(
    document: Any, words: Callable[[], str], *, as_json: bool = False, quiet: bool = False
) -> None:
    """A command's result: the document as JSON, or in words, which ``quiet`` leaves out."""
    if as_json:
        print_result(json.dumps(document, indent=1))
    elif not quiet:
        print_result(words())


def encoding() -> str:
    """What a table's characters must go into."""
    return sys.stdout.encoding or "ascii"


def end_by(error: EdgefuseError | None) -> None:
    """End with an error that was kept until the result was told."""
    if error is not None:
        say(f"edgefuse: {error}")
        raise typer.Exit(error.exit_code)
