"""Queries, made once each: a policy asks for the same few round after round."""

from __future__ import annotations

from functools import lru_cache

from copyahead.contracts import Query, Winner


@lru_cache(maxsize=4096)
def query_for(
    keys: tuple[int, ...], min_match: int, max_tokens: int, winner: Winner = "longest"
) -> Query:
    """The Query with these fields."""
    return Query(keys=keys, min_match=min_match, max_tokens=max_tokens, winner=winner)
