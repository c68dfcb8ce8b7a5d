"""Where the engine meets the drafters: sessions, limits, faults, and the sharing out of rows.

A drafter can slow a request down; it can never fail one. Whatever raises in here makes the
round a plain step, is counted, and is logged once a request.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from copyahead.contracts import Drafter, DraftSession, Load, ModelUse
from copyahead.engine.allocation import allocate
from copyahead.engine.answer import Answer
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft, Token

logger = logging.getLogger(__name__)

MakeDrafter = Callable[[str, Load], Drafter]
"""Builds the drafter for a policy's name or spec."""


MAX_PRICES = 64
"""Shared prices that are kept at once."""
MAX_DRAFTERS = 16
"""Policies whose drafters are kept; requests may name any policy, with any options."""


class Drafting:
    """The drafters of one engine, one for every policy in use."""

    def __init__(
        self,
        make_drafter: MakeDrafter | None,
        default_policy: str,
        vocab_size: int,
        measured: StepCost | None = None,
    ) -> None:
        """`vocab_size`: the number of real token ids; a draft is cut at anything else.

        `measured`: the step cost of the model when nothing else ran, where that is known.
        """
        self.load = Load()
        self._cost, self._measured = self.load.step_cost, measured
        self._num_rows = 1
        self._shared: dict[tuple[int, int], StepCost] = {}
        self._vocab_size = vocab_size
        self._make_drafter = make_drafter
        self._default_policy = default_policy
        # The one used last at the end.
        self._drafters: dict[str, Drafter] = {}
        self._sessions: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Sessions that hold a row of history."""
        return self._sessions.total()

    def drafter(self, policy: str | None) -> Drafter | None:
        """The drafter for `policy` (None: the engine's own); ConfigError when it is unknown."""
        if self._make_drafter is None:
            return None
        name = policy or self._default_policy
        drafter = self._drafters.pop(name, None)
        if drafter is None:
            drafter = self._make_drafter(name, self.load)
            self._make_room()
        self._drafters[name] = drafter
        return drafter

    def _make_room(self) -> None:
        """Let go of the drafter that was not used for longest and has no session open."""
        if len(self._drafters) >= MAX_DRAFTERS:
            idle = (name for name in self._drafters if not self._sessions[name])
            unused = next((name for name in idle if name != self._default_policy), None)
            if unused is not None:
                del self._drafters[unused]

    def reset(self) -> None:
        """Start every drafter afresh at its next use. Needs no open session."""
        drafters, self._drafters = self._drafters, {}
        for name, drafter in drafters.items():
            drafter.forget()
            self.drafter(name)

    def open(self, answer: Answer) -> None:
        """Index what `answer` holds, in the row of its slot."""
        if not answer.drafting or self._make_drafter is None or answer.slot is None:
            return
        try:
            drafter = self.drafter(answer.request.policy)
            assert drafter is not None
            prompt = answer.tokens[: answer.num_prompt_tokens]
            request = answer.request
            answer.session = drafter.open(
                prompt,
                slot=answer.slot.index,
                tenant=request.tenant,
                prediction=request.prediction,
                grammar=answer.grammar is not None,
                sampling=request.sampling,
            )
        except Exception as error:
            self._fault(answer, error)
            return
        self._sessions[self._policy_of(answer)] += 1
        if answer.num_output_tokens:
            self.settle(answer, NO_DRAFT, answer.tokens[answer.num_prompt_tokens :])

    def close(self, answer: Answer) -> None:
        """Give the row back; its content stays for a next turn."""
        if answer.session is not None:
            session = self._let_go(answer)
            self._guard(answer, session, session.close)

    def _policy_of(self, answer: Answer) -> str:
        return answer.request.policy or self._default_policy

    def _let_go(self, answer: Answer) -> DraftSession:
        """The answer's session, which it has no more."""
        session, answer.session = answer.session, None
        assert session is not None
        self._sessions[self._policy_of(answer)] -= 1
        return session

    def price(
        self, cost: StepCost, num_answers: int, num_rows: int, row_seconds: float = 1.0
    ) -> None:
        """Say what the next pass costs: `num_answers` may draft, `num_rows` are in it anyhow.

        `row_seconds`: what a pass over one row takes; 0 where that is not known yet.
        """
        if cost is not self._cost or len(self._shared) > MAX_PRICES:
            self._cost, self._shared = cost, {}
        self._num_rows = num_rows
        # The same object for the same pass: whoever prices by it can tell that nothing changed.
        key = (num_answers, num_rows)
        if key not in self._shared:
            self._shared[key] = cost.shared(num_answers, num_rows)
        self.load.step_cost = self._shared[key]
        self.load.num_rows = num_rows
        self.load.pass_seconds = row_seconds * cost(num_rows)

    def propose(
        self, answers: Sequence[Answer], limits: Sequence[int], max_rows: int
    ) -> list[Draft]:
        """A draft for each answer, together no more than `max_rows` tokens."""
        began = time.perf_counter()
        drafts = [NO_DRAFT] * len(answers)
        groups: dict[str, list[int]] = {}
        for place, (answer, limit) in enumerate(zip(answers, limits, strict=True)):
            if limit <= 0 or not answer.drafting:
                continue
            drafts[place] = self._forced(answer, limit)
            if answer.session is not None and not drafts[place]:
                groups.setdefault(self._policy_of(answer), []).append(place)
        for name, places in groups.items():
            found = self._propose_group(
                self._drafters[name], [answers[p] for p in places], [limits[p] for p in places]
            )
            for place, draft in zip(places, found, strict=True):
                drafts[place] = self._allowed(answers[place], draft)
        drafts = allocate(drafts, max_rows, self._num_rows, self._cost, self._measured)
        seconds = time.perf_counter() - began
        for answer in answers:
            answer.stats.draft_seconds += seconds / len(answers)
            _count_model_use(answer)
        return drafts

    def _forced(self, answer: Answer, limit: int) -> Draft:
        """What the answer's grammar leaves no choice about."""
        if answer.grammar is None:
            return NO_DRAFT
        try:
            return answer.grammar.forced(limit)
        except Exception as error:
            self._fault(answer, error)
            return NO_DRAFT

    def _allowed(self, answer: Answer, draft: Draft) -> Draft:
        """As much of a draft as the answer's grammar allows.

        A token that was drawn stays, forbidden or not: rejection has to see it. It is never kept.
        """
        if answer.grammar is None or not draft.tokens or draft.draft_probs:
            return draft
        try:
            return answer.grammar.cut(draft)
        except Exception as error:
            self._fault(answer, error)
            return NO_DRAFT

    def settle(self, answer: Answer, draft: Draft, emitted: Sequence[Token]) -> None:
        """Let the session learn what became of the round."""
        session = answer.session
        if session is not None:
            # A draft of another source is news to the session like any other text.
            own = draft if draft.source != "grammar" else NO_DRAFT
            self._guard(answer, session, lambda: self._learn(answer, session, own, emitted))

    def _learn(
        self, answer: Answer, session: DraftSession, draft: Draft, emitted: Sequence[Token]
    ) -> None:
        session.settle(draft, emitted)
        answer.stats.window = session.window

    def check(self, answers: Iterable[Answer]) -> None:
        """Raise AssertionError unless the books agree with those of all `answers`. For tests."""
        held = Counter(self._policy_of(answer) for answer in answers if answer.session is not None)
        assert held == self._sessions, (
            f"sessions are counted as {dict(self._sessions)} and held as {dict(held)}"
        )
        for drafter in self._drafters.values():
            drafter.check()

    def _propose_group(
        self, drafter: Drafter, answers: list[Answer], limits: list[int]
    ) -> list[Draft]:
        sessions = [answer.session for answer in answers if answer.session is not None]
        try:
            drafts = drafter.propose_batch(sessions, limits)
            return [self._usable(d, limit) for d, limit in zip(drafts, limits, strict=True)]
        except Exception:
            # One bad session must not cost the others their drafts: ask each by itself.
            return [self._propose_one(a, limit) for a, limit in zip(answers, limits, strict=True)]

    def _propose_one(self, answer: Answer, limit: int) -> Draft:
        session: DraftSession | None = answer.session
        if session is None:
            return NO_DRAFT
        try:
            return self._usable(session.propose(limit), limit)
        except Exception as error:
            self._fault(answer, error)
            return NO_DRAFT

    def _usable(self, draft: Draft, limit: int) -> Draft:
        """The draft up to `limit` tokens, and up to its first that is no token id."""
        tokens, size = draft.tokens[:limit], self._vocab_size
        if tokens and (min(tokens) < 0 or max(tokens) >= size):
            return draft.first(next(i for i, t in enumerate(tokens) if not 0 <= t < size))
        return draft.first(limit)

    def _guard(self, answer: Answer, session: DraftSession, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._fault(answer, error)
            # What it holds is no longer what was emitted: it must not draft again.
            if answer.session is not None:
                self._let_go(answer)
            with contextlib.suppress(Exception):
                session.close()

    def _fault(self, answer: Answer, error: Exception) -> None:
        answer.stats.drafter_faults += 1
        if answer.stats.drafter_faults == 1:
            logger.warning("a drafter failed, the request goes on without it: %r", error)


def _count_model_use(answer: Answer) -> None:
    """Count what the draft model was used for, where there is one beside the copies."""
    use = getattr(answer.session, "use", None)
    if isinstance(use, ModelUse):
        stats = answer.stats
        stats.num_model_passes += use.num_passes
        stats.num_model_skips += use.num_skips
        stats.model_seconds += use.seconds
        stats.num_compared += use.num_compared
        stats.num_agreed += use.num_agreed
        use.clear()
