"""The recipe's own torch module, for every row that starts from it; and what eager PyTorch runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from edgefuse.stage import Context


@dataclass(frozen=True)
class _Lent:
    """The part of a stage's context that loading a module reads."""

    base: Path
    weights: Path | None

    def local(self, _: object) -> Path:
        assert self.weights is not None
        return self.weights

    def warn(self, _: str) -> None:
        """The export of the same model has said it."""


def load_module(given: Mapping[str, Any]) -> Any:
    """The module with its weights, in eval mode, on the CPU.

    Args:
        given: as :attr:`edgefuse.compare.prepared.Request.torch`.

    Raises:
        SourceError, RecipeError: as the export would.
    """
    from edgefuse.recipe import TorchModel
    from edgefuse.sources import torch_callable

    weights = given["weights_file"]
    lent = _Lent(Path(given["base"]), Path(weights) if weights else None)
    model = TorchModel.model_validate(given["model"])
    return torch_callable.load(model, given["seed"], cast("Context", lent))


def dispatched(module: Any, arguments: tuple[Any, ...]) -> int:
    """How many operators eager PyTorch dispatches, views aside."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    called: list[str] = []

    class Count(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not operator.is_view:
                called.append(str(operator))
            return operator(*args, **(kwargs or {}))

    with torch.inference_mode(), Count():
        module(*arguments)
    return len(called)
