"""A model that answers each message in a way that a test can foresee, and chats over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from copyahead.config import LookupOptions
from copyahead.contracts import Logits
from copyahead.loading import make_engine
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import Token
from tests.cli.toys import BYTES, EXACT

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SPEECH = "Twelve grey herons stood. Twelve grey herons stood."


class Speaker(ToyLM):
    """Says `SPEECH`, or what `says` makes of the prompt, to every message."""

    def __init__(self, says: Callable[[str], str] = lambda _: SPEECH) -> None:
        super().__init__(script=[], vocab_size=257)
        self._says = says

    def logits(self, prefix: Sequence[Token]) -> Logits:
        data = b"".join(map(BYTES.token_bytes, prefix))
        prompt, mark, written = data.rpartition(b"[assistant]")
        speech = self._says((prompt + mark).decode("utf-8", "replace")).encode()
        row = np.zeros(self.vocab_size, dtype=np.float32)
        row[speech[len(written)] + 1 if len(written) < len(speech) else 0] = 8.0
        return row


def speaker(says: Callable[[str], str] = lambda _: SPEECH, **options: Any) -> FakeBackend:
    """A backend over a `Speaker`; `options` of a FakeBackend."""
    given = {"context_size": 2048, "num_slots": 1, "chat_template": TEMPLATE, **options}
    return FakeBackend(Speaker(says), tokenizer=BYTES, exactness=EXACT, **given)


def engine_of(backend: FakeBackend, policy: str = "fixed") -> Any:
    return make_engine(backend, lookup=LookupOptions(policy=policy))
