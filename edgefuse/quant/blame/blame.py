"""Blame: what each layer's quantisation costs, and what is wrong with it.

Three measurements on the same samples, each on real files:

1. every tensor of the int8 file against the float file's, accumulated and alone, and its range
   against the values seen (:mod:`edgefuse.quant.blame.deviation`);
2. every constant against the float one (:mod:`edgefuse.quant.blame.misfit`);
3. for each layer a file in which only it is quantised and one in which only it is not, on the
   target's runtime (:mod:`edgefuse.tflite.mixed`).

Layers are ranked by their share of the int8 file's output noise N, in noise over signal:

    share = (N(only this quantised) + max(0, N - N(only this not))) / 2 / N

An agreement is a count of samples, and 32 of them tell 3 points apart: it is shown, not ranked by.

Scope: any float .tflite and any int8 .tflite of the same model. Left alone: operators that only
move values, and operators that are float in the int8 file; they are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, EdgefuseError, StageError
from edgefuse.quant.blame.deviation import THREADS, Deviation, Place, Seen, observe
from edgefuse.quant.blame.misfit import bias_misfit, range_misfit, weight_misfit
from edgefuse.quant.recording import record

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.mixed import Mixer, Pair
    from edgefuse.tflite.read import Operator, TfliteModel

    Array = np.ndarray[Any, Any]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Judged:
    """A file's outputs against the float file's.

    Attributes:
        noise_ratio: noise over signal, summed over the outputs.
        sqnr_db: the least of any output; None when nothing differs.
        agreement_loss_points: samples whose first class is another, in percent; None where the
            model is no classifier.
    """

    noise_ratio: float
    sqnr_db: float | None
    agreement_loss_points: float | None


@dataclass(frozen=True)
class Blamed:
    """One layer, or one input of the model.

    Attributes:
        operator: its label in the int8 file; ``INPUT`` for an input.
        float_operator: its label in the float file.
        float_index: its index there, which ``quantize_file`` keeps float by; None for an input.
        tensor: the int8 tensor that it writes.
        alone, accumulated: ``sqnr_db`` and ``cosine`` of that tensor.
        range, weights, bias: figures of :mod:`~.misfit`; None where there is none.
        only_quantized, only_float: the outputs when only this layer is, or is not.
        not_measured: why one of these is None.
        noise_share_percent: of the int8 file's output noise; what is ranked by.
        suspicions: what is wrong with it, a sentence each.
    """

    operator: str
    float_operator: str
    float_index: int | None
    tensor: str
    shape: tuple[int, ...]
    alone: Mapping[str, float | None]
    accumulated: Mapping[str, float | None]
    range: Mapping[str, Any]
    weights: Mapping[str, Any] | None
    bias: Mapping[str, Any] | None
    only_quantized: Judged | None
    only_float: Judged | None
    not_measured: str
    noise_share_percent: float
    suspicions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "suspicions": list(self.suspicions)}


@dataclass(frozen=True)
class Blame:
    """Every layer, the costliest first.

    Attributes:
        classifier: whether an agreement is defined: one output, of one row of classes a sample.
        full: the int8 file itself against the float file.
        moves: operators that only move values, by label.
        left_float: operators of the int8 file that are not quantised.
        strangers: operators of the int8 file that have no twin in the float file.
    """

    samples: int
    classifier: bool
    full: Judged
    rows: tuple[Blamed, ...]
    moves: tuple[str, ...]
    left_float: tuple[str, ...]
    strangers: tuple[str, ...]


def blame(
    float_file: Path,
    int8_file: Path,
    feeds: Iterable[Mapping[str, Array]],
    work: Path,
    *,
    runtime: Any = "litert",
    kernels: Any = "default",
    clipped_low: bool = False,
    progress: Progress = lambda done, total, what: None,
) -> Blame:
    """Measure every layer of an int8 file.

    Args:
        feeds: float32 by the float file's signature name; taken one at a time.
        work: an empty folder for samples and mixed files; nothing of use is left in it.
        runtime, kernels: of the target; mixed files run with them. Tensors are compared with the
            built-in kernels, which alone keep them all.
        clipped_low: the low side of the outputs is cut on purpose (``quantize.head: classes``):
            noise is judged above the cut.

    Raises:
        DataError: no sample, or NaN in the float file.
        StageError: the two files do not come from one model, or one does not run.
    """
    from edgefuse.tflite.mixed import Mixer
    from edgefuse.tflite.read import read_model

    mixer = Mixer(read_model(float_file), read_model(int8_file))
    recorded = record(feeds, work / "feeds")
    if not recorded:
        raise DataError("no samples to blame the layers on")
    places, seen = _observed(mixer, float_file, recorded, work, progress)
    judge = _Judge(mixer, recorded, work, runtime, kernels, clipped_low)
    judge.refer(float_file)
    full = judge.judged(int8_file)
    found = judge.all(_variants(mixer), progress)
    rows: list[Blamed] = []
    inputs = len(places) - len(mixer.layers)
    for place, one, (only, rest, why) in zip(places, seen, found):
        pair = mixer.layers[len(rows) - inputs] if len(rows) >= inputs else None
        row = _row(mixer, place, pair, one, clipped_low)
        share = _share(full.noise_ratio, only, rest)
        rows.append(
            replace(
                row,
                only_quantized=only,
                only_float=rest,
                not_measured=why,
                noise_share_percent=100 * share,
            )
        )
    rows.sort(key=lambda row: (-row.noise_share_percent, -len(row.suspicions)))

    def labels(operators: Iterable[Operator]) -> tuple[str, ...]:
        return tuple(op.label for op in operators)

    return Blame(
        samples=judge.count,
        classifier=judge.classifier,
        full=full,
        rows=tuple(rows),
        moves=labels(pair.int8_op for pair in mixer.moves),
        left_float=labels(mixer.left_float),
        strangers=labels(mixer.strangers),
    )


def _observed(
    mixer: Mixer, float_file: Path, feeds: Mapping[str, Array], work: Path, progress: Progress
) -> tuple[list[Place], list[Seen]]:
    data, shadows = mixer.shadowed()
    path = work / "shadowed.tflite"
    path.write_bytes(data)
    places = [Place(name, old, new, None) for name, old, new in mixer.inputs()]
    for pair in mixer.layers:
        old, new = pair.float_op.outputs[0], pair.int8_op.outputs[0]
        name = mixer.float_model.tensors[old].name
        places.append(Place(name, old, new, shadows[pair.int8_op.index]))
    count = len(next(iter(feeds.values())))
    names = _names(mixer.float_model.signature_inputs, mixer.int8_model.signature_inputs)
    seen = observe(
        float_file, path, places, feeds, names, lambda done: progress(done, count, "samples")
    )
    path.unlink()
    return places, seen


def _names(left: Sequence[tuple[str, int]], right: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The other file's name of each input or output: the same, else that in the same place."""
    if len(left) != len(right):
        raise StageError(
            f"the float file has {len(left)} inputs or outputs, the int8 file {len(right)}",
            hint="the two files do not come from the same model",
        )
    same = {name for name, _ in left} == {name for name, _ in right}
    return {a: a if same else b for (a, _), (b, _) in zip(left, right)}


Writer = Callable[[], bytes]


def _variants(mixer: Mixer) -> list[tuple[Writer, Writer]]:
    """For each input, then each layer: what writes the file in which only it is quantised, and
    the one in which only it is not."""

    def of_input(old: int, new: int) -> tuple[Writer, Writer]:
        return (
            lambda: mixer.input_only_quantised(old, new),
            lambda: mixer.input_only_float(new),
        )

    def of_layer(pair: Pair) -> tuple[Writer, Writer]:
        return lambda: mixer.only_quantised(pair), lambda: mixer.only_float(pair)

    return [
        *(of_input(old, new) for _, old, new in mixer.inputs()),
        *(of_layer(pair) for pair in mixer.layers),
    ]


class _Judge:
    """Runs files on the samples and compares their outputs with the float file's."""

    def __init__(
        self,
        mixer: Mixer,
        feeds: Mapping[str, Array],
        work: Path,
        runtime: Any,
        kernels: Any,
        clipped_low: bool,
    ) -> None:
        self._feeds, self._work = feeds, work
        self._runtime, self._kernels = runtime, kernels
        self._models: tuple[TfliteModel, TfliteModel] = (mixer.float_model, mixer.int8_model)
        self.count = len(next(iter(feeds.values())))
        outputs = mixer.float_model.signature_outputs
        shapes = [mixer.float_model.tensors[index].shape for _, index in outputs]
        shape = shapes[0] if len(shapes) == 1 else ()
        self.classifier = len(shape) > 1 and shape[-1] > 1 and set(shape[1:-1]) <= {1}
        self._floors: dict[str, float] = {}
        names = _names(outputs, mixer.int8_model.signature_outputs)
        for name, _ in outputs if clipped_low else ():
            held = mixer.int8_model.tensors[dict(mixer.int8_model.signature_outputs)[names[name]]]
            if held.real_range is not None:
                self._floors[name] = held.real_range[0]
        self._reference: dict[str, Array] = {}
        self._opening, self._stop = Lock(), Event()

    def refer(self, float_file: Path) -> None:
        """Run the float file, whose outputs are the reference."""
        self._reference = record(self._outputs(float_file), self._work / "reference")

    def _outputs(self, path: Path) -> Iterable[dict[str, Array]]:
        """Every sample's outputs, by the float file's names."""
        from edgefuse.tflite.runtime import open_model

        with self._opening:  # opening redirects the whole process's standard error
            model = open_model(path, runtime=self._runtime, kernels=self._kernels, threads=1)
        given = _names(self._models[0].signature_inputs, model.source.signature_inputs)
        wanted = _names(self._models[0].signature_outputs, model.source.signature_outputs)
        for number in range(self.count):
            if self._stop.is_set():
                return
            outputs = model.run_float({given[n]: v[number] for n, v in self._feeds.items()})
            yield {name: outputs[other] for name, other in wanted.items()}

    def judged(self, path: Path) -> Judged:
        import numpy as np

        sums = {name: Deviation() for name in self._reference}
        other = rows = 0
        for number, outputs in enumerate(self._outputs(path)):
            for name, value in outputs.items():
                exact = self._reference[name][number]
                if name in self._floors:
                    exact, value = (np.maximum(v, self._floors[name]) for v in (exact, value))
                sums[name].add(exact, value)
                if self.classifier:
                    first = [v.reshape(-1, v.shape[-1]).argmax(1) for v in (exact, value)]
                    other += int(np.count_nonzero(first[0] != first[1]))
                    rows += len(first[0])
        levels = [one.sqnr_db for one in sums.values()]
        return Judged(
            noise_ratio=sum(one.noise_ratio for one in sums.values()),
            sqnr_db=min((level for level in levels if level is not None), default=None),
            agreement_loss_points=100 * other / rows if rows else None,
        )

    def all(
        self, variants: Sequence[tuple[Writer, Writer]], progress: Progress
    ) -> list[tuple[Judged | None, Judged | None, str]]:
        """Both files of every layer, judged; each is written, run and deleted."""
        done: list[int] = []

        def work(place: int, side: int, writer: Writer) -> Judged | str:
            path = self._work / f"mixed_{place}_{side}.tflite"
            try:
                if self._stop.is_set():
                    return "stopped"
                path.write_bytes(writer())
                return self.judged(path)
            except StageError as error:
                return error.message
            except EdgefuseError:
                self._stop.set()
                raise
            finally:
                path.unlink(missing_ok=True)
                done.append(place)
                progress(len(done), 2 * len(variants), "mixed files")

        with ThreadPoolExecutor(THREADS) as pool:
            try:
                working = [
                    [pool.submit(work, place, side, writer) for side, writer in enumerate(pair)]
                    for place, pair in enumerate(variants)
                ]
                found = [[future.result() for future in pair] for pair in working]
            finally:
                self._stop.set()
        return [
            (
                only if isinstance(only, Judged) else None,
                rest if isinstance(rest, Judged) else None,
                "; ".join(text for text in (only, rest) if isinstance(text, str)),
            )
            for only, rest in found
        ]


def _share(full: float, only: Judged | None, rest: Judged | None) -> float:
    """The layer's share of the output's noise, 0..; the mean of what both files say."""
    said = [] if only is None else [only.noise_ratio]
    if rest is not None:
        said.append(max(0.0, full - rest.noise_ratio))
    return sum(said) / len(said) / full if said and full > 0 else 0.0


def _row(mixer: Mixer, place: Place, pair: Pair | None, seen: Seen, clipped_low: bool) -> Blamed:
    tensor = mixer.int8_model.tensors[place.int8_tensor]
    code = pair.int8_op.code if pair else "INPUT"
    whole = clipped_low and place.float_tensor in mixer.float_model.outputs
    held, suspicions = range_misfit(tensor, seen, code, clipped_low=whole)
    weights = bias = None
    if pair is not None:
        span = seen.values.maximum - seen.values.minimum
        weights, wrong = weight_misfit(pair, mixer.float_model, mixer.int8_model)
        bias, odd = bias_misfit(pair, mixer.float_model, mixer.int8_model, span)
        suspicions += [*wrong, *odd]
    return Blamed(
        operator=pair.int8_op.label if pair else "INPUT",
        float_operator=pair.float_op.label if pair else "INPUT",
        float_index=pair.float_op.index if pair else None,
        tensor=tensor.name,
        shape=tensor.shape,
        alone={"sqnr_db": seen.alone.sqnr_db, "cosine": seen.alone.cosine},
        accumulated={"sqnr_db": seen.accumulated.sqnr_db, "cosine": seen.accumulated.cosine},
        range=held or {},
        weights=weights,
        bias=bias,
        only_quantized=None,
        only_float=None,
        not_measured="",
        noise_share_percent=0.0,
        suspicions=tuple(suspicions),
    )
