"""What runs models on a machine behind a transport: which files it needs there, how it is started.

Two programs with one command line and one answer (see ``runner/runner.c``): the project's own in C
beside a runtime library, and, where the target names the board's Python, ``runner.py`` with
the runtime that is installed there. Their files go over once and lie below ``runtime/<sha>``, by
the digest of names and contents; they are hashed there again before each use.

On Android the C program is started through the C library's own loader, which goes over with it:
the system's (bionic) cannot load what was built for Linux boards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import digest_file, digest_json
from edgefuse.devices.push.device_lock import GUARD
from edgefuse.devices.push.installation import KEEP, Installation
from edgefuse.devices.runner_client import SOURCES
from edgefuse.devices.setup.board import LOADER, board_files
from edgefuse.devices.transport import put, refusal, refuse, script
from edgefuse.errors import DeviceUnavailable, StageError, UsageError

if TYPE_CHECKING:
    from edgefuse.target import Target

RUN_S = 600.0
_MODULES = {"litert": "ai_edge_litert", "tflite_runtime": "tflite_runtime"}
_FOLDER = GUARD + 'mkdir -p "runtime/.tmp-$3"'
_PLACE = (
    GUARD
    + KEEP
    + """
rm -rf "runtime/$3"
chmod -R u+rwX,go+rX "runtime/.tmp-$3" && chmod +x "runtime/.tmp-$3"/* || exit 1
mv "runtime/.tmp-$3" "runtime/$3" || exit 1
keep "runtime/$3"
"""
)


@dataclass(frozen=True)
class Program:
    """Files by their name on the board, and the words that start it; ``{}`` is their folder."""

    files: Mapping[str, Path]
    words: tuple[str, ...]

    def sums(self) -> dict[str, str]:
        return {name: digest_file(path) for name, path in self.files.items()}

    @property
    def sha256(self) -> str:
        return digest_json(self.sums())

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def program_of(target: Target, prepared: Path) -> Program:
    """What runs models on a board reached by ssh or adb.

    Raises:
        UsageError: its runtime has no program here.
        DeviceUnavailable: ``edgefuse setup`` has not made it yet.
    """
    if target.python is not None:
        module = _MODULES.get(target.runtime)
        if module is None:
            raise UsageError(f"python runs litert and tflite_runtime, not {target.runtime}")
        path = SOURCES / "runner.py"
        return Program({path.name: path}, (target.python, f"{{}}/{path.name}", "--runtime", module))
    if target.runtime != "litert":
        raise UsageError(
            f"target {target.name}: {target.runtime} on a board needs its Python",
            hint="give `python`, the path of the program there",
        )
    files = board_files(target, prepared)
    start: tuple[str, ...] = ("{}/edgefuse-runner",)
    if target.transport == "adb":
        start = (f"{{}}/{LOADER}", "--library-path", "{}", *start)
    return Program(files, (*start, "--runtime", "{}/libLiteRt.so"))


class Board:
    """A program on a device, ready to run models that lie there."""

    def __init__(
        self,
        installation: Installation,
        program: Program,
        threads: int,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._at = installation
        self._program = program
        self._threads = threads
        self._tell = tell
        self._folder = f"{installation.root}/runtime/{program.sha256}"

    @property
    def start(self) -> list[str]:
        """The words that start it there, up to its options."""
        return [word.replace("{}", self._folder) for word in self._program.words]

    def install(self, owner: str) -> None:
        """Bring the program over unless it lies there whole.

        Raises:
            StageError: it arrives damaged, twice.
        """
        sums = self._program.sums()
        if not self._at.differences(self._folder, sums):
            return
        transport, sha256 = self._at.transport, self._program.sha256
        self._locked(_FOLDER, owner, sha256)
        for name, path in self._program.files.items():
            self._tell(f"uploading {name} ({path.stat().st_size / 1e6:.1f} MB)")
            arriving = f"{self._at.root}/runtime/.tmp-{sha256}/{name}"
            put(transport, path, arriving, sums[name], self._tell)
        self._locked(_PLACE, owner, sha256)
        if wrong := self._at.differences(self._folder, sums):
            raise StageError(f"what runs models is not whole: {wrong[0]}", where=self._folder)

    def _locked(self, text: str, *words: str) -> None:
        done = script(self._at.transport, text, self._at.root, *words)
        if done.code:
            refuse(done, "cannot install what runs models", self._at.where)

    def run(
        self,
        runs: Sequence[tuple[str, str, str]],
        *options: str,
        kernels: str = "default",
        timeout_s: float = RUN_S,
    ) -> dict[str, Any]:
        """Run models with feeds and outputs that lie there; the program's answer.

        Args:
            runs: paths of model, feeds and outputs; ``-`` for none.
            options: more of the program's.

        Raises:
            DeviceUnavailable: the program or its runtime does not start there.
            StageError: the runtime refuses the model or fails on it, with what it says.
        """
        words = [*self.start, "--kernels", kernels, "--threads", str(self._threads), *options]
        for run in runs:
            words += run
        done = self._at.transport.run(words, timeout_s=timeout_s)
        said = (done.err.strip() or done.text.strip()).splitlines()
        last = said[-1].partition("edgefuse-runner: ")[2] or said[-1] if said else "it said nothing"
        where = self._at.transport.where
        if done.code in (126, 127) or (done.code and "xec format error" in done.err + done.text):
            raise DeviceUnavailable(
                f"what runs models does not start there: {last}",
                hint="is `architecture` (or `python`) in the target right, and may programs run "
                "from install_path?",
                where=where,
            )
        if done.code == 4:
            raise DeviceUnavailable(
                f"the runtime does not load there: {last}",
                hint="install it there, or the libraries that it names",
                where=where,
            )
        if done.code == 3:
            raise refusal(last, "what runs models fails on a file", where)
        if done.code:
            newer = "use a newer runtime there, or convert for the one it has"
            raise StageError(last, hint=newer if done.code == 5 else "", where=where)
        return answer_of(done.text, where)


def answer_of(text: str, where: str) -> dict[str, Any]:
    """The JSON document of a runner.

    Raises:
        StageError: it gave none.
    """
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
        if answer["runner"] == 1:
            return answer
    except (ValueError, LookupError, TypeError):
        pass
    raise StageError("what runs models gave no answer", where=where)
