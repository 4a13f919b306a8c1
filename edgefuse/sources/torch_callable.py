"""A PyTorch module from ``module:callable``, with its weights loaded strictly and checked.

Weights are read with ``weights_only=True``: a checkpoint can hold tensors, never code.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import EdgefuseError, RecipeError, SourceError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from edgefuse.recipe import TorchModel
    from edgefuse.stage import Context


def load(model: TorchModel, seed: int, context: Context) -> torch.nn.Module:
    """Build the module in eval mode, with weights.

    Raises:
        RecipeError: the callable cannot be imported or returns no module.
        SourceError: it fails; weights do not fit, are no state dict, or hold NaN.
    """
    torch = import_torch()
    torch.manual_seed(seed)
    with _importable(context.base):
        module = _call(_find(model.callable, context.base), model)
    if not isinstance(module, torch.nn.Module):
        raise RecipeError(
            f"{model.callable} returned {type(module).__name__}, not a torch.nn.Module",
            where="model.torch.callable",
            hint="return the module itself, built and not yet exported",
        )
    if module.training:
        context.warn(f"{model.callable} returned a model in training mode: switched to eval mode")
    try:
        module.eval()
    except Exception as error:
        raise SourceError(
            f"eval() failed: {_one_line(error)}",
            where=model.callable,
            hint="let its train() accept mode=False; a model is exported as it predicts",
        ) from error
    still = [name or "the model" for name, part in module.named_modules() if part.training]
    if still:
        raise SourceError(
            f"still in training mode after eval(): {still[0]}",
            where=model.callable,
            hint="let its train() accept mode=False; a model is exported as it predicts",
        )
    if not isinstance(model.weights, str):
        _load_state(module, context.local(model.weights), model.callable)
    _check_finite(module, model.callable)
    return module


def import_torch() -> Any:
    """The torch module.

    Raises:
        ToolError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise ToolError(
            "PyTorch is not installed", hint="pip install 'edgefuse[torch]' -c constraints.txt"
        ) from None
    return torch


@contextmanager
def _importable(base: Path) -> Iterator[None]:
    added = [str(base.absolute()), str(Path.cwd())]
    sys.path[:0] = added
    try:
        yield
    finally:
        for entry in added:
            with suppress(ValueError):
                sys.path.remove(entry)


def _find(spec: str, base: Path) -> Callable[..., Any]:
    module_name, _, attribute = spec.partition(":")
    where = "model.torch.callable"
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"cannot import {module_name!r}: {error}",
            where=where,
            hint=f"modules are found beside the recipe ({base}), in the working folder, "
            "or installed",
        ) from error
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"importing {module_name!r} failed: {_one_line(error)}",
            where=where,
            hint='correct the module; what only a script does belongs under __name__ == "__main__"',
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            names = [n for n in dir(found) if not n.startswith("_")]
            close = difflib.get_close_matches(name, names, n=1)
            raise RecipeError(
                f"{module_name!r} has no {attribute!r}",
                where=where,
                hint=f"did you mean {close[0]!r}?" if close else "name a function or a class of it",
            )
        found = getattr(found, name)
    if not callable(found):
        raise RecipeError(
            f"{spec} is not callable", where=where, hint="name a function or class that builds it"
        )
    return found  # type: ignore[no-any-return]


def _call(build: Callable[..., Any], model: TorchModel) -> Any:
    try:
        return build(**model.arguments)
    except EdgefuseError:
        raise
    except (Exception, SystemExit) as error:
        raise SourceError(
            f"{model.callable} failed: {_one_line(error)}",
            where="model.torch.callable",
            hint="call it by hand with model.torch.arguments; the log has the traceback",
        ) from error


def _load_state(module: torch.nn.Module, path: Path, name: str) -> None:
    torch = import_torch()
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SourceError(
            f"not a PyTorch state dict ({type(error).__name__})",
            where=str(path),
            hint="save it with torch.save(model.state_dict(), ...); pickled code is never run",
        ) from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else loaded
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise SourceError(
            "does not hold a mapping of names to tensors",
            where=str(path),
            hint="save it with torch.save(model.state_dict(), ...)",
        )
    expected = module.state_dict()
    problems = [f"missing {key}" for key in sorted(expected.keys() - state.keys())]
    problems += [f"unexpected {key}" for key in sorted(state.keys() - expected.keys())]
    problems += [
        f"{key} has shape {tuple(state[key].shape)}, the model has {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & state.keys())
        if state[key].shape != expected[key].shape
    ]
    if problems:
        prefix = _common_prefix(state, expected)
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise SourceError(
            f"the weights do not fit {name}: {'; '.join(problems[:3])}{more}",
            where=str(path),
            hint="the checkpoint is of another architecture or version: fix callable or arguments"
            if not prefix
            else f"every name in it begins with {prefix!r}, as DataParallel and wrappers leave it: "
            "save the inner module's state_dict()",
        )
    module.load_state_dict(state, strict=True)


def _common_prefix(state: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """What all names have before the model's own; empty where that is not it."""
    longest = max(expected, key=len, default="")
    names = sorted(state)
    prefix = next((n.removesuffix(longest) for n in names if n.endswith(longest)), "")
    return prefix if {prefix + name for name in expected} == set(names) else ""


def _check_finite(module: torch.nn.Module, name: str) -> None:
    torch = import_torch()
    for key, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise SourceError(
                f"weights hold NaN or infinity in {key}",
                where=name,
                hint="the training diverged or the file is damaged: take another checkpoint",
            )


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
