"""From samples in the source model's layout to a .tflite's signature, by name.

The converter makes 4-D inputs channels-last. Which way round an output of 3 to 5 axes came out is
decided by value (:func:`turned_outputs`): its shape does not tell where the axes are of equal size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Layout, Signature, TensorSpec
from edgefuse.errors import RecipeError, SourceError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.data import SampleSet
    from edgefuse.recipe import Recipe, TensorShape
    from edgefuse.stage import Context

    Array = np.ndarray[Any, Any]


def source_layouts(recipe: Recipe) -> dict[str, Layout]:
    """The layout of each input as the samples have it; only NCHW is turned for TFLite."""
    if recipe.model.source == "tflite":
        return {i.name: "other" for i in recipe.model.inputs}
    declared = recipe.preprocess.layout if recipe.preprocess else "NCHW"
    return {i.name: declared if len(i.shape) == 4 else "other" for i in recipe.model.inputs}


def streamed(
    signature: Signature, layouts: Mapping[str, Layout], feeds: Iterable[Mapping[str, Array]]
) -> Iterator[dict[str, Array]]:
    """Each sample as the .tflite takes it; turned by 180 degrees where its signature says so."""
    from edgefuse.tflite.runtime import to_layout

    for feed in feeds:
        yield {
            s.name: upright_or_turned(to_layout(feed[s.name], layouts[s.name], s.shape), s)
            for s in signature.inputs
        }


def upright_or_turned(picture: Array, spec: TensorSpec) -> Array:
    """A picture [batch, rows, columns, channels], turned by 180 degrees where the input wants it.

    Applied twice it gives the picture back.
    """
    import numpy as np

    return np.ascontiguousarray(picture[:, ::-1, ::-1]) if spec.turned else picture


def stacks(
    samples: SampleSet, signature: Signature, recipe: Recipe, context: Context, what: str = ""
) -> Iterator[tuple[dict[str, Array], int]]:
    """A sample set as the .tflite takes it, stack by stack, and how many of each are true samples.

    Args:
        what: the samples in words, for progress; empty reports none.
    """
    from edgefuse.data import batches

    layouts, done = source_layouts(recipe), 0
    for feed, held in batches(samples.samples(context.downloads), recipe.model.batch):
        for given in streamed(signature, layouts, [feed]):
            yield given, len(held)
        done += len(held)
        if what:
            context.progress(done, samples.count, what)


def run_samples(
    path: Path,
    layouts: Mapping[str, Layout],
    feeds: Iterable[Mapping[str, Array]],
    *,
    runtime: Any = "litert",
    kernels: Any = "builtin",
    threads: int = 2,
) -> Iterator[dict[str, Array]]:
    """Float outputs by name for each sample, in the .tflite's own layout."""
    from edgefuse.tflite.runtime import open_model

    model = open_model(path, runtime=runtime, kernels=kernels, threads=threads)
    for feed in streamed(model.signature, layouts, feeds):
        yield model.run_float(feed)


def turned_outputs(
    reference: Sequence[Mapping[str, Array]], candidate: Sequence[Mapping[str, Array]]
) -> frozenset[str]:
    """The candidate's outputs that are nearer the channels-first reference when turned to it."""
    import numpy as np

    turned: set[str] = set()
    for name, wanted in reference[0].items() if reference else ():
        found = candidate[0].get(name)
        if 3 <= wanted.ndim <= 5 and found is not None and found.ndim == wanted.ndim:
            other = np.moveaxis(found, -1, 1)
            if other.shape == wanted.shape and (
                found.shape != wanted.shape
                or np.abs(other - wanted).max() < np.abs(found - wanted).max()
            ):
                turned.add(name)
    return frozenset(turned)


def aligned(
    candidate: Sequence[Mapping[str, Array]], turned: Collection[str]
) -> list[dict[str, Array]]:
    """The candidate with its ``turned`` outputs channels-first."""
    import numpy as np

    return [
        {n: np.moveaxis(v, -1, 1) if n in turned else v for n, v in row.items()}
        for row in candidate
    ]


def with_output_layouts(signature: Signature, like: Mapping[str, Layout]) -> Signature:
    """The signature with its 4-D outputs' layouts by name: the file does not say them."""
    outputs = tuple(replace(s, layout=like.get(s.name, s.layout)) for s in signature.outputs)
    return replace(signature, outputs=outputs)


def check_given(path: Path, inputs: Sequence[TensorShape]) -> None:
    """Check a given float .tflite against the recipe.

    Raises:
        RecipeError: other names or shapes.
        SourceError: the model is not float32.
    """
    from edgefuse.tflite.read import read_model, signature_of

    float_model = "give the float32 .tflite that it was made from"
    model = read_model(path)
    signature = signature_of(model)
    found = {spec.name: list(spec.shape) for spec in signature.inputs}
    wanted = {i.name: list(i.shape) for i in inputs}
    if found != wanted:
        raise RecipeError(
            f"model.inputs says {wanted}, the file has {found}",
            where=str(path),
            hint="take the file's names and shapes; `edgefuse init` writes them for you",
        )
    for spec in (*signature.inputs, *signature.outputs):
        if spec.dtype != "float32":
            raise SourceError(
                f"{spec.name!r} is {spec.dtype}: only a float model can be quantised",
                where=str(path),
                hint=float_model,
            )
    if any(t.scales for t in model.tensors):
        raise SourceError("the model is quantised already", where=str(path), hint=float_model)
