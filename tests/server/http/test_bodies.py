"""Bodies: what a wrong one costs, what one may hold, and that reading one holds nobody up."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from copyahead.errors import RequestError
from copyahead.server.anthropic.messages_input import MessagesRequest
from copyahead.server.errors import ApiError, ClientGone
from copyahead.server.http import bodies
from copyahead.server.http import work as work_module
from copyahead.server.http.bodies import MAX_CONTAINERS, MAX_VALUES, check_size, read_body
from copyahead.server.http.text_limit import TextLimit
from copyahead.server.http.work import LARGE_BYTES, Work, check_wanted, set_size
from copyahead.server.openai.responses_input import ResponsesRequest
from copyahead.server.openai.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from copyahead.server.wire import MAX_BIASES, SamplingFields, Wire
from tests.server.toys import running

MODELS: tuple[type[Wire], ...] = (
    ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, TokenizeRequest,
    DetokenizeRequest,
)  # fmt: skip

LIMIT = TextLimit(2048, 11)


def holds(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(holds(each, kind) for each in get_args(annotation)) or (
        getattr(annotation, "__origin__", None) is kind
    )  # fmt: skip


FIELDS = [
    (model, name, kind)
    for model in MODELS
    for name, field in model.model_fields.items()
    for kind in (list, dict)
    if holds(field.annotation, kind)
]


@pytest.mark.parametrize(
    ("model", "name", "kind"), FIELDS, ids=lambda given: getattr(given, "__name__", given)
)
def test_a_list_is_not_read_beyond_its_first_bad_item(
    model: type[Wire], name: str, kind: type
) -> None:
    for wrong in (object(), [object()] * 500, [[object()] * 500] * 500, {"role": [1] * 500}):
        items = [wrong] * 500
        given: Any = items if kind is list else {str(place): wrong for place in range(500)}
        try:
            model.model_validate({name: given})
        except ValidationError as error:
            faults = [each for each in error.errors() if each["loc"][0] == name]
            assert len(faults) <= 20, f"{len(faults)} faults of one field were collected"


def test_the_first_fault_is_named() -> None:
    for body, param in (
        (b'{"prompt": "x", "stop_token_ids": [1, null, null]}', "stop_token_ids.1"),
        (b'{"prompt": "x", "logit_bias": {"1": 1, "2": "x"}}', "logit_bias"),
        (b'{"prompt": [null, null]}', "prompt"),
    ):
        with pytest.raises(ApiError) as refusal:
            read_body(body, CompletionRequest, LIMIT)
        assert refusal.value.param == param
    many = {str(token): 1 for token in range(MAX_BIASES + 1)}
    with pytest.raises(ValidationError, match=f"at most {MAX_BIASES}"):
        CompletionRequest.model_validate({"prompt": "x", "logit_bias": many})


def test_a_body_has_a_limit_of_values_and_punctuation_in_texts_is_none() -> None:
    check_size('{"content": "' + '\\",[{' * MAX_VALUES + '"}')
    check_size("[0" + ",0" * (MAX_VALUES // 2) + "]")
    for many in ("[0" + ",0" * MAX_VALUES + "]", "[" * (MAX_VALUES + 1), "{" * (MAX_VALUES + 1)):
        with pytest.raises(ApiError, match=f"more than {MAX_VALUES} values") as refusal:
            check_size(many)
        assert refusal.value.status == 413


def test_a_body_has_a_limit_of_lists_and_objects() -> None:
    check_size("[" + "{}," * (MAX_CONTAINERS - 2) + "{}]")
    check_size('["' + "[{" * MAX_CONTAINERS + '"]')
    for many in ("[[],", "[{},"):
        with pytest.raises(ApiError, match=f"more than {MAX_CONTAINERS} lists") as refusal:
            check_size(many + "{}," * (MAX_CONTAINERS - 1) + "{}]")
        assert refusal.value.status == 413


@given(
    st.recursive(
        st.text('a"\\[{,'), lambda inner: st.lists(inner) | st.dictionaries(st.text('"{'), inner)
    ),
    st.integers(1, 9),
)
def test_what_is_in_strings_is_not_counted_wherever_a_text_is_cut(
    document: Any, piece: int
) -> None:
    def num_containers(value: Any) -> int:
        if isinstance(value, str):
            return 0
        items = value.values() if isinstance(value, dict) else value
        return 1 + sum(map(num_containers, items))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_PIECE", piece)
        outside = bodies._outside_strings(json.dumps(document))
    assert outside.count("[") + outside.count("{") == num_containers(document)


def test_each_object_is_read_in_a_call_after_which_others_may_have_their_turn() -> None:
    calls = []
    message = b'{"role": "user", "content": "x"}'
    body = b'{"messages": [' + b",".join([message] * 50) + b"]}"
    sys.setprofile(lambda frame, event, _: calls.append(event == "call"))
    try:
        read_body(body, ChatRequest, LIMIT)
    finally:
        sys.setprofile(None)
    assert sum(calls) >= 50


def test_the_server_answers_while_a_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, permit = threading.Event(), threading.Event()

    def read(text: str) -> None:
        if "slow" in text:
            reading.set()
            assert permit.wait(timeout=30)

    monkeypatch.setattr(bodies, "check_size", read)
    with running() as server:
        got: list[httpx.Response] = []
        slow = threading.Thread(
            target=lambda: got.append(
                httpx.post(f"{server.url}/tokenize", json={"content": "slow"})
            )
        )
        slow.start()
        assert reading.wait(timeout=30)
        # The body cannot be read to its end before the permit is given.
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        assert httpx.post(f"{server.url}/tokenize", json={"content": "a"}).status_code == 200
        permit.set()
        slow.join(timeout=30)
        assert got[0].status_code == 200


async def test_small_bodies_do_not_wait_for_large_ones_and_what_nobody_wants_never_begins() -> None:
    work, permit = Work(), threading.Event()
    began: list[str] = []
    ended: list[BaseException] = []

    def large(name: str) -> None:
        began.append(name)
        assert permit.wait(timeout=30)
        try:
            check_wanted()
        except ClientGone as gone:
            ended.append(gone)

    async def ask(name: str) -> None:
        set_size(LARGE_BYTES + 1)
        await work.run(large, name)

    tasks = [asyncio.create_task(ask(name)) for name in ("first", "second", "third")]
    while not began:
        await asyncio.sleep(0.005)
    assert await work.run(str.upper, "small") == "SMALL"
    for task in tasks[:2]:
        task.cancel()
    await asyncio.wait(tasks[:2])
    permit.set()
    await tasks[2]
    assert began == ["first", "third"]
    assert len(ended) == 1
    work.close()


async def test_memory_is_given_back_for_a_while_after_large_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, trims = Work(), []
    monkeypatch.setattr(work_module, "_trim", lambda: trims.append(threading.current_thread()))
    monkeypatch.setattr(work_module, "_TRIM_SECONDS", 0)
    await work.run(str.upper, "small")
    work.give_back()
    set_size(LARGE_BYTES + 1)
    await work.run(str.upper, "large")
    for _ in range(50):
        work.give_back()
    await work.run(str.upper, "after them")
    assert len(trims) == work_module._NUM_TRIMS
    assert threading.current_thread() not in trims
    work.close()
    work.give_back()


def test_outside_of_a_request_everything_is_wanted() -> None:
    check_wanted()


@pytest.mark.parametrize("digits", ["1" + "0" * 309, "-1" + "0" * 309, "1e400", "-1e400"])
@pytest.mark.parametrize("name", sorted(SamplingFields.model_fields))
def test_a_number_beyond_floats_is_refused_by_name(name: str, digits: str) -> None:
    value = f'{{"1": {digits}}}' if name == "logit_bias" else digits
    body = f'{{"prompt": "x", "{name}": {value}}}'.encode()
    if name == "seed" and "e" not in digits:
        read_body(body, CompletionRequest, LIMIT).sampling(default_temperature=1.0)
        return
    with pytest.raises((ApiError, RequestError), match=f"^{name}.* (must|is wrong)") as refusal:
        read_body(body, CompletionRequest, LIMIT).sampling(default_temperature=1.0)
    assert len(str(refusal.value)) < 150


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "tools[0].type"),
        ("responses", {"input": "x"}, "tools[0].type"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
         "tools[0].type"),
        ("responses", {"input": [{"type": [None]}]}, "input[0].type"),
    ],
)  # fmt: skip
def test_a_type_that_is_no_text_is_refused_by_name(
    path: str, body: dict[str, Any], param: str
) -> None:
    given = {**body, "tools": [{"type": [None]}]} if param.startswith("tools") else body
    with running() as server:
        refused = httpx.post(f"{server.api}/{path}", json=given)
    assert refused.status_code == 400
    assert f"{param} must be a text" in refused.json()["error"]["message"]


@pytest.mark.parametrize("num", [0, 1, 4096, 4097])
def test_tokens_and_their_pieces_come_part_by_part(num: int) -> None:
    text = ('a"\u00e9' * num)[:num]
    with running() as server:
        body = {"content": text, "with_pieces": True}
        answer = httpx.post(f"{server.url}/tokenize", json=body).json()
        tokens = server.service.tokenizer.encode(text)
        texts = [server.service.text([token]) for token in tokens]
    assert (answer["tokens"], answer["count"]) == (tokens, len(tokens))
    assert [piece["id"] for piece in answer["pieces"]] == tokens
    assert [piece["piece"] for piece in answer["pieces"]] == texts
