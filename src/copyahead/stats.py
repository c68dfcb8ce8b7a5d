"""What copying did: counters of one request, and of the process.

    rounds                passes that this request took part in with a row of its own
    plain_rounds          rounds without a draft
    num_draft_tokens      drafted tokens that were verified
    num_accepted_tokens   those of them that were kept and delivered
    kept_drafts           drafts of which at least one token was kept

Always: accepted <= drafted, and emitted tokens = accepted + rounds - (blocks that ended on an
accepted token). The bonus token is never counted as accepted.
"""

from __future__ import annotations

import logging

import msgspec

from copyahead.types import Draft, Source

logger = logging.getLogger(__name__)

LOG_EVERY = 1024


class SourceCount(msgspec.Struct):
    """Drafted and accepted tokens of one source."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class CopyStats(msgspec.Struct):
    """Counters of one request, or, added up, of many."""

    rounds: int = 0
    plain_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    kept_drafts: int = 0
    longest_match: int = 0
    window: int | None = None
    """Draft length that the policy would now allow, where it has such a state."""
    drafter_faults: int = 0
    """Rounds that ran plain because a drafter raised."""
    retries: int = 0
    """Passes repeated without drafts because they failed."""
    preemptions: int = 0
    """Times the request gave its place up for lack of KV cells, and took it again."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was kept from an earlier request."""
    num_output_tokens: int = 0
    prefill_seconds: float = 0.0
    """From admission to the first token."""
    decode_seconds: float = 0.0
    """From the first token to the last."""
    draft_seconds: float = 0.0
    """This request's part of the time spent on proposing."""
    verify_seconds: float = 0.0
    """This request's part of the time spent in target passes after its prompt, by rows."""
    num_model_passes: int = 0
    """Passes of the draft model that this request took part in."""
    num_model_skips: int = 0
    """Rounds in which the draft model was not asked, because a copy was certain enough or because
    it does not pay."""
    model_seconds: float = 0.0
    """This request's part of the time spent in the draft model's passes."""
    num_compared: int = 0
    """Rounds in which there were a copy and a draft of the model's, so that they could agree."""
    num_agreed: int = 0
    """Those of them in which both began with the same token."""
    by_source: dict[Source, SourceCount] = msgspec.field(default_factory=dict)
    accepted_per_position: list[int] = msgspec.field(default_factory=list)
    """`accepted_per_position[j]`: how often drafted token j was kept."""

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a round; 1.0 is plain decoding, and 0.0 before the first round."""
        return self.num_output_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, over the time they took; 0.0 with fewer than two."""
        if self.decode_seconds <= 0.0 or self.num_output_tokens < 2:
            return 0.0
        return (self.num_output_tokens - 1) / self.decode_seconds

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0.0 when nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def record_round(self, draft: Draft, num_accepted: int, num_emitted: int) -> None:
        """Count a settled round: `draft` was verified, `num_accepted` of it were kept."""
        self.rounds += 1
        self.num_output_tokens += num_emitted
        if not draft.tokens:
            self.plain_rounds += 1
            return
        self.num_draft_tokens += len(draft)
        self.num_accepted_tokens += num_accepted
        self.kept_drafts += num_accepted > 0
        self.longest_match = max(self.longest_match, draft.match_length)
        self._record_sources(draft, num_accepted)
        missing = num_accepted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1

    def _record_sources(self, draft: Draft, num_accepted: int) -> None:
        """Count each part of the draft for its own source."""
        ends = [start for start, _ in draft.parts] + [len(draft)]
        start = 0
        for end in ends:
            source = draft.source_at(start)
            if source is not None:
                count = self.by_source.setdefault(source, SourceCount())
                count.num_draft_tokens += end - start
                count.num_accepted_tokens += min(max(num_accepted - start, 0), end - start)
            start = end

    def add(self, other: CopyStats) -> None:
        """Add another request's counters to these. It may be counting in another thread."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest_match = max(self.longest_match, other.longest_match)
        for source, theirs in dict(other.by_source).items():
            count = self.by_source.setdefault(source, SourceCount())
            count.num_draft_tokens += theirs.num_draft_tokens
            count.num_accepted_tokens += theirs.num_accepted_tokens
        accepted = list(other.accepted_per_position)
        missing = len(accepted) - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position, times in enumerate(accepted):
            self.accepted_per_position[position] += times


_SUMMED = tuple(
    name
    for name in CopyStats.__struct_fields__
    if name not in {"longest_match", "window", "by_source", "accepted_per_position"}
)


class CopyLog:
    """Writes a log line at the first copy of the process and at every 1,024th after it."""

    def __init__(self) -> None:
        self.copies = 0
        self.proposed = 0
        self.accepted = 0
        self.shared = 0
        """Those of the accepted tokens that came from the shared store."""

    def record(self, draft: Draft, num_accepted: int, window: int | None) -> None:
        """Count one verified copy (a draft with at least one token)."""
        self.copies += 1
        self.proposed += len(draft)
        self.accepted += num_accepted
        if draft.source is Source.SHARED:
            self.shared += num_accepted
        if self.copies % LOG_EVERY == 1:
            logger.info(
                "copies verified: copies=%d proposed=%d accepted=%d shared=%d window=%s",
                self.copies,
                self.proposed,
                self.accepted,
                self.shared,
                "-" if window is None else window,
            )
