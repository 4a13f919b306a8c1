"""The balance of a target: given in its file with a source each, or measured on this machine.

What was measured is kept in the store's folder under the machine's fingerprint and the number of
threads, and reused until the machine, onnxruntime or the way of measuring changes. A measurement
on a busy machine says so and is not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefuse.artifact import digest_json
from edgefuse.child import started
from edgefuse.devices.measure.fingerprint import fingerprint
from edgefuse.errors import ToolError
from edgefuse.graph.cost import Balance
from edgefuse.keys import code_digest, version
from edgefuse.store import default_root, write_atomically
from edgefuse.target import Target

WORKER = "edgefuse.devices.measure.balance_worker"
LEAST_CPU_SHARE = 0.9
_TIMEOUT_S = 120.0
_BUSY = (
    "the balance was measured on a busy machine, with {:.0%} of a CPU: its figures are off; "
    "measure again with --measure when the machine is idle"
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class KnownBalance:
    """A target's balance.

    Attributes:
        sources: how each figure was obtained, by its name in the target file.
        int8_ops_per_s: int8 multiplications and additions; None: not known.
        warning: why the figures are not to be relied on; empty when they are.
    """

    balance: Balance
    sources: Mapping[str, str]
    int8_ops_per_s: float | None = None
    warning: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.balance.to_json(),
            "int8_ops_per_s": self.int8_ops_per_s,
            "sources": dict(self.sources),
            "warning": self.warning,
        }


def balance_of(target: Target, log: Path, *, anew: bool = False) -> KnownBalance | None:
    """The target's balance; None when its file has none.

    Args:
        log: the measuring process's standard error is appended here.
        anew: measure even if this machine was measured before.

    Raises:
        ToolError: the measurement failed.
        StoreError: its result cannot be kept.
    """
    given = target.balance
    if given is None:
        return None
    if given == "measured":
        return measured(target.threads, log, anew=anew)
    figures = {name: getattr(given, name) for name in type(given).model_fields}
    sources = {name: figure.source for name, figure in figures.items() if figure is not None}
    vector, int8 = given.vector_flops_per_s, given.int8_ops_per_s
    balance = Balance(
        launch_s=given.launch_us.value / 1e6,
        bytes_per_s=given.bytes_per_s.value,
        flops_per_s=given.flops_per_s.value,
        vector_flops_per_s=None if vector is None else vector.value,
        parallel_tiles=1 if given.parallel_tiles is None else int(given.parallel_tiles.value),
    )
    return KnownBalance(balance, sources, None if int8 is None else int8.value)


def measured(threads: int, log: Path, *, anew: bool = False) -> KnownBalance:
    """This machine's balance with so many threads, from the store or measured now.

    Raises:
        ToolError, StoreError: as :func:`balance_of`.
    """
    machine = fingerprint(f"onnxruntime {version('onnxruntime')}")["sha256"]
    place = {"machine": machine, "threads": threads, "code": code_digest(WORKER)}
    path = default_root() / "balances" / f"{digest_json(place)}.json"
    figures = None if anew else _kept(path)
    if figures is None:
        figures = _measure(threads, log)
        if figures["cpu_share"] >= LEAST_CPU_SHARE:
            record = {"digest": digest_json(figures), "figures": figures}
            write_atomically(path, json.dumps(record, sort_keys=True).encode())
    size, share = int(figures["buffer_bytes"]), figures["cpu_share"]
    how = f"measured on this machine, {threads} thread(s), best of several"
    return KnownBalance(
        Balance(
            launch_s=figures["launch_s"],
            bytes_per_s=figures["bytes_per_s"],
            flops_per_s=figures["flops_per_s"],
            parallel_tiles=threads,
        ),
        {
            "launch_us": f"{how}: chains of tiny operators in onnxruntime",
            "bytes_per_s": f"{how}: copies of {size >> 20} MiB by numpy, one thread",
            "flops_per_s": f"{how}: a float32 matrix product by numpy",
        },
        warning="" if share >= LEAST_CPU_SHARE else _BUSY.format(share),
    )


def _kept(path: Path) -> dict[str, float] | None:
    """What was measured before; None when there is nothing, or it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        figures: dict[str, float] = record["figures"]
        return figures if digest_json(figures) == record["digest"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(threads: int, log: Path) -> dict[str, float]:
    variables = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    with started(WORKER, log, environment=variables) as ask:
        figures = ask({"threads": threads}, _TIMEOUT_S)
    if not all(figures[name] > 0 for name in ("launch_s", "bytes_per_s", "flops_per_s")):
        raise ToolError(f"a measurement of this machine came out as nothing: {figures}")
    return figures
