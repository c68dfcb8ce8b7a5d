"""A *place*: where a token stands, in the request's own row or in the shared store.

Places below SHARED are positions of the row. From SHARED on they are positions of the store's
ring, so that one number names both kinds, and places of the two are never near each other.
"""

from __future__ import annotations

from typing import Any

from copyahead.kernels.compiled import INT, INTS, INTS2, compiled
from copyahead.kernels.index import (
    BARRIER,
    SHARED,
    VIEW,
    Cells,
    Heads,
    Ints,
    View,
    insert_keys,
)

_REACH = 256
"""Further from the text's end no search goes: an anchor's gap, what is near it, and a draft."""


@compiled(INTS2(INTS2, INTS2, INT))
def text_of(cells: Cells, shared: Cells, place: int) -> Any:
    """The cells that `place` is in."""
    if place >= SHARED:
        return shared
    return cells


@compiled(INT(INT))
def position_of(place: int) -> Any:
    """The position in those cells."""
    return place - SHARED if place >= SHARED else place


@compiled(INT(VIEW, INT))
def token_at(view: View, place: int) -> Any:
    """The token at `place`, or BARRIER."""
    return view.shared[place - SHARED, 0] if place >= SHARED else view.cells[place, 0]


@compiled(INT(INT, INT, INT))
def age(position: int, end: int, size: int) -> Any:
    """How many tokens a ring of `size` took in from `position` on, when it goes on at `end`."""
    behind = end - position
    return behind if behind > 0 else behind + size


@compiled(INT(VIEW, INT))
def distance(view: View, place: int) -> Any:
    """How far back a place lies: the store's newest token comes before the row's first one."""
    if place < SHARED:
        return view.length - place
    return view.length + age(place - SHARED, view.end, len(view.shared))


@compiled(INT(INTS2, INTS2, INT, INT, INT, INTS))
def append_document(
    cells: Cells, heads: Heads, end: int, filled: int, vocab_size: int, tokens: Ints
) -> Any:
    """Write a document to a ring, over its oldest text, and index it; returns the new end.

    It has at most `len(cells) - 2` tokens. A barrier stands before and behind every document, and
    in the cells beyond `filled`, which were never written, as far as a search near an anchor goes.
    What is overwritten stays in the chains: its hits are compared like any other.
    """
    if end == 0 or end + len(tokens) + 1 > len(cells):
        cells[0, 0] = BARRIER
        end = 1
    for k in range(len(tokens)):
        token = tokens[k]
        cells[end, 0] = token if 0 <= token < vocab_size else BARRIER
        if k > 0:
            insert_keys(cells, heads, end - 1)
        end += 1
    cells[end, 0] = BARRIER
    end += 1
    for unwritten in range(max(end, filled), min(end + _REACH, len(cells))):
        cells[unwritten, 0] = BARRIER
    return end
