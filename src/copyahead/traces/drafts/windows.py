"""How much of a text that is longer than its context the draft model is shown."""

from __future__ import annotations

import msgspec


class Window(msgspec.Struct, frozen=True):
    """The last `size` tokens or fewer, by the place alone: whoever asks, the answer is the same.

    It moves on in hops of half its size, so that a text is read about twice, and not once for
    every place.
    """

    size: int
    """Most tokens that the draft model holds: those of the text and `depth` more."""
    depth: int
    """Tokens of its own that it may hold after them."""

    @property
    def most(self) -> int:
        """Most tokens of the text."""
        return self.size - self.depth

    @property
    def hop(self) -> int:
        """By how much it moves."""
        return max(1, self.most // 2)

    def start(self, place: int) -> int:
        """The first token that is shown before the token at `place` is asked for."""
        beyond = place - self.most
        return 0 if beyond <= 0 else -(-beyond // self.hop) * self.hop

    def last(self, start: int) -> int:
        """The last place at which a window that starts there is shown."""
        return start + self.most
