"""The runner's Python side: what it is told, what it answers.

The runner (``runner/runner.c``, or ``runner.py`` where only Python reaches the runtime) takes
models and raw feeds as files, and writes raw outputs and one JSON document. Here feeds become
files, the arguments are built, and the answer is read. How the program is started, here under
emulation or on a board over ssh or adb, is a :class:`Start` that others provide. Every name in the
arguments is relative to one folder and made here: none of a user's paths reaches a board's shell.

What the runtime says about a model it refuses is the message of a StageError; a library that cannot
be loaded is a DeviceUnavailable; everything else that fails is a ToolError.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgefuse.errors import DeviceUnavailable, StageError, ToolError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import TfliteModel

    Array = np.ndarray[Any, Any]
    Feed = Mapping[str, Array]

SOURCES = Path(__file__).with_name("runner")
PREFIX = "edgefuse-runner: "
_LIBRARY, _REFUSED, _INVOKE = 4, 5, 6
_CHATTER = ("INFO:", "VERBOSE:", "WARNING:")


@dataclass(frozen=True)
class Completed:
    """How the program ended: its exit code (128 + number when killed by a signal), its streams."""

    code: int
    stdout: bytes
    stderr: bytes


class Start(Protocol):
    """Runs the runner in a folder of its own and waits.

    Args of a call:
        folder: lies here; holds the files to send, and receives those to fetch.
        arguments: the runner's, after ``--runtime LIBRARY``, which the starter knows. File names
            are plain (letters, digits, ``.``, ``_``) and relative to the program's own folder.
        send: names of the files that the program reads.
        fetch: names of the files that it writes.
        timeout_s: after so long it is to be stopped: ToolError.
    """

    def __call__(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        send: Sequence[str],
        fetch: Sequence[str],
        timeout_s: float,
    ) -> Completed: ...


@dataclass(frozen=True)
class Answer:
    """The runner's JSON document.

    Attributes:
        version: the runtime's own version.
        xnnpack: whether the runtime's operators went to XNNPACK.
        times_ns: of every counted invoke, in the order they ran.
        models: of each model its inputs, outputs, operators and tensors, as the runner wrote them.
        peak_rss_bytes: of the whole process.
    """

    version: str
    xnnpack: bool
    times_ns: tuple[int, ...]
    models: tuple[Mapping[str, Any], ...]
    peak_rss_bytes: int


@dataclass(frozen=True)
class Runner:
    """Runs models through the runner.

    Attributes:
        start: see :class:`Start`.
        name: of the device, for messages.
        kernels, threads: as a target gives them.
        timeout_s: of one start.
    """

    start: Start
    name: str
    kernels: str = "default"
    threads: int = 1
    timeout_s: float = 600.0

    def outputs(self, model: Path, feeds: Iterable[Feed], folder: Path) -> list[dict[str, Array]]:
        """For each feed the raw outputs by signature name; one start for all of them.

        Args:
            feeds: by signature name, in the inputs' own dtypes and shapes.
            folder: empty; left with the files of this call.

        Raises:
            DataError: a feed that does not fit the model.
            StageError: the runtime refuses the model or fails on it, or an output holds NaN.
        """
        from edgefuse.tflite.read import read_model

        source = read_model(model)
        count = self._place(0, model, source, feeds, folder)
        if not count:
            return []
        arguments = [*self._options(), "model0.tflite", "feeds0.raw", "outputs0.raw"]
        send = ["model0.tflite", "feeds0.raw"]
        answer = self._run(folder, arguments, send, ["outputs0.raw"], [model])
        return _split(source, folder / "outputs0.raw", count, answer.models[0])

    def invoke(
        self,
        models: Sequence[Path],
        feeds: Sequence[Feed],
        folder: Path,
        *,
        order: Sequence[int],
        warmup: int = 1,
        seconds: int = 0,
        flags: Sequence[str] = (),
    ) -> Answer:
        """Invoke several models in one process, each with its feed, in the given order.

        Args:
            order: which model, for every counted invoke; repeated until ``seconds`` have gone.
            warmup: invokes of each model that do not count.
            flags: ``--marks``, ``--operators``, ``--tensors``.
        """
        from edgefuse.tflite.read import read_model

        arguments = [*self._options(), "--warmup", str(warmup), "--seconds", str(seconds), *flags]
        arguments += ["--order", ",".join(map(str, order))]
        send = []
        for k, (model, feed) in enumerate(zip(models, feeds, strict=True)):
            self._place(k, model, read_model(model), [feed], folder)
            names = [f"model{k}.tflite", f"feeds{k}.raw"]
            send += names
            arguments += [*names, "-"]
        return self._run(folder, arguments, send, [], models)

    def _options(self) -> list[str]:
        return ["--kernels", self.kernels, "--threads", str(self.threads)]

    def _place(
        self, k: int, model: Path, source: TfliteModel, feeds: Iterable[Feed], folder: Path
    ) -> int:
        """Copy the model and write its feeds, inputs in the file's order; how many feeds."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model, folder / f"model{k}.tflite")
        names = {index: name for name, index in source.signature_inputs}
        count = 0
        with (folder / f"feeds{k}.raw").open("wb") as stream:
            for feed in feeds:
                for value in _in_order(source, names, feed):
                    stream.write(value.tobytes())
                count += 1
        return count

    def _run(
        self,
        folder: Path,
        arguments: Sequence[str],
        send: Sequence[str],
        fetch: Sequence[str],
        models: Sequence[Path],
    ) -> Answer:
        done = self.start(folder, arguments, send=send, fetch=fetch, timeout_s=self.timeout_s)
        if done.code:
            raise self._failure(done, models)
        try:
            document = json.loads(done.stdout.decode("utf-8", "replace"))
            if document["runner"] != 1:
                raise ValueError(f"of another version ({document['runner']})")
            return Answer(
                document["version"],
                bool(document["xnnpack"]),
                tuple(document["times_ns"]),
                tuple(document["models"]),
                int(document["peak_rss_bytes"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"{self.name}: the runner's answer cannot be read: {error}") from None

    def _failure(
        self, done: Completed, models: Sequence[Path]
    ) -> StageError | ToolError | DeviceUnavailable:
        said = last_line(done.stderr)
        for k, model in enumerate(models):
            said = said.replace(f"model{k}.tflite", model.name)
        where = str(models[0]) if len(models) == 1 else ""
        if done.code in (_REFUSED, _INVOKE):
            return StageError(
                f"{self.name}: {said}",
                hint="use a newer runtime, or replace the operator before conversion",
                where=where,
            )
        if done.code == _LIBRARY:
            return DeviceUnavailable(f"{self.name}: {said}")
        if done.code > 128:
            return StageError(
                f"{self.name}: the runner was killed by signal {done.code - 128} while it ran "
                f"{', '.join(m.name for m in models)}: {said}",
                hint="signal 4: the CPU lacks an instruction; 9: no memory; 11: a fault",
                where=where,
            )
        return ToolError(f"{self.name}: the runner ended with code {done.code}: {said}")


def last_line(stderr: bytes) -> str:
    """What the runner said last, without the runtime's chatter and the program's own name."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines()]
    kept = [line for line in lines if line and not line.startswith(_CHATTER)]
    ours = [line for line in kept if line.startswith(PREFIX)]
    return ((ours or kept or ["it said nothing"])[-1]).removeprefix(PREFIX)


def _in_order(source: TfliteModel, names: Mapping[int, str], feed: Feed) -> Iterator[Array]:
    """The values of a feed as the file's inputs take them.

    Raises:
        DataError: a name, shape or dtype that is not the model's.
    """
    from edgefuse.errors import DataError
    from edgefuse.tflite.read import signature_of
    from edgefuse.tflite.runtime import to_input

    specs = {spec.name: spec for spec in signature_of(source).inputs}
    unknown = sorted(set(feed) - set(specs))
    if unknown:
        raise DataError(
            f"no input is named {unknown[0]!r}; inputs: {', '.join(specs)}", where=source.where
        )
    for index in source.inputs:
        name = names.get(index)
        if name is None or name not in feed:
            label = name or source.tensors[index].name
            raise DataError(f"no value for input {label!r}", where=source.where)
        yield to_input(feed[name], specs[name], source.where)


def _split(
    source: TfliteModel, path: Path, count: int, told: Mapping[str, Any]
) -> list[dict[str, Array]]:
    """Raw outputs, one feed after the other, as arrays by signature name."""
    import numpy as np

    from edgefuse.tflite.read import signature_of

    specs = {spec.name: spec for spec in signature_of(source).outputs}
    for name, index in source.signature_outputs:
        if index not in source.outputs:
            raise StageError(
                f"the signature's output {name!r} is no output of the graph", where=source.where
            )
    dtypes = [np.dtype(source.tensors[index].dtype) for index in source.outputs]
    shapes = [source.tensors[index].shape for index in source.outputs]
    sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(shapes, dtypes)]
    if sizes != [output["bytes"] for output in told["outputs"]]:
        raise StageError(
            "the outputs have other sizes than the file says: shapes that change are not supported",
            where=source.where,
        )
    data = path.read_bytes()
    if len(data) != count * sum(sizes):
        raise ToolError(f"{len(data)} bytes of outputs, expected {count * sum(sizes)}")
    places = {index: k for k, index in enumerate(source.outputs)}
    offsets = [sum(sizes[:k]) for k in range(len(sizes))]
    results = []
    for n in range(count):
        result = {}
        for name, index in source.signature_outputs:
            k = places[index]
            begin = n * sum(sizes) + offsets[k]
            flat = np.frombuffer(data, dtypes[k], sizes[k] // dtypes[k].itemsize, begin)
            value = flat.reshape(specs[name].shape)
            if value.dtype.kind == "f" and np.isnan(value).any():
                raise StageError(f"output {name!r} holds NaN", where=source.where)
            result[name] = value
        results.append(result)
    return results
