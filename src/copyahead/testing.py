"""Fakes for testing what is built on copyahead, as a mock transport is for an HTTP library.

ToyLM           a language model that is a pure function of its prefix, with a tiny vocabulary
FakeBackend     a backend that can be told to misbehave
ForcedDrafter   proposes exactly what a test says
ScriptedChainDrafter  drafts token by token, as a test says and at the price that it says
rechunk         every way of cutting a sequence into steps
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar, Unpack, cast

import numpy as np

from copyahead.acceptance import num_accepted
from copyahead.backends.numpy_sampler import NumpySampler
from copyahead.contracts import (
    Capabilities,
    DraftSession,
    FimTokens,
    Load,
    Logits,
    NextToken,
    Opening,
    Part,
    Tokenizer,
)
from copyahead.errors import BackendError
from copyahead.sampling import SamplingOptions
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft, Exactness, Source, Token

Item = TypeVar("Item")

TOY_PIECES: tuple[bytes, ...] = (
    b"", b"a", b"b", b"c", b" ", b"EN", b"D", b"x END y", b"{", b"}", b'"', b":", b"1",
    "\N{GRINNING FACE}".encode()[:1], "\N{GRINNING FACE}".encode()[1:3],
    "\N{GRINNING FACE}".encode()[3:], "\u00e9".encode(), b"\n", b",", b"true",
)  # fmt: skip
"""Token id to bytes. Id 0 is the end token; 13 to 15 are an emoji in three parts."""


class ToyTokenizer:
    """Ids are indices into a table of pieces. It has no control tokens."""

    bos_text = ""
    eos_text = ""
    adds_bos = False
    control_texts: Collection[str] = frozenset()
    fim: FimTokens | None = None

    def __init__(self, pieces: Sequence[bytes] = TOY_PIECES, end_tokens: Sequence[Token] = (0,)):
        self._pieces = tuple(pieces)
        self._ends = frozenset(end_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return len(self._pieces)

    @property
    def end_tokens(self) -> frozenset[Token]:
        """The ids that end a text."""
        return self._ends

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """The longest piece at each place; ValueError where none fits."""
        data, tokens = text.encode(), []
        while data:
            fits = [i for i, piece in enumerate(self._pieces) if piece and data.startswith(piece)]
            if not fits:
                raise ValueError(f"no toy token begins {data[:8]!r}")
            best = max(fits, key=lambda i: len(self._pieces[i]))
            tokens.append(best)
            data = data[len(self._pieces[best]) :]
        return tokens

    def token_bytes(self, token: Token) -> bytes:
        """The piece; empty for ids out of range."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""


class ToyLM:
    """A language model that is a pure function of its prefix.

    Either `script`, the tokens that follow a prompt of `num_prompt_tokens` (greedy decoding
    gives exactly these, then the end token), or `seed`, a random table over the last two tokens:
    such a text repeats itself, so that copying works, and has near ties, so that sampling matters.
    """

    def __init__(
        self,
        *,
        script: Sequence[Token] | None = None,
        num_prompt_tokens: int = 1,
        seed: int = 0,
        vocab_size: int = len(TOY_PIECES),
        sharpness: float = 3.0,
    ) -> None:
        self.script = None if script is None else tuple(script)
        self.vocab_size = vocab_size
        self._num_prompt_tokens = num_prompt_tokens
        self._seed = seed
        self._sharpness = sharpness
        self._rows: dict[tuple[Token, ...], Logits] = {}

    def logits(self, prefix: Sequence[Token]) -> Logits:
        """The row for what follows `prefix`, shape `[vocab_size]`."""
        if self.script is not None:
            place = len(prefix) - self._num_prompt_tokens
            row = np.zeros(self.vocab_size, dtype=np.float32)
            row[self.script[place] if place < len(self.script) else 0] = 8.0
            return row
        context = tuple(prefix[-2:])
        if context not in self._rows:
            random = np.random.default_rng([self._seed, len(context), *context])
            row = random.normal(size=self.vocab_size).astype(np.float32)
            self._rows[context] = row * np.float32(self._sharpness)
        return self._rows[context].copy()


class FakeBackend:
    """A backend over a ToyLM that checks its caller, and misbehaves where it is told to.

    It raises AssertionError when a pass does not start where its slot ends, when a slot appears
    twice, or when rows or cells are exceeded: the ledger of the engine is checked at every pass.
    """

    def __init__(
        self,
        model: ToyLM | None = None,
        *,
        context_size: int = 256,
        num_slots: int = 4,
        num_cells: int | None = None,
        max_rows: int = 128,
        max_rewind: int | None = None,
        can_fork: bool = True,
        exactness: Exactness | None = None,
        step_cost: StepCost | None = None,
        tokenizer: Tokenizer | None = None,
        chat_template: str | None = None,
        fail_on: Callable[[int, Sequence[Part]], bool] = lambda _number, _parts: False,
    ) -> None:
        """`fail_on(number, parts)`: whether pass `number` (from 1) over `parts` fails."""
        self.model = model or ToyLM()
        self.name = ""
        self.settings = None
        self.tokenizer: Tokenizer = tokenizer or ToyTokenizer()
        self.chat_template = chat_template
        self.capabilities = Capabilities(
            logits_width=self.model.vocab_size,
            context_size=context_size,
            num_slots=num_slots,
            num_cells=num_cells if num_cells is not None else num_slots * context_size + 64,
            max_rows=max_rows,
            max_rewind=max_rewind,
            can_fork=can_fork,
        )
        self.exactness = exactness
        self.step_cost = step_cost or StepCost.linear(0.05)
        self.held: list[list[Token]] = [[] for _ in range(num_slots)]
        self._cells: list[list[int]] = [[] for _ in range(num_slots)]
        self._next_cell = 0
        self.num_passes = 0
        self.num_rows = 0
        self.num_samplers = 0
        self.closed = False
        self._fail_on = fail_on

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        return len(self.held[slot])

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """One pass; see `copyahead.contracts.Backend.forward`."""
        self.num_passes += 1
        assert len({part.slot for part in parts}) == len(parts), "a slot appears twice"
        assert sum(len(p.tokens) for p in parts) <= self.capabilities.max_rows, "too many rows"
        for part in parts:
            assert part.start == len(self.held[part.slot]), "a pass must start where its slot ends"
            assert len(part.tokens) >= max(1, part.num_logits), "a part has too few tokens"
        if self._fail_on(self.num_passes, parts):
            raise BackendError(f"pass {self.num_passes} was told to fail")
        logits = []
        for part in parts:
            held = self.held[part.slot]
            held.extend(part.tokens)
            self._take_cells(part.slot, len(part.tokens))
            assert len(held) <= self.capabilities.context_size + self.capabilities.max_rows
            self.num_rows += len(part.tokens)
            lengths = range(len(held) - part.num_logits + 1, len(held) + 1)
            rows = [self.model.logits(held[:n]) for n in lengths]
            width = self.capabilities.logits_width
            logits.append(np.stack(rows) if rows else np.empty((0, width), dtype=np.float32))
        return logits

    def truncate(self, slot: int, length: int) -> None:
        """Cut a slot; BackendError where that takes back more than `max_rewind`."""
        excess = len(self.held[slot]) - length
        rewind = self.capabilities.max_rewind
        if excess > 0 and length > 0 and rewind is not None and excess > rewind:
            raise BackendError(f"slot {slot} cannot take back {excess} tokens, only {rewind}")
        del self.held[slot][length:]
        del self._cells[slot][length:]

    @property
    def num_cells_used(self) -> int:
        """Cells that hold a token; those of a forked prefix are shared."""
        return len(set().union(*self._cells))

    def _take_cells(self, slot: int, count: int) -> None:
        self._cells[slot].extend(range(self._next_cell, self._next_cell + count))
        self._next_cell += count
        assert self.num_cells_used <= self.capabilities.num_cells, "too many cells"

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy a prefix."""
        assert self.capabilities.can_fork
        assert length <= len(self.held[source])
        self.held[target] = self.held[source][:length]
        self._cells[target] = self._cells[source][:length]

    def sampler(self, options: SamplingOptions, prompt: Sequence[Token]) -> _CountedSampler:
        """A numpy sampler that is counted until it is closed."""
        self.num_samplers += 1
        return _CountedSampler(self, options, prompt)

    def check(self) -> None:
        """See `copyahead.contracts.Backend.check`."""
        limits = self.capabilities
        for slot, (held, cells) in enumerate(zip(self.held, self._cells, strict=True)):
            assert len(held) <= limits.context_size, f"slot {slot} is fuller than the context"
            assert len(set(cells)) == len(cells) == len(held), (
                f"slot {slot} holds {len(held)} tokens in {len(set(cells))} cells"
            )
        assert self.num_cells_used <= limits.num_cells, "too many cells"

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class _CountedSampler(NumpySampler):
    def __init__(
        self, backend: FakeBackend, options: SamplingOptions, prompt: Sequence[Token]
    ) -> None:
        super().__init__(options, prompt)
        self._backend: FakeBackend | None = backend

    def close(self) -> None:
        if self._backend is not None:
            self._backend.num_samplers -= 1
            self._backend = None


Plan = Callable[[tuple[Token, ...]], Sequence[Token]]
"""What to draft after a history; may be anything, right or wrong, and may raise."""


class ForcedDrafter:
    """Proposes exactly what a test says. Implements `copyahead.contracts.Drafter`."""

    def __init__(self, plan: Plan | Mapping[int, Sequence[Token]]) -> None:
        """`plan`: a function of the history, or drafts by number of tokens already written."""
        self._plan = plan
        self.sessions: list[ForcedSession] = []

    def __call__(self, policy: str, load: Load) -> ForcedDrafter:
        """So that the drafter can stand where an engine asks for a way to make one."""
        return self

    def open(self, prompt: Sequence[Token], *, slot: int, **asked: Unpack[Opening]) -> DraftSession:
        """A session; kept in `sessions` for the test to look at."""
        session = ForcedSession(self._plan, prompt, slot)
        self.sessions.append(session)
        return session

    def forget(self) -> None:
        """Nothing: sessions share no text."""

    def check(self) -> None:
        """See `copyahead.contracts.Drafter.check`."""
        rows = [session.slot for session in self.sessions if not session.closed]
        assert len(set(rows)) == len(rows), f"two sessions are open in one row of {rows}"

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """One after the other."""
        return [session.propose(n) for session, n in zip(sessions, limits, strict=True)]


class ForcedSession:
    """What a ForcedDrafter does for one request."""

    window: int | None = None

    def __init__(
        self, plan: Plan | Mapping[int, Sequence[Token]], prompt: Sequence[Token], slot: int
    ) -> None:
        self._plan = plan
        self.slot = slot
        self._num_prompt_tokens = len(prompt)
        self.history: list[Token] = list(prompt)
        self.settled: list[tuple[Draft, tuple[Token, ...]]] = []
        self.closed = False

    def propose(self, limit: int) -> Draft:
        """The planned draft, cut to `limit`."""
        if callable(self._plan):
            tokens = self._plan(tuple(self.history))
        else:
            tokens = self._plan.get(len(self.history) - self._num_prompt_tokens, ())
        if not tokens or limit <= 0:
            return Draft()
        return Draft(tokens=tuple(tokens), source=Source.OUTPUT, match_length=1).first(limit)

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """Remember the round."""
        assert not self.closed
        self.settled.append((draft, tuple(emitted)))
        self.history.extend(emitted)

    def truncate(self, length: int) -> None:
        """Cut the history."""
        del self.history[length:]

    def close(self) -> None:
        """Refuse further rounds."""
        self.closed = True


Guess = Callable[[tuple[Token, ...]], NextToken | None]
"""The next token after a text; may be anything, right or wrong, and may raise."""


def noisy(model: ToyLM, accuracy: float, seed: int = 0) -> Guess:
    """The likeliest token of `model` with probability `accuracy`, else another one.

    A function of the text alone. The probability that it names is the one it is right with.
    """

    def guess(text: tuple[Token, ...]) -> NextToken:
        random = np.random.default_rng([seed, len(text), *text[-8:]])
        right = int(model.logits(text).argmax())
        if random.random() < accuracy:
            return NextToken(right, accuracy)
        wrong = int(random.integers(model.vocab_size - 1))
        return NextToken(wrong + (wrong >= right), accuracy)

    return guess


class ScriptedChainDrafter:
    """Drafts token by token what a test says. Implements `copyahead.contracts.ChainDrafter`."""

    def __init__(
        self,
        guess: Guess,
        *,
        max_chain: int = 8,
        seconds_a_pass: float = 0.0,
        seconds_a_row: float = 0.0,
    ) -> None:
        """A pass takes `seconds_a_pass`, and `seconds_a_row` for every row after the first."""
        self._guess = guess
        self.max_chain = max_chain
        self._seconds = seconds_a_pass, seconds_a_row
        self.sessions: list[ScriptedChainSession] = []
        self.calls: list[list[tuple[int, tuple[Token, ...]]]] = []
        """Of each pass, for each session: the slot, and the chain that was to be extended."""
        self.num_rows_read = 0

    def open(
        self, prompt: Sequence[Token], *, slot: int, **asked: Unpack[Opening]
    ) -> ScriptedChainSession:
        """A session that has read nothing yet."""
        session = ScriptedChainSession(self, prompt, slot)
        self.sessions.append(session)
        return session

    def forget(self) -> None:
        """Nothing: sessions share no text."""

    def check(self) -> None:
        """See `copyahead.contracts.Drafter.check`."""
        rows = [session.slot for session in self.sessions if not session.closed]
        assert len(set(rows)) == len(rows), f"two sessions are open in one row of {rows}"

    def extend(
        self, sessions: Sequence[DraftSession], chains: Sequence[Sequence[Token]]
    ) -> list[NextToken | None]:
        """See `copyahead.contracts.ChainDrafter.extend`."""
        mine = cast("Sequence[ScriptedChainSession]", sessions)
        self.calls.append([(s.slot, tuple(c)) for s, c in zip(mine, chains, strict=True)])
        return [session.read(chain) for session, chain in zip(mine, chains, strict=True)]

    def guess(self, text: tuple[Token, ...]) -> NextToken | None:
        """What the test says comes after `text`."""
        return self._guess(text)

    def num_rows(self, session: DraftSession, chain: Sequence[Token]) -> int:
        """See `copyahead.contracts.ChainDrafter.num_rows`."""
        return cast("ScriptedChainSession", session).num_unread(chain)

    def seconds(self, num_rows: int) -> float:
        """See `copyahead.contracts.ChainDrafter.seconds`."""
        a_pass, a_row = self._seconds
        return a_pass + a_row * (num_rows - 1)

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """One after the other."""
        return [session.propose(n) for session, n in zip(sessions, limits, strict=True)]


class ScriptedChainSession:
    """What a ScriptedChainDrafter does for one request."""

    window: int | None = None

    def __init__(self, drafter: ScriptedChainDrafter, prompt: Sequence[Token], slot: int) -> None:
        self._drafter = drafter
        self.slot = slot
        self.history: list[Token] = list(prompt)
        self.settled: list[tuple[Draft, tuple[Token, ...]]] = []
        self.closed = False
        # How much of the history was read, and what was read behind it.
        self._num_read = 0
        self._ahead: tuple[Token, ...] = ()

    def num_unread(self, chain: Sequence[Token]) -> int:
        """Tokens of history and `chain` that were not read; the last one is read again."""
        unread = len(self.history) - self._num_read
        if unread == 0:
            kept = num_accepted(self._ahead, chain)
            unread -= kept
        return max(1, unread + len(chain))

    def read(self, chain: Sequence[Token]) -> NextToken | None:
        """Read all of it, and say what comes next."""
        assert not self.closed, "a closed session was asked for a token"
        self._drafter.num_rows_read += self.num_unread(chain)
        self._num_read, self._ahead = len(self.history), tuple(chain)
        return self._drafter.guess((*self.history, *chain))

    def propose(self, limit: int) -> Draft:
        """A chain of at most `limit` tokens."""
        chain: list[Token] = []
        while len(chain) < min(limit, self._drafter.max_chain):
            (found,) = self._drafter.extend([self], [chain])
            if found is None:
                break
            chain.append(found.token)
        return Draft(tokens=tuple(chain), source=Source.MODEL) if chain else NO_DRAFT

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """Remember the round."""
        assert not self.closed
        self.settled.append((draft, tuple(emitted)))
        if self._num_read == len(self.history):
            self._num_read += num_accepted(self._ahead, emitted)
        self._ahead = ()
        self.history.extend(emitted)

    def truncate(self, length: int) -> None:
        """Cut the history."""
        del self.history[length:]
        self._num_read, self._ahead = min(self._num_read, length), ()

    def close(self) -> None:
        """Refuse further rounds."""
        self.closed = True


def rechunk(items: Sequence[Item]) -> Iterator[list[list[Item]]]:
    """Every way of cutting `items` into steps of one or more: 2 ** (len(items) - 1) of them."""
    count = len(items)
    for cuts in range(1 << max(0, count - 1)):
        steps: list[list[Item]] = [[]]
        for place, item in enumerate(items):
            steps[-1].append(item)
            if place < count - 1 and cuts >> place & 1:
                steps.append([])
        yield steps
