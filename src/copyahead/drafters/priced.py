"""`priced`, the default policy: as much of a copy as is worth its price on this machine.

Unlike the presets it weighs many places at once, so it is a `Drafter` of its own. What it
learns is per request (where the last copy goes on, the credit) and per tenant (which tokens
break copies, how fast requests go): statistics change speed only, never a token, but speed can be
seen, so tenants never share them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import DraftSession, Load
from copyahead.drafters.pooled import PooledDrafter
from copyahead.drafters.prior import shipped
from copyahead.history.pool import HistoryPool
from copyahead.kernels import candidates as columns
from copyahead.kernels import features, pricing, voting
from copyahead.kernels import priced as kernel
from copyahead.kernels.compiled import entry_point
from copyahead.kernels.index import SHARED, Ints, Pool
from copyahead.kernels.voting import Scratch, new_scratch
from copyahead.policies.registry import PricedKnobs
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft, Source, Token

Prices = npt.NDArray[np.float64]
Arguments = tuple[Pool, kernel.Requests, kernel.Tenants, Ints, Scratch]

MAX_TENANTS = 64
"""Tenants whose statistics are kept, at 0.8 MiB each; the one longest unseen goes first."""

MAX_PRICE_LISTS = 128
"""Price lists that are kept: a busy engine goes through a few step costs again and again."""

FASTEST_START = 2.0
"""A new tenant's running rate starts halfway to the fastest a copy can be, and not above this."""

# A draft is made in a microsecond, so its parts are unpacked straight into tuples.
_propose, _settle = entry_point(kernel.propose), entry_point(kernel.settle)
_continue = entry_point(kernel.continue_row)
_ASK = Struct("2i").pack_into
_FOUND = partial(Struct("4i").unpack_from, offset=columns.NUM_TOKENS * 4)
_TOKENS = [Struct(f"{count}i").unpack_from for count in range(MAX_DRAFT_TOKENS + 1)]
_SURVIVALS = [Struct(f"{count}d").unpack_from for count in range(MAX_DRAFT_TOKENS + 1)]


def price_list(step_cost: StepCost, knobs: PricedKnobs) -> Prices:
    """What a kernel needs of a step cost: T, and from each n the cheapest further row.

    The second makes staircases work: one row may cost a step and the next three nothing.
    """
    made = np.zeros(pricing.NUM_PRICES)
    made[: pricing.MAX_ROWS + 1] = step_cost.curve(pricing.MAX_ROWS)
    pricing.find_cheapest(made)
    made[pricing.CAUTION :] = (
        knobs.threshold - 1.0,
        knobs.credit,
        knobs.credit_cap,
        knobs.trickle,
        knobs.max_draft_tokens,
    )
    return made


class CopyPath(NamedTuple):
    """The copy that was followed from some place on, further than it pays to send."""

    tokens: tuple[Token, ...] = ()
    chances: tuple[float, ...] = ()
    """Of each token, that it is right if all before it are."""
    origins: tuple[int, ...] = ()
    """Where in the history each stands."""
    match_length: int = 0


NO_PATH = CopyPath()


class PricedSession:
    """One request's row. Implements `contracts.DraftSession`."""

    __slots__ = ("_drafter", "_prices", "row")
    window: int | None = None

    def __init__(self, drafter: PricedDrafter, row: int) -> None:
        self._drafter = drafter
        self._prices = drafter.prices
        self.row = row

    @property
    def credit(self) -> float:
        """Steps gained so far by drafting, as far as they count; at least -`knobs.credit`."""
        return float(self._drafter.credits[self.row])

    def propose(self, limit: int) -> Draft:
        """See `contracts.DraftSession.propose`. A limit of 0 still scores what would come next."""
        return self._drafter.propose(self, limit)

    @property
    def prices(self) -> Prices:
        """The prices that the round is drafted at."""
        return self._prices

    def priced_at(self, prices: Prices) -> None:
        """Note the prices a draft was made at: it is charged at the same."""
        self._prices = prices

    def settle(self, draft: Draft, emitted: Sequence[Token], extra: float = 0.0) -> None:
        """See `contracts.DraftSession.settle`. `extra`: steps that the round cost beside its pass;
        with rows of others, `draft` is all that was verified.
        """
        self._drafter.settle(self.row, len(draft.tokens), emitted, self._prices, extra)

    def truncate(self, length: int) -> None:
        """See `contracts.DraftSession.truncate`."""
        self._drafter.truncate(self.row, length)

    def close(self) -> None:
        """Give the row back; what it holds stays. Idempotent."""
        self._drafter.release(self)


class PricedDrafter(PooledDrafter[PricedSession]):
    """Opens priced sessions over a pool of rows. Implements `contracts.Drafter`."""

    def __init__(
        self,
        pool: HistoryPool,
        cost: StepCost | Load,
        *,
        knobs: PricedKnobs | None = None,
        end_tokens: Collection[Token] = (),
        prior: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """`cost`: T(n), or the load whose `step_cost` is read at every round.

        `end_tokens` end a request, so nothing is drafted after them.

        `prior`: a model to start from (`drafters.prior`); the shipped one when not given.
        """
        super().__init__(pool)
        rows = pool.num_rows
        self._knobs = knobs or PricedKnobs()
        self._load = cost if isinstance(cost, Load) else Load(step_cost=cost)
        self._price_lists: dict[StepCost, Prices] = {}
        self._priced_cost = self._load.step_cost
        self._priced = self._price_lists[self._priced_cost] = price_list(
            self._priced_cost, self._knobs
        )
        self._ends = np.array(sorted(end_tokens), dtype=np.int32)
        self._prior = shipped() if prior is None else prior
        self._tenants: dict[str, int] = {}
        self.models = np.zeros((0, features.MODEL_SIZE))
        self.tables = np.zeros(
            (0, features.NUM_TABLES, 1 << features.TABLE_BITS, features.ENTRY_SIZE),
            dtype=np.float32,
        )
        self._requests = kernel.new_requests(rows)
        self.states, self.credits, self.request_rates, *_ = self._requests
        # The path of a continuation, which no round settles.
        self._spare = kernel.new_requests(1)
        self._scratch = new_scratch()
        self._drafts = kernel.new_drafts(rows)
        # What one session alone asks and gets, and the bytes behind it.
        self._one_draft = self._drafts._replace(rounds=self._drafts.rounds[:1])
        self._round_bytes = self._one_draft.rounds.data
        self._token_bytes = self._drafts.tokens.data
        self._survival_bytes = self._drafts.survivals.data
        self._bind()

    @property
    def step_cost(self) -> StepCost:
        """T(n); assign another one whenever the machine was measured again."""
        return self._load.step_cost

    @step_cost.setter
    def step_cost(self, step_cost: StepCost) -> None:
        self._load.step_cost = step_cost

    @property
    def prices(self) -> Prices:
        """The price list of the step cost as it is now."""
        cost = self._load.step_cost
        if cost is self._priced_cost:
            return self._priced
        known = self._price_lists.get(cost)
        if known is None:
            if len(self._price_lists) >= MAX_PRICE_LISTS:
                self._price_lists.clear()
            known = self._price_lists[cost] = price_list(cost, self._knobs)
        self._priced_cost, self._priced = cost, known
        return known

    @property
    def arguments(self) -> Arguments:
        """What a kernel over many rows gets first; other objects whenever a tenant is new."""
        return self._arguments

    def release(self, session: PricedSession) -> None:
        """Let another session open in this session's row. Idempotent."""
        super().release(session)
        self.states[session.row, features.SCOPE] = self._pool.scope(session.row)

    def check(self) -> None:
        """See `contracts.Drafter.check`."""
        super().check()
        known = list(self._tenants.values())
        assert len(set(known)) == len(known), "two tenants share their statistics"
        assert max(known, default=-1) < len(self.models) == len(self.tables), (
            "a tenant's statistics have no place"
        )
        for row in self._open:
            scope, tenant = self.states[row, [features.SCOPE, features.TENANT]].tolist()
            assert scope == self._pool.scope(row), f"row {row} copies from another's scope"
            assert tenant in known, f"row {row} learns for a tenant that was forgotten"
            assert self.credits[row] >= -self._knobs.credit - 1e-6, (
                f"row {row} has lost {-self.credits[row]:.2f} steps of {self._knobs.credit:g}"
            )

    def propose(self, session: PricedSession, limit: int) -> Draft:
        """One session's draft."""
        _ASK(self._round_bytes, 0, session.row, limit)
        prices = self.prices
        session.priced_at(prices)
        if _propose(*self._arguments, self._one_draft, prices) == 0:
            return NO_DRAFT
        count, origin, match, shared = _FOUND(self._round_bytes)
        return Draft(
            _TOKENS[count](self._token_bytes),
            Source.SHARED if shared else self._pool.source(session.row, origin),
            match,
            _SURVIVALS[count](self._survival_bytes),
            origin,
        )

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """See `contracts.Drafter.propose_batch`: one kernel call for all."""
        if not sessions:
            return []
        mine = cast("Sequence[PricedSession]", sessions)
        prices = self.prices
        drafts = self._drafts._replace(rounds=self._drafts.rounds[: len(mine)])
        rounds = drafts.rounds
        rounds[:, columns.ROW] = [session.row for session in mine]
        rounds[:, columns.LIMIT] = limits
        total = _propose(*self._arguments, drafts, prices)
        tokens = tuple(drafts.tokens[:total].tolist())
        survivals = tuple(drafts.survivals[:total].tolist())
        source_of = self._pool.source
        found = []
        start = 0
        for session, (count, origin, match, shared) in zip(
            mine, rounds[:, columns.NUM_TOKENS : columns.CURSORS].tolist(), strict=True
        ):
            session.priced_at(prices)
            if count == 0:
                found.append(NO_DRAFT)
                continue
            end = start + count
            source = Source.SHARED if shared else source_of(session.row, origin)
            found.append(Draft(tokens[start:end], source, match, survivals[start:end], origin))
            start = end
        return found

    @property
    def most_debt(self) -> float:
        """Steps that a request may lose: its credit never falls below minus this."""
        return float(self._knobs.credit)

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Nothing is drafted after these."""
        return frozenset(self._ends.tolist())

    def rate(self, session: PricedSession) -> float:
        """Tokens a step, as the session's drafts are priced."""
        model = self.models[self.states[session.row, features.TENANT]]
        return float(pricing.running_rate(model, self.request_rates[session.row], session.prices))

    def path(self, session: PricedSession) -> CopyPath:
        """What the session's last `propose` followed; its draft is the beginning of it."""
        return self._path(self._requests, session.row)

    def continuation(self, session: PricedSession, chain: Sequence[Token]) -> CopyPath:
        """The copy that follows the history and `chain`, with chances conditional on `chain`.

        Nothing is learnt, and the session's own path stays. Ask between `propose` and `settle`.
        """
        if not all(0 <= token < self._pool.vocab_size for token in chain):
            return NO_PATH
        pool, requests, learnt, ends, scratch = self._arguments
        tokens = np.array(chain, dtype=np.int32)
        row, spare = session.row, self._spare
        _continue(pool, row, tokens, requests, spare, learnt, ends, scratch, session.prices)
        return self._path(spare, 0)

    def _path(self, requests: kernel.Requests, row: int) -> CopyPath:
        length = int(requests.states[row, features.PATH_LENGTH])
        if length == 0:
            return NO_PATH
        nodes = requests.paths[row, :length]
        at = voting.FIRST_SCORED + voting.SCORED_SIZE * nodes[:, voting.CHOSEN]
        places = np.arange(length)
        survivals = requests.path_scores[row, :length, voting.SURVIVAL]
        chances = survivals.copy()
        chances[1:] /= np.maximum(survivals[:-1], 1e-12)
        return CopyPath(
            tuple(nodes[places, at + voting.TOKEN].tolist()),
            tuple(chances.tolist()),
            tuple(nodes[places, at + voting.FROM].tolist()),
            int(nodes[0, at[0] + voting.FROM_MATCH]),
        )

    def source(self, session: PricedSession, origins: Sequence[int]) -> Source:
        """What kind of text tokens from these places are: shared if any of them is."""
        last = max(origins)
        return self._pool.source(session.row, last if last >= SHARED else origins[0])

    def settle(
        self,
        row: int,
        num_draft_tokens: int,
        emitted: Sequence[Token],
        prices: Prices,
        extra: float = 0.0,
    ) -> None:
        """Close one row's round, which was drafted at `prices` and cost `extra` steps more."""
        pool = self._pool
        _settle(
            pool.arrays,
            row,
            pool.vocab_size,
            pool.fitting(row, emitted),
            num_draft_tokens,
            extra,
            self._requests,
            self._learnt,
            prices,
        )

    def truncate(self, row: int, length: int) -> None:
        """Cut one row; a copy that was followed there is over."""
        length += self._pool.prompt_start(row)
        if length < self._pool.length(row):
            self._pool.truncate(row, length)
            state = self.states[row]
            state[features.A_NEXT] = state[features.B_NEXT] = -1
            state[features.A_GAP] = state[features.A_RUN] = state[features.B_RUN] = 0
            state[features.B_GAP] = features.UNSET_GAP
            state[features.PATH_LENGTH] = 0

    def _begin(self, row: int, tenant: str, predicted: bool) -> PricedSession:
        state = self.states[row]
        state[:] = 0
        state[features.A_NEXT] = state[features.B_NEXT] = -1
        state[features.B_GAP] = features.UNSET_GAP
        if predicted:
            # As if a copy of it were to begin: its first token stands behind a barrier.
            state[features.A_NEXT] = 1
        state[features.SCOPE] = self._pool.scope(row)
        state[features.TENANT] = self._statistics_of(tenant)
        self.credits[row] = 0.0
        self.request_rates[row] = 0.0
        return PricedSession(self, row)

    def _bind(self) -> None:
        """Gather what every call of the kernel gets; again whenever one of the arrays is new."""
        self._learnt = kernel.Tenants(self.models, self.tables)
        self._arguments = (
            self._pool.arrays,
            self._requests,
            self._learnt,
            self._ends,
            self._scratch,
        )

    def _statistics_of(self, tenant: str) -> int:
        """The tenant's place in `models` and `tables`; a new tenant starts from the prior."""
        place = self._tenants.pop(tenant, None)
        if place is None:
            place = self._new_place()
            self.models[place] = self._prior
            fastest = self.prices[pricing.FASTEST]
            rate = min(FASTEST_START, 1.0 + (fastest - 1.0) / 2.0)
            self.models[place, features.RATE_TOKENS] = rate * self._prior[features.RATE_COST]
        self._tenants[tenant] = place  # The last one is the one seen last.
        return place

    def _new_place(self) -> int:
        used = len(self._tenants)
        if used >= MAX_TENANTS:
            busy = {int(self.states[row, features.TENANT]) for row in self._open}
            for tenant, place in self._tenants.items():
                if place not in busy:
                    del self._tenants[tenant]
                    self.tables[place] = 0
                    return place
        if used >= len(self.models):
            models = np.zeros((max(1, 2 * used), features.MODEL_SIZE))
            models[:used] = self.models
            tables = np.zeros((len(models), *self.tables.shape[1:]), dtype=np.float32)
            tables[:used] = self.tables
            self.models, self.tables = models, tables
            self._bind()
        return used
