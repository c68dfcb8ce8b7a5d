"""Recorded drafts as a drafter: what a draft model said then stands for what it would say now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, cast

import msgspec
import numpy as np

from copyahead.contracts import DraftSession, NextToken, Opening
from copyahead.traces.corpus import BASE, END, START, Corpus
from copyahead.traces.drafts.draft_file import RecordedDrafts
from copyahead.types import NO_DRAFT, Draft, Source, Token


class ModelCost(msgspec.Struct):
    """The passes of a draft model, and what they took."""

    passes: int = 0
    rows: int = 0
    steps: float = 0.0
    """In passes of the target over one row."""

    def __iadd__(self, other: ModelCost) -> ModelCost:
        self.passes += other.passes
        self.rows += other.rows
        self.steps += other.steps
        return self


class DraftPrice(msgspec.Struct, frozen=True):
    """What a pass of the draft model costs, in passes of the target over one row."""

    of_pass: float
    """A pass over one row."""
    of_row: float
    """Each further row, such as those of a prompt that the draft model has not read yet."""

    def __call__(self, num_rows: int) -> float:
        """A pass over so many rows."""
        return self.of_pass + self.of_row * (num_rows - 1)


class RecordedSession:
    """One request, teacher-forced on what was written. Implements `contracts.DraftSession`."""

    window: int | None = None

    def __init__(self, drafter: RecordedDrafter, request: int, prompt: Sequence[Token]) -> None:
        corpus, drafts = drafter.corpus, drafter.drafts
        row = corpus.requests[request]
        self._drafter = drafter
        self._base, self._start, self._end = int(row[BASE]), int(row[START]), int(row[END])
        assert len(prompt) == self._start, "another request is replayed than was announced"
        self._text = corpus.tokens[self._base : self._base + self._end]
        tokens, probabilities = drafts.of(request)
        self._tokens, self._probabilities = tokens.tolist(), probabilities.tolist()
        self.place = self._start
        """Tokens of the history; the next is drafted for this place of the text."""
        # How much of the text the draft model has read, and what of a chain after all of it.
        held = drafter.num_held(self._base, self._text)
        self._num_held = min(held, self._start)
        self._held: list[Token] = self._text[self._start : held].tolist()

    def propose(self, limit: int) -> Draft:
        """See `contracts.DraftSession.propose`: a chain as long as may be, whatever it costs."""
        return self._drafter.propose_batch([self], [limit])[0]

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """See `contracts.DraftSession.settle`: the draft model has to read what it did not say."""
        if self._num_held == self.place:
            kept = _common_length(self._held, emitted)
            self._num_held += kept
            self._held = self._held[kept:] if kept == len(emitted) else []
        self.place += len(emitted)

    def truncate(self, length: int) -> None:
        """See `contracts.DraftSession.truncate`."""
        self.place = min(self.place, length)
        self._num_held, self._held = min(self._num_held, self.place), []

    def close(self) -> None:
        """What the draft model has read stays for the next turn."""
        held = self._num_held
        if held == self.place:
            held += _common_length(self._held, self._text[self.place :].tolist())
        self._drafter.leave(self._base, held)

    def num_rows(self, chain: Sequence[Token]) -> int:
        """Rows that asking for the token after `chain` takes; 1 where nothing is asked."""
        if self._is_silent(chain):
            return 1
        held = self._num_held
        if held == self.place:
            held += _common_length(self._held, chain)
        length = self.place + len(chain)
        return length - min(held, length - 1)

    def next(self, chain: Sequence[Token]) -> NextToken | None:
        """The token after `chain`. The draft model has read up to there then."""
        if self._is_silent(chain):
            return None
        self._num_held, self._held = self.place, list(chain)
        token, probability = self._answer(chain)
        if token < 0 or probability < self._drafter.min_prob:
            return None
        return NextToken(token, probability)

    def is_asked(self, chain: Sequence[Token]) -> bool:
        """Whether a pass is run for the token after `chain`."""
        return not self._is_silent(chain)

    def _is_silent(self, chain: Sequence[Token]) -> bool:
        return self.place == 0 or (bool(chain) and chain[-1] in self._drafter.end_tokens)

    def _answer(self, chain: Sequence[Token]) -> tuple[Token, float]:
        """See `RecordedDrafter` for which of the recorded tokens answers."""
        place = self.place
        right = 0
        while (
            right < len(chain)
            and place + right < self._end
            and chain[right] == self._text[place + right]
        ):
            right += 1
        left = place + right - self._start
        if right < len(chain) and left < len(self._tokens):
            own = self._tokens[left]
            after = list(chain[right:])
            if own[: len(after)] == after and len(after) < len(own) and own[len(after)] >= 0:
                return own[len(after)], self._probabilities[left][len(after)]
        at = min(place + len(chain) - self._start, len(self._tokens) - 1)
        return self._tokens[at][0], self._probabilities[at][0]


class RecordedDrafter:
    """Recorded drafts of a corpus, replayed. Implements `contracts.ChainDrafter`.

    One request at a time, each announced by `begin`. Which recorded token answers for a chain:

    - While the chain is the recorded text, whoever it came from, the record of the place after it.
    - After a token of the draft model's own that is not the text's, what the draft model went on
      with, as far as that was recorded (`branch_depth`).
    - After any other wrong token, and beyond what was recorded, the record of the place that the
      chain has come to: the token and the probability that would be the answer if the chain were
      right. So no answer tells whether what was copied is right. What it cannot tell either is
      how a draft model would have gone on after a wrong copy; nothing after a wrong token is ever
      accepted, so that could change only what a rule spends there.
    - Past the end of what was written, the record of the place after its last token.

    A record says nothing of what else a draft model may hold: it is taken to have room for all of
    a request, and of a conversation's next turn it reads what is new.
    """

    def __init__(
        self,
        corpus: Corpus,
        drafts: RecordedDrafts,
        price: DraftPrice,
        *,
        max_chain: int | None = None,
        min_prob: float = 0.0,
    ) -> None:
        """`corpus` is cut to the requests that `drafts` are of. `max_chain`: the recorded depth
        when not given. `min_prob`: a chain ends before a less likely token."""
        self.corpus = corpus
        self.drafts = drafts
        self.price = price
        self.min_prob = min_prob
        self.end_tokens = frozenset(corpus.end_tokens)
        self.cost = ModelCost()
        """Of all passes so far; may be replaced to count anew."""
        self._max_chain = min(max_chain or drafts.depth, drafts.depth)
        self._request = -1
        self._left = (0, 0)
        """Where the last request's stream begins, and how much of it was read."""

    @property
    def max_chain(self) -> int:
        """See `contracts.ChainDrafter.max_chain`."""
        return self._max_chain

    def begin(self, request: int) -> None:
        """Say which request of the corpus is opened next."""
        self._request = request

    def open(
        self, prompt: Sequence[Token], *, slot: int, **asked: Unpack[Opening]
    ) -> RecordedSession:
        """See `contracts.Drafter.open`: a session for the request that `begin` named."""
        return RecordedSession(self, self._request, prompt)

    def num_held(self, base: int, text: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
        """How much of the stream that begins at `base` the draft model has read already."""
        other, held = self._left
        if other == base:
            return held
        before = self.corpus.tokens[other : other + min(held, len(text))]
        differ = np.flatnonzero(before != text[: len(before)])
        return int(differ[0]) if len(differ) else len(before)

    def leave(self, base: int, held: int) -> None:
        """A request was closed, and so much of its stream was read."""
        self._left = base, held

    def forget(self) -> None:
        """See `contracts.Drafter.forget`."""
        self._left = (0, 0)

    def check(self) -> None:
        """There are no books that could disagree."""

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """See `contracts.Drafter.propose_batch`: a pass for all, for each token of the longest."""
        lengths = [min(limit, self.max_chain) for limit in limits]
        chains: list[list[Token]] = [[] for _ in sessions]
        going = [number for number, length in enumerate(lengths) if length > 0]
        while going:
            found = self.extend([sessions[n] for n in going], [chains[n] for n in going])
            for number, said in zip(going, found, strict=True):
                if said is not None:
                    chains[number].append(said.token)
            going = [
                number
                for number, said in zip(going, found, strict=True)
                if said is not None and len(chains[number]) < lengths[number]
            ]
        return [Draft(tuple(chain), Source.MODEL) if chain else NO_DRAFT for chain in chains]

    def extend(
        self, sessions: Sequence[DraftSession], chains: Sequence[Sequence[Token]]
    ) -> list[NextToken | None]:
        """See `contracts.ChainDrafter.extend`."""
        ours = cast("Sequence[RecordedSession]", sessions)
        pairs = list(zip(ours, chains, strict=True))
        rows = sum(session.num_rows(chain) for session, chain in pairs if session.is_asked(chain))
        if rows:
            self.cost.passes += 1
            self.cost.rows += rows
            self.cost.steps += self.price(rows)
        return [session.next(chain) for session, chain in pairs]

    def num_rows(self, session: DraftSession, chain: Sequence[Token]) -> int:
        """See `contracts.ChainDrafter.num_rows`."""
        return cast("RecordedSession", session).num_rows(chain)

    def seconds(self, num_rows: int) -> float:
        """See `contracts.ChainDrafter.seconds`: in passes of the target, which replay takes for
        seconds."""
        return self.price(num_rows)


def _common_length(left: Sequence[Token], right: Sequence[Token]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count
