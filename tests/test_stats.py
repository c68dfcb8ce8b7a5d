"""What a round adds to the counters; they are added up while the engine's thread counts."""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any

from copyahead.stats import CopyStats, SourceCount
from copyahead.types import NO_DRAFT, Draft, Source


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


def test_a_round_is_counted() -> None:
    stats = CopyStats(decode_seconds=2.0)
    assert (stats.tokens_per_round, stats.acceptance_rate, stats.tokens_per_second) == (0, 0, 0)
    stats.record_round(Draft((1, 2, 3), Source.PROMPT, 9), num_accepted=2, num_emitted=3)
    stats.record_round(Draft((4, 5), Source.OUTPUT, 4), num_accepted=0, num_emitted=1)
    stats.record_round(NO_DRAFT, num_accepted=0, num_emitted=1)
    assert (stats.rounds, stats.plain_rounds, stats.num_output_tokens) == (3, 1, 5)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.kept_drafts) == (5, 2, 1)
    # The longest of all, though a later draft's match was shorter.
    assert stats.longest_match == 9
    assert stats.accepted_per_position == [1, 1]
    assert stats.by_source == {Source.PROMPT: SourceCount(3, 2), Source.OUTPUT: SourceCount(2, 0)}
    assert stats.tokens_per_round == 5 / 3
    assert stats.acceptance_rate == 2 / 5
    # The first token took the time of the prompt.
    assert stats.tokens_per_second == 4 / 2.0


def test_counters_of_many_requests_are_sums_and_the_longest_of_their_matches() -> None:
    total = CopyStats(rounds=2, longest_match=9, window=4, decode_seconds=1.0)
    total.add(CopyStats(rounds=3, longest_match=5, window=8, decode_seconds=0.5, preemptions=1))
    assert (total.rounds, total.decode_seconds, total.preemptions) == (5, 1.5, 1)
    assert total.longest_match == 9
    total.add(CopyStats(longest_match=12))
    assert total.longest_match == 12
    # A state of one request, and no count.
    assert total.window == 4


def test_a_draft_of_several_sources_is_counted_by_its_parts() -> None:
    draft = Draft((1, 2, 3, 4, 5), Source.PROMPT, 3, parts=((2, Source.MODEL), (4, Source.OUTPUT)))
    stats = CopyStats()
    stats.record_round(draft, 3, 4)
    stats.record_round(draft.first(3), 1, 2)
    assert stats.by_source == {
        Source.PROMPT: SourceCount(4, 3),
        Source.MODEL: SourceCount(3, 1),
        Source.OUTPUT: SourceCount(1, 0),
    }


def test_a_part_ends_where_its_draft_is_cut() -> None:
    draft = Draft((1, 2, 3), Source.MODEL, parts=((2, Source.OUTPUT),))
    assert draft.first(2).parts == ()
    assert [draft.source_at(place) for place in range(3)] == [
        Source.MODEL,
        Source.MODEL,
        Source.OUTPUT,
    ]
