"""Counters are added up while the engine's thread counts."""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any

from copyahead.stats import CopyStats, SourceCount
from copyahead.types import Source


class GrowingList(list[int]):
    """Grows by one right after it was measured, as under another thread's hands."""

    def __len__(self) -> int:
        length = super().__len__()
        self.append(1)
        return length


class GrowingDict(dict[Source, SourceCount]):
    """Gets a key as soon as it is walked through."""

    def items(self) -> ItemsView[Source, SourceCount]:  # type: ignore[override]
        def walk() -> Any:
            for item in dict.items(self):
                self[Source.GRAMMAR] = SourceCount()
                yield item

        return walk()  # type: ignore[no-any-return]


def test_counters_that_grow_meanwhile_are_added_as_they_were_at_one_moment() -> None:
    growing = CopyStats(accepted_per_position=GrowingList([3, 2]))
    growing.by_source = GrowingDict({Source.PROMPT: SourceCount(5, 4)})
    total = CopyStats(accepted_per_position=[1])
    total.add(growing)
    assert total.accepted_per_position[:2] == [4, 2]
    assert total.by_source[Source.PROMPT] == SourceCount(5, 4)
