"""A goal that no rewrite keeps to: the least that the same search reaches, and what would help.

Problem: who is refused needs a figure to give instead, and one that holds. So the least is of what
the search for a goal itself comes to: given as the goal, it is reached. It is called the least only
where all there is was judged; else it is the least found.

Left alone: whose words name the goal (a recipe's key, an option): callers write their own hints.
"""

from __future__ import annotations

from math import ceil

from edgefuse.errors import GateFailed


class OutOfReach(GateFailed):
    """No rewrite that is allowed keeps to the goal.

    Args:
        least_bytes: the least arena of what the search comes to; None where there is nothing.
        exact: whether all there is was judged.
        sufficient_multiply_adds: with which the goal would be reached; None where none were found.
        multiply_adds: of the file as given.
    """

    def __init__(
        self,
        message: str,
        *,
        least_bytes: int | None,
        exact: bool,
        sufficient_multiply_adds: int | None = None,
        multiply_adds: int = 0,
        hint: str = "",
        where: str = "",
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.least_bytes = least_bytes
        self.exact = exact
        self.sufficient_multiply_adds = sufficient_multiply_adds
        self.multiply_adds = multiply_adds

    @property
    def sufficient_share(self) -> float | None:
        """The limit with which the goal would be reached, rounded up to a thousandth."""
        if self.sufficient_multiply_adds is None or not self.multiply_adds:
            return None
        share = self.sufficient_multiply_adds / self.multiply_adds - 1
        return ceil(share * 1000 + 1e-6) / 1000


def remedies(error: OutOfReach, goal: str, limit: str) -> str:
    """The hint: what to write for the goal and the limit, by the words that the user has for them.

    Args:
        goal: the option or key that holds the goal, as ``memory.arena_bytes``.
        limit: the option or key that holds the limit.
    """
    least, share = error.least_bytes, error.sufficient_share
    ways = [] if least is None else [f"{goal} of at least {least} bytes"]
    ways += [] if share is None else [f"{limit} of {share:g}"]
    return f"give {', '.join([*ways, 'a smaller input picture'])}, or a narrower network"
