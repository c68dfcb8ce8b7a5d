"""A whole server over a toy model, on a real socket.

The toy writes what the last user message asks for: `say:TEXT` makes it answer TEXT, and anything
else makes it babble, from a table of chances over the last two tokens.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from copyahead.chat.template.template import ChatTemplate
from copyahead.config import LookupOptions
from copyahead.contracts import Logits, Part
from copyahead.drafters.model import ModelDrafter
from copyahead.engine import Engine
from copyahead.engine.async_engine import AsyncEngine
from copyahead.loading import make_engine
from copyahead.server.run import address, bind, make_server
from copyahead.server.service import ServerOptions, Service
from copyahead.testing import FakeBackend, ToyLM, ToyTokenizer
from copyahead.types import Token

END, USER, ANSWER = 0, 1, 2
"""Control tokens: end of turn, start of a user's message, start of the answer."""
_NAMES = {"<|end|>": END, "<|user|>": USER, "<|answer|>": ANSWER}
_WORDS = ("the ", "and ", "say", '{"', '": ', "</", "think>", "<tool_call>", "\n\n", "    ", "ab")
PIECES: tuple[bytes, ...] = (
    *(b"" for _ in _NAMES),
    *(word.encode() for word in _WORDS),
    *(bytes([byte]) for byte in range(256)),
)
VOCAB = len(PIECES)


class ByteTokenizer(ToyTokenizer):
    """Every byte, a few words, and three control tokens."""

    control_texts = frozenset(_NAMES)

    def __init__(self) -> None:
        super().__init__(PIECES, end_tokens=(END,))
        self._ids = {piece: token for token, piece in enumerate(PIECES) if piece}
        self._longest = max(map(len, PIECES))

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """The longest piece at each place."""
        if special:
            for name, control in _NAMES.items():
                head, found, tail = text.partition(name)
                if found:
                    return [*self.encode(head), control, *self.encode(tail)]
        data, tokens, at = text.encode(), [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + length])
                if token is not None:
                    tokens.append(token)
                    at += length
                    break
        return tokens


TOKENIZER = ByteTokenizer()
_SAY = TOKENIZER.encode("say:")


class ObedientLM(ToyLM):
    """Writes what it is told to, or babbles."""

    def __init__(self, seed: int = 7) -> None:
        super().__init__(seed=seed, vocab_size=VOCAB, sharpness=2.0)

    def logits(self, prefix: Sequence[Token]) -> Logits:
        """The row for what follows `prefix`."""
        told = _told(prefix)
        if told is None:
            return super().logits(prefix)
        script, place = told
        row = np.zeros(VOCAB, dtype=np.float32)
        row[script[place] if place < len(script) else END] = 60.0
        return row


def _told(prefix: Sequence[Token]) -> tuple[Sequence[Token], int] | None:
    """What is to be said, and how much of it has been."""
    tokens = list(prefix)
    if ANSWER not in tokens:
        return None
    start = len(tokens) - 1 - tokens[::-1].index(ANSWER)
    if USER not in tokens[:start]:
        return None
    user = start - 1 - tokens[:start][::-1].index(USER)
    message = tokens[user + 1 : start]
    if message[: len(_SAY)] != _SAY:
        return None
    return message[len(_SAY) : message.index(END)], len(tokens) - start - 1


class SlowBackend(FakeBackend):
    """Takes `seconds` for a pass, as a model does: without holding the interpreter."""

    seconds = 0.0

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """A pass."""
        time.sleep(self.seconds)
        return super().forward(parts)


def toy_template(opening: str = "") -> ChatTemplate:
    """Control tokens around each message; `opening` is what the prompt holds of the answer."""
    return ChatTemplate(
        "{% for message in messages %}"
        "{{ '<|answer|>' if message.role == 'assistant' else '<|user|>' }}"
        "{{ message.content }}<|end|>"
        "{% endfor %}<|answer|>" + opening,
        control_texts=TOKENIZER.control_texts,
    )


def toy_backend(*, seed: int = 7, seconds: float = 0.0, **options: Any) -> SlowBackend:
    """A backend over the obedient toy."""
    options = {"context_size": 2048, "num_slots": 4, **options}
    backend = SlowBackend(ObedientLM(seed), tokenizer=TOKENIZER, **options)
    backend.seconds = seconds
    return backend


@dataclass
class Running:
    """A server that is up."""

    url: str
    service: Service
    backend: FakeBackend
    stop: Callable[[], None]
    """Tells the server to stop, as Ctrl-C does."""

    @property
    def api(self) -> str:
        """What OpenAI's client calls base_url."""
        return f"{self.url}/v1"

    def is_idle(self, seconds: float = 5.0) -> bool:
        """Whether everything has been given back, within `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            queue, engine = self.service.queue, self.service.engine
            if not (engine.num_active or queue.num_answers or queue.num_requests):
                return queue.num_running == 0 and self.backend.num_samplers == 0
            time.sleep(0.01)
        return False


@contextmanager
def running(
    backend: FakeBackend | None = None,
    options: ServerOptions | None = None,
    *,
    template: ChatTemplate | None = None,
    policy: str | None = None,
    model_drafter: ModelDrafter | None = None,
) -> Iterator[Running]:
    """A server over `backend` on a free port; stopped, and its books checked, at the end.

    It drafts by `policy`, and with `model_drafter`; None decodes plainly.
    """
    backend = backend or toy_backend()
    lookup = LookupOptions(policy=policy) if policy else LookupOptions(lookup=False)
    draft = model_drafter.options if model_drafter is not None else None
    made = make_engine(backend, lookup=lookup, draft=draft, model_drafter=model_drafter)
    engine = AsyncEngine(made)
    service = Service(engine, options or ServerOptions(), template or toy_template())
    with serving(service) as (url, stop):
        up = Running(url, service, backend, stop)
        yield up
        assert up.is_idle(), "something was not given back"
    assert backend.closed


@contextmanager
def serving(service: Service) -> Iterator[tuple[str, Callable[[], None]]]:
    """`service` on a free port: its address, and what tells it to stop, as Ctrl-C does."""
    bound = bind("127.0.0.1", 0)
    server = make_server(service, bound)

    def stop() -> None:
        server.should_exit = True

    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield address(bound), stop
    finally:
        stop()
        thread.join(timeout=30)
        bound.close()
    assert not thread.is_alive(), "the server did not stop"


def is_up(url: str) -> bool:
    """Whether a server takes requests; no longer once it has begun to stop."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def serving_model(engine: Engine) -> Iterator[str]:
    """A server over an engine with a real model, and with the model's template; its address."""
    template = ChatTemplate.from_backend(engine.backend)
    with serving(Service(AsyncEngine(engine), ServerOptions(), template)) as (url, _):
        yield url


CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
LOOK, WRITE = CALL % ("look", '{"a": 1}'), CALL % ("write", '{"a": "}\\n"}')
SAID_CALLS: list[tuple[str, list[tuple[str, Any]], str]] = [
    (LOOK, [("look", {"a": 1})], ""),
    (CALL % ("look", "{}"), [("look", {})], ""),
    (CALL % ("look", '""'), [("look", {})], ""),
    (CALL % ("look", '" \\n"'), [("look", {})], ""),
    (f"well {LOOK}", [("look", {"a": 1})], "well"),
    (f"{LOOK}\n{WRITE}", [("look", {"a": 1}), ("write", {"a": "}\n"})], ""),
    ("no call", [], "no call"),
]
"""What a model writes, and the calls and the text beside them that every client must get."""


def typed_events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream in which each has its type as its name."""
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.split("\n\n"):
        if block.startswith("event: "):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        else:
            assert not block or block.startswith(":")
    return events
