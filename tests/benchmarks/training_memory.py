"""A training step of eight inverted residuals within budgets of its peak, beside other ways.

usage: python tests/benchmarks/training_memory.py [--rounds 15] [--no-compile]

8 blocks of 6 channels widened to 36, pictures of 96x96, batch 8, one thread. Writes
training_memory.md and training_memory.json beside this file: peak bytes by the deterministic meter,
times of interleaved rounds, the processor's own being what other programs hardly change. Ends with
1 when a peak passes its budget, the step within 25% takes more than 25% longer than eager, a
gradient departs by more than 1e-5, or a BatchNorm statistic differs from the plain step's.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgefuse.memory.remat import Row, compare_step, rematerialise

HERE = Path(__file__).parent
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.25)
MOST_SLOWER, MOST_OFF = 1.25, 1e-5


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def network() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(InvertedResidual(6, 36) for _ in range(8))), torch.randn(8, 6, 96, 96)


def against_plain(budget: float) -> tuple[float, bool, int]:
    """The largest relative departure of a gradient, whether all statistics are the same to the
    bit, and how many gradients are, after two steps."""
    net, x = network()
    plain = copy.deepcopy(net)
    rematerialise(net, x, budget=budget)
    for each in (net, plain):
        for _ in range(2):
            each.zero_grad()
            each(x).square().mean().backward()
    worst, same = 0.0, 0
    for p, q in zip(net.parameters(), plain.parameters()):
        assert p.grad is not None and q.grad is not None
        worst = max(worst, float((p.grad - q.grad).abs().max() / q.grad.abs().max()))
        same += torch.equal(p.grad, q.grad)
    pairs = zip(net.named_buffers(), plain.named_buffers())
    return worst, all(m == n and torch.equal(a, b) for (m, a), (n, b) in pairs), same


def table(rows: tuple[Row, ...]) -> str:
    eager = rows[0]
    lines = [
        "| way | budget, MB | predicted, MB | peak, MB | of eager | CPU time of eager's | CPU ms "
        "| ms (range) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        assert row.peak_bytes and row.time_ms and row.spread_ms and row.cpu_ms, row
        assert eager.peak_bytes and eager.cpu_ms
        budget, predicted = (
            "" if size is None else f"{size / 1e6:.1f}"
            for size in (row.budget_bytes, row.predicted_peak_bytes)
        )
        lines.append(
            f"| {row.name} | {budget} | {predicted} | {row.peak_bytes / 1e6:.1f} "
            f"| {100 * row.peak_bytes / eager.peak_bytes:.1f}% | {row.cpu_ms / eager.cpu_ms:.2f} "
            f"| {row.cpu_ms:.0f} | {row.time_ms:.0f} "
            f"({row.spread_ms[0]:.0f} to {row.spread_ms[1]:.0f}) |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile's rows out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    net, x = network()
    rows = compare_step(
        net, x, budgets=BUDGETS, rounds=arguments.rounds, compiled=not arguments.no_compile
    )
    worst, statistics, same = against_plain(0.25)
    faults = [
        f"{row.name}: {row.peak_bytes} bytes of {row.budget_bytes}: {row.refused}"
        for row in rows
        if row.budget_bytes is not None and not 0 < (row.peak_bytes or 0) <= row.budget_bytes
    ]
    slower = (rows[-1].cpu_ms or 0) / (rows[0].cpu_ms or 1)
    if slower > MOST_SLOWER:
        faults.append(f"{rows[-1].name}: {slower:.3f} of eager's CPU time")
    if worst > MOST_OFF or not statistics:
        faults.append(f"gradients off by {worst:g}, statistics the same: {statistics}")
    said = (
        f"Within 25%, after two steps: gradients depart by {worst:g} at most ({same} of "
        f"{len(list(net.parameters()))} are the same to the bit), statistics and counts of "
        f"BatchNorm {'are the same to the bit' if statistics else 'DIFFER'}."
    )
    text = (
        "# A training step within a budget\n\nWritten by `python tests/benchmarks/"
        "training_memory.py`. Eight inverted residuals, 96x96, batch 8, one thread; "
        f"{arguments.rounds} interleaved rounds. torch.compile: AOTAutograd's partitioner at its "
        f"activation_memory_budget, without Inductor.\n\n{table(rows)}\n\n{said}\n"
    )
    print(text)
    found: dict[str, Any] = {
        "rounds": arguments.rounds,
        "torch": torch.__version__,
        "rows": [row.to_json() for row in rows],
        "gradients": {"worst": worst, "same_bits": same},
        "statistics_same": statistics,
    }
    if not arguments.no_compile:
        (HERE / "training_memory.md").write_text(text)
        (HERE / "training_memory.json").write_text(json.dumps(found, indent=1) + "\n")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
