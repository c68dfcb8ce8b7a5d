"""Drafts of a small model with the same tokenizer, read beside the one that is answered with.

The draft model has a slot of its own for each slot of the engine. What a slot holds is compared
with the history and the chain, and cut to what they have in common: so rejected drafts, the next
turn of a conversation, a request that was cancelled or gave its place up, all follow from the
content, and nothing has to be told. Nothing that this model rounds can change a text: its tokens
are proposals like any other.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Sequence
from typing import Unpack, cast

import msgspec
import numpy as np

from copyahead.acceptance import inverse_cdf
from copyahead.config import DraftModelOptions
from copyahead.contracts import Backend, DraftSession, Logits, ModelUse, NextToken, Opening, Part
from copyahead.drafters.pass_seconds import PassSeconds, measure
from copyahead.drafters.rounds import chain_of
from copyahead.errors import BackendError, ModelError
from copyahead.sampling import SamplingOptions
from copyahead.types import Draft, Token

MIN_FORK = 32
"""Rows that a fork of another slot must save; more rows than these are read ahead, alone."""
MAX_FAULTS = 3
"""Failed passes in a row after which a session drafts no more."""
_DRAFT_STREAM = 0x5EED
"""Keeps the draws of drafts apart from those of the request, which may have the same seed: drafts
that knew the draws that judge them would be judged wrongly."""
_CHUNK = 256


class ModelSession:
    """One request. Implements `contracts.DraftSession`."""

    window: int | None = None

    def __init__(
        self,
        drafter: ModelDrafter,
        slot: int,
        tenant: str,
        prompt: Sequence[Token],
        sampling: SamplingOptions | None,
    ) -> None:
        self._drafter = drafter
        self.slot = slot
        self.tenant = tenant
        self.history: list[Token] = list(prompt)
        self.num_agreed = 0
        """Tokens of the history that the slot is known to hold."""
        self.faults = 0
        """Failed passes since the last one that did not fail."""
        self.use = ModelUse()
        """Its passes, and its part of their time, by rows."""
        self.temperature = 0.0 if sampling is None or sampling.greedy else sampling.temperature
        """0: the likeliest token is drafted."""
        self._random: np.random.Generator | None = None
        self._seed = None if sampling is None else sampling.seed
        # What was drawn this round, so that asking again gives the same.
        self.drawn: dict[tuple[Token, ...], NextToken] = {}

    @property
    def random(self) -> np.random.Generator:
        """Where sampled drafts are drawn from."""
        if self._random is None:
            seed = None if self._seed is None else (self._seed, _DRAFT_STREAM)
            self._random = np.random.default_rng(seed)
        return self._random

    def propose(self, limit: int) -> Draft:
        """See `contracts.DraftSession.propose`."""
        return self._drafter.propose_batch([self], [limit])[0]

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """See `contracts.DraftSession.settle`: what was emitted is history now."""
        self.history += emitted
        self.drawn.clear()

    def truncate(self, length: int) -> None:
        """See `contracts.DraftSession.truncate`."""
        del self.history[length:]
        self.num_agreed = min(self.num_agreed, len(self.history))
        self.drawn.clear()

    def close(self) -> None:
        """Give the slot back; what it holds stays for a next turn. Idempotent."""
        self._drafter.release(self)


class _Slot(msgspec.Struct):
    """What a slot of the draft model holds, and whose it is."""

    held: list[Token] = msgspec.field(default_factory=list)
    tenant: str = ""


class ModelDrafter:
    """A draft model for all requests of an engine. Implements `contracts.ChainDrafter`.

    As a `Drafter` by itself it drafts chains of up to `draft_max` tokens, whatever they cost.
    """

    def __init__(
        self,
        backend: Backend,
        options: DraftModelOptions | None = None,
        *,
        seconds: PassSeconds | None = None,
    ) -> None:
        """`backend` has a slot for each of the engine's, all empty. `seconds`: measured when not
        given. Raises ModelError where the model cannot be rewound."""
        self.backend = backend
        self.options = options or DraftModelOptions()
        self._limits = backend.capabilities
        if self._limits.max_rewind is not None:
            raise ModelError(
                f"draft_model {backend.name} keeps a recurrent state, which cannot be taken back "
                "to where a draft broke: take a model of attention layers only"
            )
        self.pass_seconds = seconds or PassSeconds(measure(backend), self._limits.max_rows)
        self._vocab_size = backend.tokenizer.vocab_size
        self._end_tokens = backend.tokenizer.end_tokens
        self._slots = [_Slot() for _ in range(self._limits.num_slots)]
        self._open: dict[int, ModelSession] = {}
        self._min_fork = min(MIN_FORK, self._limits.max_rows)

    @property
    def max_chain(self) -> int:
        """See `contracts.ChainDrafter.max_chain`."""
        return self.options.draft_max

    def open(self, prompt: Sequence[Token], *, slot: int, **asked: Unpack[Opening]) -> ModelSession:
        """See `contracts.Drafter.open`. With `draft_sample`, drafts follow `sampling`."""
        if slot in self._open:
            raise ValueError(f"slot {slot} has an open session: close it first")
        tenant = asked.get("tenant", "")
        if self._slots[slot].tenant != tenant:
            # How fast a prompt is read would tell what another has left.
            self._cut(slot, 0)
            self._slots[slot].tenant = tenant
        sampling = asked.get("sampling") if self.options.draft_sample else None
        session = self._open[slot] = ModelSession(self, slot, tenant, prompt, sampling)
        return session

    def release(self, session: ModelSession) -> None:
        """Let another session open in this session's slot. Idempotent."""
        if self._open.get(session.slot) is session:
            del self._open[session.slot]

    def forget(self) -> None:
        """See `contracts.Drafter.forget`."""
        for slot in range(len(self._slots)):
            self._cut(slot, 0)

    def check(self) -> None:
        """See `contracts.Drafter.check`."""
        self.backend.check()
        for number, slot in enumerate(self._slots):
            length = self.backend.length(number)
            assert length == len(slot.held), (
                f"slot {number} of the draft model is said to hold {len(slot.held)} tokens and "
                f"holds {length}"
            )
        for number, session in self._open.items():
            assert session.slot == number, f"slot {number} has the session of {session.slot}"
            agreed, held = session.num_agreed, self._slots[number].held
            assert agreed <= len(held), f"slot {number} holds less than was agreed on"
            assert held[:agreed] == session.history[:agreed], (
                f"slot {number} of the draft model does not hold the history it is said to hold"
            )

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """See `contracts.Drafter.propose_batch`: a pass for all, for each token of the longest."""
        lengths = [min(limit, self.max_chain) for limit in limits]
        chains: list[list[NextToken]] = [[] for _ in sessions]
        going = [place for place, length in enumerate(lengths) if length > 0]
        while going:
            found = self.extend(
                [sessions[place] for place in going],
                [[said.token for said in chains[place]] for place in going],
            )
            for place, said in zip(going, found, strict=True):
                if said is not None:
                    chains[place].append(said)
            going = [
                place
                for place, said in zip(going, found, strict=True)
                if said is not None and len(chains[place]) < lengths[place]
            ]
        return [chain_of(chain) for chain in chains]

    def extend(
        self, sessions: Sequence[DraftSession], chains: Sequence[Sequence[Token]]
    ) -> list[NextToken | None]:
        """See `contracts.ChainDrafter.extend`.

        None also after an end token of the chain, where what comes next is less likely than
        `draft_min_prob`, and for a request whose passes keep failing.
        """
        found: list[NextToken | None] = [None] * len(sessions)
        asked: list[int] = []
        ours = cast("Sequence[ModelSession]", sessions)
        for place, (session, chain) in enumerate(zip(ours, chains, strict=True)):
            found[place] = session.drawn.get(tuple(chain)) if session.drawn else None
            if found[place] is None and not self._is_silent(session, chain):
                asked.append(place)
        try:
            for place in asked:
                self._read_ahead(ours[place], chains[place])
            for places in self._passes(asked, ours, chains):
                parts = [self._part(ours[place], chains[place]) for place in places]
                logits = self._forward(parts, [ours[place] for place in places])
                for place, rows in zip(places, logits, strict=True):
                    found[place] = self._next(ours[place], chains[place], rows[-1])
        except BaseException:
            for place in asked:
                ours[place].faults += 1
            self._recover([ours[place].slot for place in asked])
            raise
        for place in asked:
            ours[place].faults = 0
        return found

    def num_rows(self, session: DraftSession, chain: Sequence[Token]) -> int:
        """See `contracts.ChainDrafter.num_rows`."""
        ours = cast("ModelSession", session)
        if self._is_silent(ours, chain):
            return 1
        return len(ours.history) + len(chain) - self._align(ours, chain)

    def seconds(self, num_rows: int) -> float:
        """See `contracts.ChainDrafter.seconds`."""
        return self.pass_seconds(num_rows)

    def longest_read(self, seconds: float) -> int:
        """The longest text, up to the context, that it reads in so many seconds."""
        texts = range(1, self._limits.context_size + 1)
        return bisect.bisect_right(texts, seconds, key=self.seconds)

    def _is_silent(self, session: ModelSession, chain: Sequence[Token]) -> bool:
        length = len(session.history) + len(chain)
        ended = bool(chain) and chain[-1] in self._end_tokens
        full = not 0 < length <= self._limits.context_size
        return ended or full or session.faults >= MAX_FAULTS

    def _align(self, session: ModelSession, chain: Sequence[Token]) -> int:
        """How many tokens of history and chain the slot holds; the last always remains to read.

        Where another slot of the tenant holds many more, they are forked.
        """
        common = self._num_held(session, chain)
        length = len(session.history) + len(chain)
        if length - common > self._min_fork and self._limits.can_fork:
            donor, most = -1, common + self._min_fork
            for number, slot in enumerate(self._slots):
                if number != session.slot and slot.tenant == session.tenant:
                    shared = _common_length(slot.held, session.history, 0, most)
                    if shared >= most:
                        donor, most = number, shared + 1
            if donor >= 0:
                self._fork(donor, session, most - 1)
                common = session.num_agreed
        return min(common, length - 1)

    def _num_held(self, session: ModelSession, chain: Sequence[Token]) -> int:
        held, history = self._slots[session.slot].held, session.history
        session.num_agreed = _common_length(held, history, session.num_agreed)
        if session.num_agreed < len(history):
            return session.num_agreed
        return len(history) + _common_length(held[len(history) :], list(chain))

    def _fork(self, donor: int, session: ModelSession, length: int) -> None:
        slot = session.slot
        self._cut(slot, 0)
        self.backend.fork(donor, slot, length)
        self._slots[slot].held = self._slots[donor].held[:length]
        session.num_agreed = length

    def _part(self, session: ModelSession, chain: Sequence[Token]) -> Part:
        """The rows that are missing, with the logits of the last."""
        start = self._cut(session.slot, self._align(session, chain))
        tokens = [*session.history[start:], *chain[max(0, start - len(session.history)) :]]
        return Part(session.slot, start, tokens, 1)

    def _read_ahead(self, session: ModelSession, chain: Sequence[Token]) -> None:
        """Read what is missing of a long text, but for the end: another slot may fork it then."""
        length = len(session.history) + len(chain)
        while length - self._align(session, chain) > self._min_fork:
            part = self._part(session, chain)
            count = min(len(part.tokens) - 1, self._limits.max_rows)
            part = Part(part.slot, part.start, part.tokens[:count], 0)
            self._forward([part], [session])

    def _passes(
        self,
        places: Sequence[int],
        sessions: Sequence[ModelSession],
        chains: Sequence[Sequence[Token]],
    ) -> list[list[int]]:
        """`places` in as few passes as their rows fit into: one, unless there are very many."""
        passes: list[list[int]] = []
        room = 0
        for place in places:
            count = self.num_rows(sessions[place], chains[place])
            if count > room:
                passes.append([])
                room = self._limits.max_rows
            passes[-1].append(place)
            room -= count
        return passes

    def _forward(self, parts: list[Part], sessions: list[ModelSession]) -> list[Logits]:
        """One pass, noted in the books."""
        began = time.perf_counter()
        logits = self.backend.forward(parts)
        seconds = time.perf_counter() - began
        num_rows = sum(len(part.tokens) for part in parts)
        self.pass_seconds.observe(num_rows, seconds)
        for part, session in zip(parts, sessions, strict=True):
            self._slots[part.slot].held += part.tokens
            session.use.num_passes += 1
            session.use.seconds += seconds * len(part.tokens) / num_rows
        return logits

    def _cut(self, slot: int, length: int) -> int:
        """Make the slot hold its first `length` tokens, or none where that fails; how many."""
        if length < len(self._slots[slot].held) or length == 0:
            try:
                self.backend.truncate(slot, length)
            except BackendError:
                length = 0
                self.backend.truncate(slot, 0)
            del self._slots[slot].held[length:]
            if slot in self._open:
                self._open[slot].num_agreed = min(self._open[slot].num_agreed, length)
        return length

    def _recover(self, failed: Sequence[int]) -> None:
        """After a pass over the slots `failed`: empty them, and others that have lost something."""
        for number, slot in enumerate(self._slots):
            if number in failed or self.backend.length(number) != len(slot.held):
                self._cut(number, 0)

    def _next(
        self, session: ModelSession, chain: Sequence[Token], logits: Logits
    ) -> NextToken | None:
        """The token for the next place, from its row of logits."""
        row = logits[: self._vocab_size]
        best = int(row.argmax())
        scale = session.temperature or 1.0
        weights = np.exp((row - row[best]) / scale)
        total = float(weights.sum())
        # Before the draw: a draft that ends because of what was drawn would be judged wrongly.
        if not math.isfinite(total) or self.options.draft_min_prob * total > 1.0:
            return None
        if session.temperature == 0.0:
            return NextToken(best, 1.0 / total)
        probs = weights / np.float32(total)
        total = float(probs.sum(dtype=np.float64))
        token = inverse_cdf(probs.astype(np.float64), session.random.random() * total)
        said = session.drawn[tuple(chain)] = NextToken(token, float(probs[token]), probs)
        return said


def _common_length(left: list[Token], right: list[Token], start: int = 0, at_least: int = 0) -> int:
    """How long a beginning the two share, of which `start` tokens are known to be equal.

    0 where it is shorter than `at_least`: then not all of it is looked at.
    """
    end = min(len(left), len(right))
    if end < at_least or (at_least and left[at_least - 1] != right[at_least - 1]):
        return 0
    while start < end:
        stop = min(start + _CHUNK, end)
        if left[start:stop] != right[start:stop]:
            while left[start] == right[start]:  # Not for long: the two slices differ.
                start += 1
            break
        start = stop
    return start if start >= at_least else 0
