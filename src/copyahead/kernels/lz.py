"""The copying limit: how far each position could be copied by one who knew what comes.

The longest earlier match of every position (overlapping ones too) comes from the suffix order:
taken from the last position to the first, a position's best earlier matches are its neighbours
among the suffixes that begin before it (Crochemore and Ilie, "Computing longest previous
factor in linear time", 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.kernels.compiled import compiled

Ints = npt.NDArray[np.int32]


@compiled("int64(int32[::1], int64, int64, int64)")
def equal_run(tokens: Ints, one: int, other: int, cap: int) -> Any:
    """How many tokens from `one` on equal those from `other` on, at most `cap`."""
    end = len(tokens) - max(one, other)
    most = min(cap, end)
    count = 0
    while count < most and tokens[one + count] == tokens[other + count]:
        count += 1
    return count


@compiled("void(int32[::1], int32[::1], int64, int32[:, ::1], int32[::1])")
def longest_earlier(tokens: Ints, order: Ints, cap: int, links: Ints, lengths: Ints) -> None:
    """Fill `lengths[i]`: the longest match of position i with an earlier one, at most `cap`.

    `order`: positions sorted by their first `cap` tokens or more, ties by position.
    `links`: scratch of shape (2, tokens).
    """
    size = len(tokens)
    before, after = links[0], links[1]
    previous = -1
    for place in range(size):
        position = order[place]
        before[position] = previous
        if previous >= 0:
            after[previous] = position
        previous = position
    if previous >= 0:
        after[previous] = -1
    for position in range(size - 1, -1, -1):
        one, other = before[position], after[position]
        best = 0
        if one >= 0:
            best = equal_run(tokens, one, position, cap)
            after[one] = other
        if other >= 0:
            best = max(best, equal_run(tokens, other, position, cap))
            before[other] = one
        lengths[position] = best


@compiled("void(int32[::1], int64, int64, int64[::1])")
def parse(lengths: Ints, start: int, end: int, counts: npt.NDArray[np.int64]) -> None:
    """Greedy rounds over `[start, end)`: a copy as long as it can be, then one token more.

    Adds to `counts[k]` the number of rounds with a copy of k tokens.
    """
    position = start
    while position < end:
        copied = int(lengths[position])
        if copied > end - position:
            copied = end - position
        counts[copied] += 1
        position += copied + 1
