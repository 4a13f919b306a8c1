"""Rounding that makes good its own errors: GPTQ, in closed form.

Rounding one weight to the grid changes the output by an error that the weights still to be rounded
can take back. With H = E[x x^T] of the layer's inputs and U the upper Cholesky factor of its
inverse, column by column

    q_j = clip(round(w_j / s)),   w_k -= (w_j - s q_j) U_jk / U_jj   for all k > j

minimises E[((w - s q) x)^2] greedily. Columns of large inputs come first (Frantar et al., 2022,
arXiv:2210.17323, section 3; Hassibi and Stork, 1993, for the update).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 64
_LARGEST = 127


def round_rows(weights: Tensor, hessian: Tensor, scales: Tensor, damping: float) -> Tensor:
    """Integers for many rows of weights that share their inputs.

    Args:
        weights: [rows, K], real.
        hessian: [K, K], of the inputs.
        scales: [rows], the grid of each.
        damping: share of the mean of H's diagonal that is added to it, so that few samples do not
            decide what they cannot.

    Returns:
        [rows, K] integers -127..127, float64.
    """
    import torch

    order = torch.argsort(torch.diagonal(hessian), descending=True, stable=True)
    left = weights.double()[:, order].clone()
    factor = _factor(hessian.double()[order][:, order], damping)
    steps = scales.double()
    rounded = torch.zeros_like(left)
    columns = left.shape[1]
    for begin in range(0, columns, _BLOCK):
        end = min(begin + _BLOCK, columns)
        errors = torch.zeros(left.shape[0], end - begin, dtype=left.dtype)
        for j in range(begin, end):
            rounded[:, j] = torch.clamp(torch.round(left[:, j] / steps), -_LARGEST, _LARGEST)
            errors[:, j - begin] = (left[:, j] - rounded[:, j] * steps) / factor[j, j]
            left[:, j + 1 : end] -= errors[:, j - begin, None] * factor[j, j + 1 : end]
        left[:, end:] -= errors @ factor[begin:end, end:]
    return rounded[:, torch.argsort(order)]


def round_channels(weights: Tensor, hessians: Tensor, scales: Tensor, damping: float) -> Tensor:
    """Integers for rows of weights of which each has inputs of its own (a depthwise kernel).

    Args:
        weights: [channels, K].
        hessians: [channels, K, K].
        scales, damping: as :func:`round_rows`.
    """
    import torch

    count = weights.shape[1]
    order = torch.argsort(
        torch.diagonal(hessians, dim1=1, dim2=2), dim=1, descending=True, stable=True
    )
    left = torch.gather(weights.double(), 1, order)
    rows = order[:, :, None].expand(-1, -1, count)
    columns = order[:, None, :].expand(-1, count, -1)
    factor = _factor(torch.gather(torch.gather(hessians.double(), 1, rows), 2, columns), damping)
    steps = scales.double()
    rounded = torch.zeros_like(left)
    for j in range(count):
        rounded[:, j] = torch.clamp(torch.round(left[:, j] / steps), -_LARGEST, _LARGEST)
        error = (left[:, j] - rounded[:, j] * steps) / factor[:, j, j]
        left[:, j + 1 :] -= error[:, None] * factor[:, j, j + 1 :]
    return torch.gather(rounded, 1, torch.argsort(order, 1))


def _factor(hessian: Tensor, damping: float) -> Tensor:
    """U with U^T U = inverse of the damped H, for one H or a stack of them."""
    import torch

    count = hessian.shape[-1]
    mean = torch.diagonal(hessian, dim1=-2, dim2=-1).mean(-1)
    # An input that is always zero weighs nothing: any rounding will do.
    added = damping * mean + 1e-12
    damped = hessian + added[..., None, None] * torch.eye(count, dtype=hessian.dtype)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
