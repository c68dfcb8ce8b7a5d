"""The attacks of a soak: what each sends, and which replies to it are right.

An attack runs as several clients, each of which does `strike` again and again. What else must hold
meanwhile (`/health`, the neighbour, memory, nothing held) is the business of `soak_siege`.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from typing import Any

from soak_control import Control, tool
from soak_replies import BUSY
from soak_target import (
    ANSWER,
    BUSY_OR_ANSWER,
    CHAT,
    COMPLETIONS,
    MAX_BODY,
    TOO_LONG,
    UNSUPPORTED,
    WRONG,
    Attack,
    Target,
    chat,
    filled,
    post_bytes,
    user,
)

_LARGE = ("--max-body-mb", str(MAX_BODY / 1_000_000))
"""The largest body, whatever the model: by default one with a short context takes less."""


class Nulls(Attack):
    """Bodies of which every part is of a wrong type: lists of null, and of lists, objects and
    mixed items, in each field of each route, up to the largest body and the most values."""

    name = "nulls"
    serve = _LARGE

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        self._bodies = [
            (path, filled(head, item, tail, min(max_body, self._size(item, values, limit))))
            for path, head, tail in self._FIELDS
            for item, values, limit in self._ITEMS
        ]
        self._bodies += [
            (COMPLETIONS, b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
            (COMPLETIONS, filled(b'{"prompt": [', b"null", b"]}", max_body)),
            (COMPLETIONS, filled(b'{"prompt": [', b"1", b",null]}", min(max_body, 1_800_000))),
            (COMPLETIONS, filled(b'{"prompt": [', b'"a"', b",null]}", min(max_body, 3_600_000))),
            (CHAT, b"null"),
            (CHAT, filled(b"[", b"null", b"]", min(max_body, 4_500_000))),
        ]

    _ITEMS = (
        (b"null", 1, 1_000_000),
        (b"1.5", 1, 1_000_000),
        (b"{}", 1, 30_000),
        (b"[[]]", 2, 30_000),
        (b'{"type":[null]}', 2, 30_000),
        (b"{}", 1, 450_000),
    )
    """Something wrong, how many values it has, and how many there may be; the last is too many."""

    @staticmethod
    def _size(item: bytes, values: int, limit: int) -> int:
        return int(0.95 * limit) * (len(item) + 1) // values

    _FIELDS = (
        (COMPLETIONS, b'{"prompt": [', b"]}"),
        (COMPLETIONS, b'{"prompt": [[', b"]]}"),
        (CHAT, b'{"messages": [', b"]}"),
        (CHAT, b'{"messages": [{"role": "user", "content": [', b"]}]}"),
        (CHAT, b'{"messages": [{"role": "assistant", "tool_calls": [', b"]}]}"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "tools": [', b"]}"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "stop": [', b"]}"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": [', b"]}"),
        ("/v1/responses", b'{"input": [', b"]}"),
        ("/v1/messages", b'{"max_tokens": 2, "messages": [', b"]}"),
        ("/detokenize", b'{"tokens": [', b"]}"),
    )

    async def strike(self, target: Target, rng: random.Random) -> None:
        await target.ask(*rng.choice(self._bodies), [*WRONG, *UNSUPPORTED])


class Systems(Attack):
    """Conversations of up to 16 MB with many leading system messages; most clients leave."""

    name = "systems"
    serve = _LARGE

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        self._bodies = [
            filled(
                b'{"max_tokens": 2, "messages": [',
                b'{"role":"system","content":"%s"}' % (b"a" * length),
                b',{"role":"user","content":"x"}]}',
                min(max_body, num * (31 + length)),
            )
            for length, num in ((1, 29_000), (100, 29_000), (1_000, 29_000), (1, 450_000))
        ]

    async def strike(self, target: Target, rng: random.Random) -> None:
        body = rng.choice(self._bodies)
        allowed = [ANSWER, *TOO_LONG]
        if rng.random() < 0.3:
            await target.ask(CHAT, body, allowed)
        else:
            await target.leave(CHAT, body, rng.uniform(0.1, 3), allowed)


class Stops(Attack):
    """Stop strings that the answer is the beginning of: as many and as long as are taken, and ones
    of 100,000 characters."""

    name = "stops"
    # With the neighbour, fewer than there are slots: three long answers beside it are load.
    num_clients = 2

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        self._forced: dict[str, float] = {}

    async def prepare(self, target: Target) -> None:
        body = {"content": "a", "add_special": False}
        document = await target.ask("/tokenize", body, [ANSWER])
        if document is not None:
            self._forced = {str(document["tokens"][0]): 100.0}

    async def strike(self, target: Target, rng: random.Random) -> None:
        if rng.random() < 0.5:
            stops = [f"{'a' * 100_000}{i}" for i in range(rng.choice((1, 16, 100)))]
            await target.ask(CHAT, chat("say:a", stop=stops), WRONG)
            return
        stops = [f"{'a' * 990}{i}" for i in range(16)]
        body = chat(f"say:{'a' * 300}", stop=stops, logit_bias=self._forced, temperature=0)
        is_streamed = rng.random() < 0.5
        await target.ask(CHAT, body | {"max_tokens": 200, "stream": is_streamed}, BUSY_OR_ANSWER)


class Pieces(Attack):
    """`/tokenize` with the text of every token, and `/detokenize`, as large as they are taken."""

    name = "pieces"
    serve = _LARGE

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        text = b"some word 123 \\u00e9\\n" * (max_body // 22 - 5)
        self._large = b'{"with_pieces": true, "content": "' + text + b' "}'
        self._middle = (
            b'{"with_pieces": true, "content": "' + text[: 22 * (max_body // 160)] + b'"}'
        )
        self._ids = filled(b'{"tokens": [', b"20", b"]}", min(max_body, 2_900_000))

    async def strike(self, target: Target, rng: random.Random) -> None:
        dice, allowed = rng.random(), [ANSWER, *TOO_LONG]
        if dice < 0.2:
            await target.ask("/detokenize", self._ids, [ANSWER])
        elif dice < 0.4:
            await target.leave("/tokenize", self._large, rng.uniform(0.5, 5), allowed)
        else:
            await target.ask("/tokenize", self._large if dice < 0.6 else self._middle, allowed)


class Unread(Attack):
    """Sockets that ask for 17 answers, each after a long prompt, as a stream, and never read."""

    name = "unread"
    # No more than the model can answer: a full queue would be another attack.
    num_clients = 2
    pause = 8.0

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        prompt = "the quick brown fox jumps over the lazy dog\n" * 130
        fields = {"echo": True, "n": 17, "max_tokens": 2, "stream": True}
        self._request = post_bytes(COMPLETIONS, {"prompt": prompt, **fields})
        self._open: list[asyncio.Task[None]] = []

    async def strike(self, target: Target, rng: random.Random) -> None:
        self._open.append(asyncio.create_task(self._hold(target)))

    async def end(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _hold(self, target: Target) -> None:
        with target.unconnected(4096) as client:
            await target.connect(client, self._request)
            await asyncio.Event().wait()


class Headers(Attack):
    """90 requests of which half of the headers, or of the body, is sent, to a server that may open
    64 files; bodies in chunks of one byte; and requests by the name of another host."""

    name = "headers"
    num_files = 64

    _CRUMBS = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 100_000
    )

    async def strike(self, target: Target, rng: random.Random) -> None:
        whole = post_bytes(COMPLETIONS, {"prompt": "x" * 1000, "max_tokens": 2})
        with target.unconnected() as client:
            await target.connect(client, self._CRUMBS)
        with ExitStack() as stack:
            for _ in range(30):
                client = stack.enter_context(target.unconnected())
                await target.connect(client, whole[: rng.randrange(0, len(whole) - 1)])
            await asyncio.sleep(rng.uniform(0, 2))
            for _ in range(3):
                headers = {"host": "rebound.example", "connection": "close"}
                await target.ask(CHAT, chat(), [(403, "host_not_allowed")], headers)


class Numbers(Attack):
    """Numbers beyond what floats and ranges hold, budgets of 0, and, at a server that lets pages of
    another origin in, requests by the name of another host and from other origins."""

    name = "numbers"
    pause = 0.02
    serve = ("--cors-origin", "https://page.example")

    _HUGE = ("1e400", "-1e400", "1e308999", "9" * 400, "-" + "9" * 4000, "NaN", "Infinity")
    _OUT_OF_RANGE = (
        '"n": 0', '"n": 129', '"n": 9223372036854775808', '"max_tokens": -2', '"min_tokens": -1',
        '"top_k": 18446744073709551616', '"stop_token_ids": [-1]', '"top_p": 1.1',
        '"stop_token_ids": [4294967296]', '"logit_bias": {"-1": 1}', '"temperature": -0.1',
        '"logit_bias": {"99999999999999999999": 1}', '"logit_bias": {"1": 1e400}', '"top_p": -1',
        '"logprobs": true, "top_logprobs": 21', '"dry_allowed_length": 1e30',
        '"speculative": {"max_draft_tokens": -1}',
    )  # fmt: skip
    _FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty")

    async def strike(self, target: Target, rng: random.Random) -> None:
        dice = rng.random()
        head = '{"messages": [{"role": "user", "content": "x"}], "max_tokens": '
        if dice < 0.4:
            field = f'"{rng.choice(self._FLOATS)}": {rng.choice(self._HUGE)}'
            await target.ask(CHAT, f"{head}0, {field}}}".encode(), WRONG)
        elif dice < 0.7:
            field = rng.choice(self._OUT_OF_RANGE)
            await target.ask(CHAT, f"{head}1, {field}}}".encode(), [*WRONG, *UNSUPPORTED])
        elif dice < 0.8:
            document = await target.ask(CHAT, chat(max_tokens=0, seed=10**300), [ANSWER])
            written = document and document["usage"]["completion_tokens"]
            target.must(written == 0, f"max_tokens 0 wrote {written} tokens")
        elif dice < 0.9:
            ids = rng.choice(([-1], [2**31], [2**63], [10**300]))
            path, name = rng.choice(((COMPLETIONS, "prompt"), ("/detokenize", "tokens")))
            await target.ask(path, {name: ids}, WRONG)
        else:
            headers = {"host": rng.choice(("page.example", "rebound.example", "localhost.example"))}
            headers["origin"] = rng.choice(("https://page.example", "https://other.example"))
            await target.ask(CHAT, chat(), [(403, "host_not_allowed")], headers)


class Schemas(Attack):
    """Schemas, expressions and tools that take long to compile or to describe, or that cannot be
    kept."""

    name = "schemas"

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        deep: Any = {"type": "string"}
        wide: Any = {"type": "integer"}
        for _ in range(200):
            deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
        for level in range(12):
            wide = {"anyOf": [wide, {"type": "array", "items": wide, "maxItems": 9 + level}]}
        texts = [f"{i:05}" * 20 for i in range(9_000)]
        pattern = {"type": "string", "pattern": "^(a{1,1000}){1,1000}b$"}
        long = {"type": "string", "minLength": 100_000, "maxLength": 200_000}
        loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
        many = {"type": "object", "properties": dict.fromkeys(texts, long)}
        schemas = [deep, wide, {"enum": texts}, pattern, long, loop, many, {"type": "nonsense"}]
        self._bodies: list[dict[str, Any]] = [
            chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
            for schema in schemas
        ]
        self._bodies += [chat(guided_regex=text) for text in ("(a|aa)+" * 300, "((a{9}){9}){99}")]
        self._bodies += [
            chat(tools=[tool("t", "d") | {"strict": True}] * 500),
            chat(guided_choice=texts),
        ]
        self._bodies += [
            chat(regex="(" * 5_000),
            chat(grammar="root ::= root"),
            chat(guided_json=deep),
        ]

    async def strike(self, target: Target, rng: random.Random) -> None:
        allowed = [ANSWER, *WRONG, *UNSUPPORTED, *TOO_LONG, (429, BUSY)]
        body = rng.choice(self._bodies)
        if rng.random() < 0.5:
            await target.ask(CHAT, body, allowed)
        else:
            await target.leave(CHAT, body, rng.uniform(0.05, 2), allowed)


class Aborts(Attack):
    """Requests of every route whose clients leave at every moment: while they send, before the
    first token, within the stream."""

    name = "aborts"
    pause = 0.1

    _WORDS = "tell me of the fox and the dog "
    _REQUESTS = (
        (CHAT, chat(_WORDS, max_tokens=60, stream=True)),
        (CHAT, chat(_WORDS, max_tokens=60, tools=[tool("look", "Look.")])),
        (CHAT, chat(_WORDS, max_tokens=30, n=3, logprobs=True, stream=True)),
        (CHAT, chat(_WORDS, max_tokens=60, response_format={"type": "json_object"})),
        (COMPLETIONS, {"prompt": _WORDS * 20, "max_tokens": 40, "echo": True, "stream": True}),
        ("/v1/responses", {"input": _WORDS, "max_output_tokens": 60, "stream": True}),
        ("/v1/messages", {"messages": [user(_WORDS)], "max_tokens": 60, "stream": True}),
        ("/tokenize", {"content": _WORDS * 1000, "with_pieces": True}),
    )  # fmt: skip

    async def strike(self, target: Target, rng: random.Random) -> None:
        path, body = rng.choice(self._REQUESTS)
        if rng.random() < 0.2:
            whole = post_bytes(path, body)
            with target.unconnected() as client:
                await target.connect(client, whole[: rng.randrange(len(whole) + 1)])
            return
        await target.leave(path, body, rng.uniform(0, 0.6), BUSY_OR_ANSWER)


ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        Nulls, Systems, Stops, Pieces, Unread, Headers, Control, Numbers, Schemas, Aborts
    )
}  # fmt: skip
