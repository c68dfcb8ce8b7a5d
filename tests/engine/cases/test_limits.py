"""Every limit at -1, 0 and +1, and every wrong request refused with its field named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from copyahead.config import MAX_DRAFT_TOKENS, LookupOptions, ModelOptions
from copyahead.engine import Engine, Request
from copyahead.engine.request import MAX_CHOICES, MAX_TOP_LOGPROBS
from copyahead.engine.scheduler import EngineOptions
from copyahead.errors import ConfigError, ContextOverflowError, RequestError
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM
from copyahead.types import Exactness, FinishReason
from tests.engine.cases.models import drafted_run, lookup_engine
from tests.toys import plain, run, same, scripted

A, B, C, D = 1, 2, 3, 6
CONTEXT = 40


def forever(**options: Any) -> FakeBackend:
    """Writes A and B in turn for as long as it is let."""

    class Model(ToyLM):
        def logits(self, prefix: Sequence[int]) -> Any:
            row = np.zeros(20, dtype=np.float32)
            row[A + len(prefix) % 2] = 5.0
            return row

    return FakeBackend(Model(), **options)


def greedy_copy(history: tuple[int, ...]) -> list[int]:
    return [A + (len(history) + ahead) % 2 for ahead in range(80)]


@pytest.mark.parametrize("beyond", [-2, -1, 0, 1])
@pytest.mark.parametrize("max_tokens", [None, 0, 1, 2, 100])
def test_a_prompt_at_the_edge_of_the_context(beyond: int, max_tokens: int | None) -> None:
    prompt = [A, B] * 40
    request = Request(prompt=prompt[: CONTEXT + beyond], max_tokens=max_tokens)
    backend = forever(context_size=CONTEXT, num_slots=1)
    if beyond >= 0:
        engine = Engine(backend, make_drafter=ForcedDrafter(greedy_copy))
        with pytest.raises(ContextOverflowError, match="context of 40") as caught:
            engine.complete(request)
        assert caught.value.field == "prompt"
        assert caught.value.num_prompt_tokens == CONTEXT + beyond
        assert backend.num_passes == backend.num_samplers == 0
        return
    got = drafted_run(backend, request, greedy_copy)
    room = -beyond
    written = room if max_tokens is None else min(max_tokens, room)
    assert len(got.choices[0].tokens) == written
    assert got.choices[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("cells", [CONTEXT - 1, CONTEXT, CONTEXT + 1])
def test_cells_below_the_context_are_the_context(cells: int) -> None:
    backend = forever(context_size=CONTEXT, num_slots=2, num_cells=cells)
    engine = Engine(backend, make_drafter=ForcedDrafter(greedy_copy))
    longest = min(CONTEXT, cells)
    with pytest.raises(ContextOverflowError):
        engine.complete(Request(prompt=[A] * longest))
    got = engine.complete_all([Request(prompt=[A, B]), Request(prompt=[B, A, B])])
    assert [len(g.choices[0].tokens) for g in got] == [longest - 2, longest - 3]


@pytest.mark.parametrize("room", [1, 2, 3, 9, 10, 11])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9, 10, 11])
def test_max_tokens_around_the_room_that_is_left(room: int, max_tokens: int) -> None:
    prompt = ([A, B] * 20)[: CONTEXT - room]
    request = Request(prompt=prompt, max_tokens=max_tokens)
    got = drafted_run(forever(context_size=CONTEXT), request, greedy_copy)
    assert len(got.choices[0].tokens) == min(room, max_tokens)
    assert got.choices[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("min_tokens", range(5))
@pytest.mark.parametrize("max_tokens", range(5))
def test_min_tokens_around_max_tokens(min_tokens: int, max_tokens: int) -> None:
    request = Request(prompt=[D], min_tokens=min_tokens, max_tokens=max_tokens)
    backend = scripted(0, 0, 0, 0, 0, 0)
    if min_tokens > max_tokens:
        with pytest.raises(RequestError, match="min_tokens") as caught:
            plain(backend, request)
        assert caught.value.field == "min_tokens"
        return
    choice = drafted_run(backend, request, lambda h: [0, 0, 0]).choices[0]
    assert len(choice.tokens) == min(min_tokens + 1, max_tokens)
    ended = len(choice.tokens) == min_tokens + 1
    assert choice.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4])
@pytest.mark.parametrize("num_slots", [1, 2, 3, 4, 5])
def test_rows_of_a_pass_around_the_number_of_requests(max_rows: int, num_slots: int) -> None:
    wanted = [Request(prompt=[A, B, 1 + place], max_tokens=9) for place in range(5)]
    options: dict[str, Any] = {"max_rows": max_rows, "num_slots": num_slots}
    got = run(FakeBackend(ToyLM(seed=1), **options), wanted, lambda h: h[-4:-1])
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=1)), request))


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("num_requests", [1, 2, 5])
def test_rows_that_are_proven_exact(rows: int, num_requests: int) -> None:
    widest = 0

    class Watched(FakeBackend):
        def forward(self, parts: Any) -> Any:
            nonlocal widest
            if all(part.num_logits == len(part.tokens) for part in parts):
                widest = max(widest, sum(len(part.tokens) for part in parts))
            return super().forward(parts)

    backend = Watched(forever().model, num_slots=5, exactness=Exactness("exact", rows, 0.0))
    wanted = [Request(prompt=[A] * (1 + place), max_tokens=30) for place in range(num_requests)]
    got = run(backend, wanted, greedy_copy)
    assert widest <= max(rows, num_requests)
    # Plain rows run whatever was proven; drafts fill what is left of it.
    assert (sum(g.stats.num_draft_tokens for g in got) > 0) == (rows > num_requests)


@pytest.mark.parametrize("asked", [0, 1, 15, 16, 17, 64, 65])
@pytest.mark.parametrize("engine_limit", [0, 1, 16, 64])
@pytest.mark.parametrize("rewind", [None, 0, 1, 16])
def test_draft_lengths_take_the_smallest_limit(
    asked: int, engine_limit: int, rewind: int | None
) -> None:
    drafter = ForcedDrafter(greedy_copy)
    engine = Engine(
        forever(max_rewind=rewind),
        make_drafter=drafter,
        max_draft_tokens=engine_limit,
    )
    request = Request(prompt=[A], max_tokens=90, max_draft_tokens=asked)
    got = engine.complete(request)
    longest = max((len(d) for s in drafter.sessions for d, _ in s.settled), default=0)
    assert longest == min(asked, engine_limit, 64 if rewind is None else rewind)
    assert same(got, plain(forever(), request))


def refused(field: str, options: dict[str, Any]) -> None:
    backend = FakeBackend()
    with lookup_engine(backend) as engine:
        with pytest.raises(RequestError, match=field) as caught:
            engine.submit(Request(**{"prompt": [A, B], **options}), lambda _: None)
        assert caught.value.field == field
        assert "\n" not in str(caught.value)
        assert engine.num_active == backend.num_passes == backend.num_samplers == 0


COUNTS: dict[str, tuple[int, int | None, bool]] = {
    # The least, the most, and whether it may be left out.
    "max_tokens": (0, None, True),
    "min_tokens": (0, None, False),
    "n": (1, MAX_CHOICES, False),
    "logprobs": (0, MAX_TOP_LOGPROBS, True),
    "max_draft_tokens": (0, None, True),
}


@pytest.mark.parametrize("field", COUNTS)
def test_counts_at_their_limits(field: str) -> None:
    low, high, optional = COUNTS[field]
    wrong: list[Any] = [low - 1, -(10**12), 1.0, 1.5, math.nan, math.inf, "1", "", True, False, [1]]
    if high is not None:
        wrong.append(high + 1)
    if not optional:
        wrong.append(None)
    for value in wrong:
        refused(field, {field: value})
    allowed: list[Any] = [low, low + 1, *([high] if high else []), *([None] if optional else [])]
    for value in allowed:
        options: dict[str, Any] = {"max_tokens": 2, field: value}
        with lookup_engine(FakeBackend(ToyLM(seed=1), num_slots=8)) as engine:
            got = engine.complete(Request(prompt=[A], **options))
        assert all(choice.error is None for choice in got.choices)


IDS: list[Any] = [
    [-1],
    [A, 20],
    [10**12],
    [1.5],
    ["1"],
    [None],
    [True],
    [[1]],
    "ab",
    7,
    None,
    [1, "2"],
]


@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "prediction"])
@pytest.mark.parametrize("ids", IDS, ids=str)
def test_what_is_no_list_of_token_ids(field: str, ids: Any) -> None:
    refused(field, {field: ids})


@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "logit_bias", "prediction"])
def test_padding_ids_are_no_tokens(field: str) -> None:
    # Rows of 32 logits for a vocabulary of 20.
    for token in (19, 20, 31):
        sampling = SamplingOptions(logit_bias={token: 1.0} if field == "logit_bias" else {})
        options: dict[str, Any] = {} if field == "logit_bias" else {field: [token]}
        request = Request(**{"prompt": [A], "max_tokens": 2, "sampling": sampling, **options})
        with lookup_engine(FakeBackend(ToyLM(seed=1, vocab_size=32))) as engine:
            if token < 20:
                assert engine.complete(request).choices[0].error is None
                continue
            said = f"{field} holds token id {token}, and the model has ids 0 to 19"
            with pytest.raises(RequestError, match=said) as caught:
                engine.complete(request)
            assert caught.value.field == field


def test_an_empty_prompt_is_refused() -> None:
    refused("prompt", {"prompt": []})
    refused("prompt", {"prompt": np.zeros(0, dtype=np.int32)})


@pytest.mark.parametrize("kind", [list, tuple, np.asarray])
def test_a_prompt_may_be_any_sequence_of_ids(kind: Any) -> None:
    prompt = kind([0, A, 19])
    got = plain(FakeBackend(), Request(prompt=prompt, max_tokens=5))
    assert same(got, plain(FakeBackend(), Request(prompt=[0, A, 19], max_tokens=5)))


@pytest.mark.parametrize(
    "stop", [None, "END", "", [""], ("a", ""), [1], [None], [b"a"], 7], ids=str
)
def test_what_is_no_list_of_stop_strings(stop: Any) -> None:
    refused("stop", {"stop": stop})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampling", None),
        ("sampling", {"temperature": 1}),
        ("lookup", "no"),
        ("ignore_eos", 1),
        ("tenant", ["a"]),
        ("tenant", None),
        ("policy", 5),
        ("policy", ["fixed"]),
        ("json_schema", {}),
        ("grammar", b'start: "a"'),
        ("grammar", 'start: "\ud800"'),
        ("json_schema", '{"const": "\ud800"}'),
    ],
)
def test_what_is_of_no_kind_that_the_field_takes(field: str, value: Any) -> None:
    refused(field, {field: value})


@pytest.mark.parametrize("options", [{}, {"lookup": False}, {"max_draft_tokens": 0}], ids=str)
@pytest.mark.parametrize("rewind", [None, 0])
@pytest.mark.parametrize("policy", ["nope", "fixed:nope=1"])
def test_an_unknown_policy_is_refused_also_where_nothing_is_drafted(
    policy: str, rewind: int | None, options: dict[str, Any]
) -> None:
    request = Request(prompt=[A], policy=policy, **options)
    for engine in (lookup_engine(FakeBackend(max_rewind=rewind)), Engine(FakeBackend())):
        with engine, pytest.raises(RequestError, match="nope") as caught:
            engine.complete(request)
        assert caught.value.field == "policy"
        assert engine.backend.num_passes == 0  # type: ignore[attr-defined]


def test_a_known_policy_is_taken_where_nothing_is_drafted() -> None:
    got = plain(FakeBackend(), Request(prompt=[A], policy="fixed", max_tokens=2))
    assert len(got.choices[0].tokens) == 2


@pytest.mark.parametrize("stop", [[], (), ["x END"], (" ",), ["a", "b", "c", "d", "e"]], ids=str)
def test_lists_of_stop_strings(stop: Any) -> None:
    got = plain(scripted(A, B, 7, C), Request(prompt=[D], stop=stop))
    ends = [at for s in stop if (at := "abx END yc".find(s)) >= 0]
    first = {0: "abx END yc"}.get(len(ends))
    assert got.text == ("abx END yc"[: min(ends)] if first is None else first)


@pytest.mark.parametrize("chunk", [-1, 0, 1, 2])
def test_engine_options_at_their_limits(chunk: int) -> None:
    for field in ("chunk_tokens", "busy_chunk_tokens", "max_draft_rows"):
        options: dict[str, Any] = {field: chunk}
        if chunk < (0 if field == "max_draft_rows" else 1):
            with pytest.raises(ConfigError, match=field):
                EngineOptions(**options)
            continue
        request = Request(prompt=[A, B] * 9, max_tokens=12)
        got = run(forever(), [request], greedy_copy, options=EngineOptions(**options))
        assert same(got[0], plain(forever(), request))


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_options_of_a_run_at_their_limits(beyond: int) -> None:
    cases: list[tuple[type, str, int, int]] = [
        (ModelOptions, "ctx", 64, 2**24),
        (ModelOptions, "parallel", 1, 256),
        (ModelOptions, "threads", 1, 1024),
        (ModelOptions, "gpu_layers", -1, 10_000),
        (LookupOptions, "max_draft_tokens", 1, MAX_DRAFT_TOKENS),
    ]
    for kind, name, low, high in cases:
        for value, inside in ((low + beyond, beyond >= 0), (high + beyond, beyond <= 0)):
            if inside:
                assert getattr(kind(**{name: value}), name) == value
                continue
            with pytest.raises(ConfigError, match=name):
                kind(**{name: value})


BOUNDS: dict[str, tuple[float, float, float]] = {
    # The least, the most, and a step that is surely outside.
    "temperature": (0.0, 10.0, 1e-6),
    "top_k": (0, 2**31 - 1, 1),
    "top_p": (1e-9, 1.0, 1e-6),
    "min_p": (0.0, 1.0, 1e-6),
    "typical_p": (1e-9, 1.0, 1e-6),
    "repetition_penalty": (1e-9, 10.0, 1e-6),
    "presence_penalty": (-2.0, 2.0, 1e-6),
    "frequency_penalty": (-2.0, 2.0, 1e-6),
    "dry_multiplier": (0.0, 10.0, 1e-6),
    "dry_base": (1.0, 4.0, 1e-6),
    "dry_allowed_length": (1, 1000, 1),
    "seed": (0, 2**32 - 1, 1),
}


@pytest.mark.parametrize("field", BOUNDS)
def test_sampling_options_at_their_limits(field: str) -> None:
    low, high, outside = BOUNDS[field]
    for value in (low - outside, high + outside):
        with pytest.raises(RequestError, match=field):
            SamplingOptions(**{field: value})  # type: ignore[arg-type]
    for value in (low, high):
        options: dict[str, Any] = {"temperature": 0.8, "seed": 1, field: value}
        request = Request(prompt=[A, B], max_tokens=12, sampling=SamplingOptions(**options))
        got = drafted_run(FakeBackend(ToyLM(seed=1)), request, lambda h: h[-5:])
        assert got.choices[0].error is None
        assert same(got, plain(FakeBackend(ToyLM(seed=1)), request))
