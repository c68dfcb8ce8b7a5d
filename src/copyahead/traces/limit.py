"""The copying limit of a trace: the fewest rounds that copies from the request's own text take.

The greedy LZ77 parse: every round copies the longest earlier match, at most as long as a draft
may be, and the target adds a token. It knows what comes. A drafter can still be faster: it may
copy from a store, join several matches in one draft, or save the last row of a short answer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyahead.config import MAX_DRAFT_TOKENS

Tokens = npt.NDArray[np.int32]


def longest_earlier_matches(tokens: Tokens, cap: int = MAX_DRAFT_TOKENS) -> Tokens:
    """For every position, the longest match with an earlier one; int32, at most `cap`."""
    from copyahead.kernels import lz

    tokens = np.ascontiguousarray(tokens, dtype=np.int32)
    lengths = np.zeros(len(tokens), dtype=np.int32)
    links = np.zeros((2, len(tokens)), dtype=np.int32)
    lz.longest_earlier(tokens, suffix_order(tokens, cap), cap, links, lengths)
    return lengths


def suffix_order(tokens: Tokens, depth: int) -> Tokens:
    """Positions sorted by at least their first `depth` tokens, equal ones by position.

    Prefix doubling (Karp, Miller and Rosenberg, 1972), stopped once `depth` is covered.
    """
    _, ranks = np.unique(tokens, return_inverse=True)
    ranks = ranks.astype(np.int64) + 1
    size, covered = len(tokens), 1
    order = np.argsort(ranks, kind="stable")
    while covered < depth:
        second = np.zeros(size, dtype=np.int64)
        second[: max(0, size - covered)] = ranks[covered:]
        keys = ranks * (size + 1) + second
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        ranks = np.empty(size, dtype=np.int64)
        ranks[order] = 1 + np.cumsum(np.diff(sorted_keys, prepend=sorted_keys[:1]) != 0)
        covered *= 2
    return order.astype(np.int32)


def limit_rounds(lengths: Tokens, start: int, end: int) -> npt.NDArray[np.int64]:
    """Rounds of the parse over `[start, end)` by length of their copy; int64, one a length."""
    from copyahead.kernels import lz

    counts = np.zeros(MAX_DRAFT_TOKENS + 1, dtype=np.int64)
    lz.parse(lengths, start, end, counts)
    return counts
