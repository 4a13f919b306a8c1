"""Recomputation in training: a module's step within a budget of peak bytes, for the least time.

Between forward and backward a training step holds what backward will read. Dropping some of it and
computing it again when it is due trades time for bytes. Which is dropped is planned here, with a
budget of the *peak*, and the plan is verified by a meter before it is used:

    rematerialise(module, inputs, budget=0.4, loss=...)   -> Rematerialised; the module in place
    compare_step(module, inputs, budgets=(0.4,), ...)     -> rows: eager, compile, ours
    peak_bytes(step)                                      -> peak bytes of one step, deterministic

::

    def compare_step(
        module: nn.Module,              # in train mode; left as it was
        inputs: Tensor | tuple[Tensor, ...],           # both on the CPU; others are refused
        *,
        budgets: Sequence[int | float], # bytes, or shares of the eager peak in (0, 1]
        loss: Callable[[Any], Tensor] | None = None,   # default: the mean square of the output
        rounds: int = 5,                # interleaved rounds of timing; 0: no times
        compiled: bool = True,          # beside torch.compile at its own memory budgets (slow)
    ) -> tuple[Row, ...]

    Row(name, budget_bytes | None, predicted_peak_bytes | None, peak_bytes, time_ms | None (median),
        spread_ms | None (from, to), cpu_ms | None, recomputed: tuple[str, ...], refused: str)

A budget that cannot be kept is a row with ``refused`` and without figures. Scope: chains of blocks;
see :mod:`~.find` for what a chain is, :mod:`~.frozen` for which blocks are never recomputed,
:mod:`~.modes` for parts of blocks, :mod:`~.grouped` for layers that run in groups of samples.
"""

from edgefuse.memory.remat.compare import Row, compare_step
from edgefuse.memory.remat.meter import peak_bytes
from edgefuse.memory.remat.wrap import Rematerialised, rematerialise

__all__ = ["Rematerialised", "Row", "compare_step", "peak_bytes", "rematerialise"]
