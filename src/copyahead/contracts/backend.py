"""What copyahead asks of a model that it runs itself: the model, its tokenizer, its samplers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from copyahead.sampling import SamplingOptions
from copyahead.step_cost import StepCost
from copyahead.types import Exactness, Token

Logits = npt.NDArray[np.float32]
"""Scores before softmax, one row a position; or one such row."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a loaded backend can do, read once at load."""

    logits_width: int
    """Length of a row of logits: at least the tokenizer's `vocab_size`. What lies beyond that is
    padding, which is never chosen."""
    context_size: int
    """Most tokens one sequence may hold, prompt and answer together."""
    num_slots: int
    """Sequences that can be held at once; slots are numbered from 0."""
    num_cells: int
    """Tokens that all sequences together may hold, rows of a running pass included."""
    max_rows: int
    """Most rows of one pass."""
    max_rewind: int | None = None
    """How many of a sequence's newest tokens can be taken back; None: any number; 0: none.

    Emptying a slot is always possible.
    """
    can_fork: bool = True
    """Whether `fork` works."""
    note: str = ""
    """Why drafting is capped or off, in one sentence; empty when it is not."""


class Part(msgspec.Struct, frozen=True):
    """One sequence's share of a pass."""

    slot: int
    start: int
    """Position of `tokens[0]`: the number of tokens that the slot holds before the pass."""
    tokens: Sequence[Token]
    """At least one; the committed ones first, then the draft."""
    num_logits: int
    """Logits are wanted for this many of the last rows; 0 for the inner part of a prompt."""


class TextTokenizer(Protocol):
    """Text to token ids: what reading a recorded text needs. Any thread may call it."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, which are 0 to `vocab_size - 1`. Padding does not count."""
        ...

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Every id that ends a turn or the text; may be empty."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """Token ids of `text`. No end token is added: a prompt is to be continued.

        `special`: read control tokens that are spelled out in the text as tokens, and put the
        leading token first where the model wants one. Without it, the text is only its letters.
        """
        ...


class FimTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens by which a model is told to write what is missing between two texts."""

    prefix: Token
    """Before what stands in front of the gap."""
    suffix: Token
    """Before what stands behind it."""
    middle: Token
    """Before what the model writes."""
    repository: Token | None = None
    """Before the name of the repository."""
    separator: Token | None = None
    """Before the name of each file of it."""
    padding: Token | None = None
    """Fills rows in training; a model that writes it has finished."""

    @property
    def all(self) -> frozenset[Token]:
        """Those that there are."""
        found = (getattr(self, name) for name in self.__struct_fields__)
        return frozenset(token for token in found if token is not None)

    @property
    def ends(self) -> frozenset[Token]:
        """Those that end what the model writes: what follows is of another file."""
        found = (self.repository, self.separator, self.padding)
        return frozenset(token for token in found if token is not None)


class Tokenizer(TextTokenizer, Protocol):
    """Text to token ids and back, and what a chat template must know of it."""

    @property
    def bos_text(self) -> str:
        """Spelling of the token that begins a text; empty when there is none."""
        ...

    @property
    def eos_text(self) -> str:
        """Spelling of the token that ends a text; empty when there is none."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` with `special` puts the token of `bos_text` first by itself."""
        ...

    @property
    def control_texts(self) -> Collection[str]:
        """Spellings that `encode` reads as one token where `special` is true, and only there."""
        ...

    @property
    def fim(self) -> FimTokens | None:
        """The tokens for filling a gap; None where the model has not been taught to."""
        ...

    def token_bytes(self, token: Token) -> bytes:
        """The bytes that `token` stands for; empty for control tokens and ids out of range.

        May be part of a character: joining the bytes of a text's tokens gives its UTF-8.
        """
        ...


class Sampler(Protocol):
    """One request's own way of choosing tokens, with its own random state and penalties."""

    def sample(self, logits: Logits) -> Token:
        """Choose from `logits` (shape `[logits_width]`, may be overwritten) and record the choice.

        Minus infinity marks what must not be chosen. Takes exactly one draw; none where the
        options are greedy. Called once for every emitted token, in order, and never for anything
        else: so it never has to be rolled back. `record` stands for it where another rule chose.
        """
        ...

    def target_probs(self, logits: Logits) -> npt.NDArray[np.float64]:
        """The distribution that `sample` would choose from: sums to 1, indexed by token.

        After the whole chain of options; all of it on one token where they are greedy. Takes no
        draw and records nothing. `logits` may be overwritten.
        """
        ...

    def draw(self) -> float:
        """A number in [0, 1) from the request's own random state, for another rule of choice."""
        ...

    def record(self, token: Token) -> None:
        """Record a token that another rule chose by `target_probs`, in the place of `sample`."""
        ...

    def close(self) -> None:
        """Free what the sampler holds. Idempotent."""
        ...


class Backend(Protocol):
    """A loaded model with room for several sequences.

    Slots hold committed tokens and, between a pass and the `truncate` that settles it,
    rejected ones. Not thread-safe: one thread runs it, and others may read its properties and
    use its tokenizer.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; does not change."""
        ...

    @property
    def name(self) -> str:
        """The model as people name it: its file, or its name on a hub; empty where it has none."""
        ...

    @property
    def settings(self) -> msgspec.Struct | None:
        """What it was loaded with, to be shown in reports; None where there is nothing to say."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer; always the same one."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja); None where it brings none."""
        ...

    @property
    def exactness(self) -> Exactness | None:
        """What a probe found for the settings in force; None when none was made."""
        ...

    @property
    def step_cost(self) -> StepCost:
        """The cost of a pass by its number of rows, as measured at load."""
        ...

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds, rejected ones that were not truncated yet included."""
        ...

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """One target pass. Each slot appears at most once; rows in all <= `max_rows`.

        Returns, for each part, its logits, shape `[num_logits, logits_width]`: views that the
        caller may overwrite and that the next pass invalidates. Every slot then holds
        `start + len(tokens)` tokens. Raises BackendError and leaves every slot as it was
        (or shorter, never longer) when the pass fails.
        """
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Make `slot` hold at most its first `length` tokens. 0 empties it. Idempotent.

        Raises BackendError, and changes nothing, where `max_rewind` does not allow it.
        """
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Empty `target`, then give it the first `length` tokens of `source`.

        `source` holds at least as many and is another slot. Needs `can_fork`.
        """
        ...

    def sampler(self, options: SamplingOptions, prompt: Sequence[Token]) -> Sampler:
        """A sampler for a request that has read `prompt`; whoever asked for it closes it."""
        ...

    def check(self) -> None:
        """Raise AssertionError, with a sentence, unless its books agree: slots, lengths, cells.

        For tests; may be called between steps, when no slot holds rejected tokens, and changes
        nothing.
        """
        ...

    def close(self) -> None:
        """Free the model. Idempotent. Nothing else of the backend may be used after."""
        ...
