"""What an answer has to follow: schemas, and calls that must come, alike on all three routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.server.toys import CALL, Running, running, typed_events

pytest.importorskip("llguidance")

ITSELF = {"$ref": "#/$defs/n"}
ENDLESS = {"n": {"type": "object", "properties": {"n": ITSELF}, "required": ["n"]}}
REQUIRED = {"type": "object", "properties": {"a": ITSELF}, "required": ["a"], "$defs": ENDLESS}
OPTIONAL = {
    "type": "object",
    "properties": {"a": ITSELF, "b": {"type": "integer"}},
    "additionalProperties": False,
    "$defs": ENDLESS,
}


class Said(NamedTuple):
    """What a client reads of an answer."""

    text: str
    calls: list[tuple[str, Any]]


class Route(NamedTuple):
    """One API's names for the same things."""

    path: str
    format_field: str

    def body(
        self,
        text: str,
        *,
        schema: Any = None,
        parameters: Any = None,
        choice: str | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """A request to say `text`, by `schema`, with a tool `look` that takes `parameters`."""
        messages = [{"role": "user", "content": f"say:{text}"}]
        form: Any = {"type": "json_schema", "name": "f", "schema": schema}
        body: dict[str, Any] = {"model": "m", "temperature": 0, **more}
        function = {"name": "look", "parameters": parameters}
        if self.path == "chat/completions":
            form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
            body |= {"messages": messages, "max_tokens": 60}
            given: Any = {"tools": [{"type": "function", "function": function}]}
            given["tool_choice"] = choice
            made = {"response_format": form}
        elif self.path == "responses":
            body |= {"input": messages, "max_output_tokens": 60}
            given = {"tools": [{"type": "function", **function}], "tool_choice": choice}
            made = {"text": {"format": form}}
        else:
            body |= {"messages": messages, "max_tokens": 60}
            given = {"tools": [{"name": "look", "input_schema": parameters}]}
            if choice is not None:
                given["tool_choice"] = {"type": {"required": "any"}.get(choice, choice)}
            made = {"output_config": {"format": form}}
        body |= given if parameters is not None else {}
        return body | (made if schema is not None else {})

    def ask(self, server: Running, body: dict[str, Any], stream: bool) -> Said | str:
        """What is said, or the error's message; a fault in the middle of a stream fails."""
        answer = httpx.post(f"{server.api}/{self.path}", json={**body, "stream": stream})
        if answer.status_code != 200:
            assert answer.status_code == 400, answer.text
            return str(answer.json()["error"]["message"])
        if not stream:
            return self._whole(answer.json())
        if self.path == "chat/completions":
            return self._chunks(answer)
        events = typed_events(answer)
        if self.path == "responses":
            assert events[-1]["type"] == "response.completed"
            return self._whole(events[-1]["response"])
        assert events[-1]["type"] == "message_stop"
        return self._blocks(events)

    def _whole(self, document: dict[str, Any]) -> Said:
        if self.path == "chat/completions":
            message = document["choices"][0]["message"]
            used = [call["function"] for call in message.get("tool_calls", ())]
            text = message["content"] or ""
        elif self.path == "responses":
            parts = [item for item in document["output"] if item["type"] == "message"]
            text = "".join(part["text"] for item in parts for part in item["content"])
            used = [item for item in document["output"] if item["type"] == "function_call"]
        else:
            text = "".join(b["text"] for b in document["content"] if b["type"] == "text")
            used = [block for block in document["content"] if block["type"] == "tool_use"]
            return Said(text, [(block["name"], block["input"]) for block in used])
        return Said(text, [(call["name"], json.loads(call["arguments"])) for call in used])

    def _chunks(self, answer: httpx.Response) -> Said:
        text, calls = "", []
        lines = [
            line.removeprefix("data: ") for line in answer.text.split("\n") if line[:5] == "data:"
        ]
        assert lines[-1] == "[DONE]", lines[-1]
        for line in lines[:-1]:
            for choice in json.loads(line)["choices"]:
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", ()):
                    if "name" in call["function"]:
                        calls.append([call["function"]["name"], ""])
                    calls[-1][1] += call["function"]["arguments"]
        return Said(text, [(name, json.loads(arguments)) for name, arguments in calls])

    def _blocks(self, events: list[dict[str, Any]]) -> Said:
        text, calls = "", []
        for event in events:
            block, delta = event.get("content_block", {}), event.get("delta", {})
            if block.get("type") == "tool_use":
                calls.append([block["name"], ""])
            text += delta.get("text", "")
            if "partial_json" in delta:
                calls[-1][1] += delta["partial_json"]
        return Said(text, [(name, json.loads(arguments)) for name, arguments in calls])


ROUTES = (
    Route("chat/completions", "response_format"),
    Route("responses", "text.format"),
    Route("messages", "output_config.format"),
)


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Running]:
    """A server that drafts nothing, so that what is forced is never tried first."""
    with running() as server:
        yield server


each_way = pytest.mark.parametrize("stream", [False, True])
each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.path))


@each_way
@each_route
@pytest.mark.parametrize("schema", [REQUIRED, {**ITSELF, "$defs": {"n": ITSELF}}, False])
def test_a_schema_that_no_value_follows_is_refused_by_name(
    plain_server: Running, route: Route, stream: bool, schema: Any
) -> None:
    said = route.ask(plain_server, route.body("x", schema=schema), stream)
    assert isinstance(said, str)
    assert said.startswith(f"{route.format_field} allows no value")
    with_tools = route.body("x", schema=schema, parameters={}, choice="auto")
    said = route.ask(plain_server, with_tools, stream)
    assert isinstance(said, str)
    assert said.startswith(f"{route.format_field} allows no value")


@each_way
@each_route
def test_what_is_endless_and_optional_is_never_begun(
    plain_server: Running, route: Route, stream: bool
) -> None:
    said = route.ask(plain_server, route.body('{"a": {}, "b": 1}', schema=OPTIONAL), stream)
    assert isinstance(said, Said), said
    assert json.loads(said.text).keys() <= {"b"}
    told = CALL % ("look", '{"a": {}, "b": 1}')
    body = route.body(told, parameters=OPTIONAL, choice="required")
    said = route.ask(plain_server, body, stream)
    assert isinstance(said, Said), said
    (call,) = said.calls
    assert call[0] == "look"
    assert call[1].keys() <= {"b"}


@each_way
@each_route
def test_an_endless_tool_is_refused_only_where_it_must_be_called(
    plain_server: Running, route: Route, stream: bool
) -> None:
    must = route.body("x", parameters=REQUIRED, choice="required")
    said = route.ask(plain_server, must, stream)
    assert isinstance(said, str)
    assert said.startswith("tools: the schema of 'look' allows no value")
    may = route.body("x", parameters=REQUIRED, choice="auto")
    assert route.ask(plain_server, may, stream) == Said("x", [])


@each_way
@each_route
def test_true_is_any_json(plain_server: Running, route: Route, stream: bool) -> None:
    said = route.ask(plain_server, route.body('[1, {"a": null}]', schema=True), stream)
    assert said == Said('[1, {"a": null}]', [])


PERSON = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
NO = "no object at all"
SPELLINGS: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"json_schema": json.dumps(PERSON)},
    {"guided_json": PERSON},
    {"guided_json": json.dumps(PERSON)},
    {"structured_outputs": {"json": PERSON, "regex": None, "disable_fallback": True}},
    {"structured_outputs": {"json": PERSON, "json_object": False}},
]


@each_way
@each_route
@pytest.mark.parametrize("fields", SPELLINGS)
def test_a_schema_in_another_servers_spelling_is_kept(
    plain_server: Running, route: Route, stream: bool, fields: dict[str, Any]
) -> None:
    said = route.ask(plain_server, route.body(NO) | fields, stream)
    assert isinstance(said, Said), said
    assert json.loads(said.text).keys() <= {"a"}


OWN: list[tuple[Route, dict[str, Any]]] = [
    (ROUTES[0], {"response_format": {"type": "json_object", "schema": PERSON}}),
    (ROUTES[0], {"response_format": {"type": "json_schema", "schema": PERSON, "name": "x"}}),
    (ROUTES[1], {"text": {"format": {"type": "json_object", "schema": PERSON}}}),
    (ROUTES[2], {"output_format": {"type": "json_schema", "schema": PERSON}}),
    (ROUTES[2], {"output_format": {"type": "json_schema", "schema": PERSON, "name": "x"}}),
]


@each_way
@pytest.mark.parametrize(("route", "fields"), OWN)
def test_a_routes_own_field_takes_other_spellings(
    plain_server: Running, route: Route, stream: bool, fields: dict[str, Any]
) -> None:
    said = route.ask(plain_server, route.body(NO) | fields, stream)
    assert isinstance(said, Said), said
    assert json.loads(said.text).keys() <= {"a"}


@each_way
@each_route
@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["yes/no", '"']},
        {"structured_outputs": {"choice": ["yes/no", '"']}},
        {"guided_regex": 'yes/no|"'},
        {"regex": r'yes\/no|"'},
        {"structured_outputs": {"regex": 'yes/no|"'}},
    ],
)
def test_choices_and_patterns_are_kept_with_tools_and_without(
    plain_server: Running, route: Route, stream: bool, fields: dict[str, Any]
) -> None:
    free = route.ask(plain_server, route.body(NO) | fields, stream)
    assert free in (Said("yes/no", []), Said('"', []))
    for told, expected in (
        ("yes/no", Said("yes/no", [])),
        (CALL % ("look", "{}"), Said("", [("look", {})])),
    ):
        body = route.body(told, parameters=PERSON, choice="auto") | fields
        assert route.ask(plain_server, body, stream) == expected


def test_text_completions_keep_them_too(plain_server: Running) -> None:
    for fields in ({"guided_choice": ["yes", "no"]}, {"guided_regex": "yes|no"}):
        body: dict[str, Any] = {"prompt": "a", **fields}
        answer = httpx.post(f"{plain_server.api}/completions", json=body).json()
        assert answer["choices"][0]["text"] in ("yes", "no")
    for fields in SPELLINGS:
        body = {"prompt": "a", **fields, "max_tokens": 60}
        answer = httpx.post(f"{plain_server.api}/completions", json=body).json()
        assert json.loads(answer["choices"][0]["text"]).keys() <= {"a"}
    body = {"prompt": "a", "guided_regex": "("}
    error = httpx.post(f"{plain_server.api}/completions", json=body).json()["error"]
    assert error["param"] == "guided_regex"


FORMAT = {"type": "json_schema", "schema": PERSON}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"grammar": 'root ::= "a"'}, "grammar is not supported"),
    ({"guided_grammar": 'root ::= "a"'}, "guided_grammar is not supported"),
    ({"ebnf": 'root ::= "a"'}, "ebnf is not supported"),
    ({"structural_tag": {}}, "structural_tag is not supported"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar is not supported"),
    ({"structured_outputs": {"novel": 1}}, "structured_outputs.novel is not supported"),
    ({"structured_outputs": {"json": 3}}, "structured_outputs.json must be"),
    ({"structured_outputs": {"json": False}}, "structured_outputs.json allows no value"),
    ({"structured_outputs": {"json_object": "x"}}, "structured_outputs.json_object must be"),
    ({"guided_json": "{"}, "guided_json must be"),
    ({"guided_json": 3}, "guided_json must be"),
    ({"guided_json": False}, "guided_json allows no value"),
    ({"json_schema": {"type": "nonsense"}}, "json_schema does not compile"),
    ({"guided_regex": "("}, "guided_regex does not compile"),
    ({"guided_regex": ""}, "guided_regex must be"),
    ({"guided_choice": []}, "guided_choice must be"),
    ({"guided_choice": ["a", 1]}, "guided_choice must be"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "exclude each other"),
]


@each_way
@each_route
@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(
    plain_server: Running, route: Route, stream: bool, fields: dict[str, Any], words: str
) -> None:
    said = route.ask(plain_server, route.body("x") | fields, stream)
    assert isinstance(said, str), said
    assert words in said


@each_way
@pytest.mark.parametrize(
    ("route", "fields", "words"),
    [
        (ROUTES[0], {"output_config": {"format": FORMAT}}, "output_config is not supported"),
        (ROUTES[0], {"output_format": FORMAT}, "output_format is not supported"),
        (ROUTES[0], {"text": {"format": FORMAT}}, "text is not supported"),
        (ROUTES[1], {"response_format": FORMAT}, "response_format is not supported"),
        (ROUTES[1], {"output_format": FORMAT}, "output_format is not supported"),
        (ROUTES[2], {"response_format": FORMAT}, "response_format is not supported"),
        (ROUTES[2], {"text": {"format": FORMAT}}, "text is not supported"),
        (
            ROUTES[0],
            {"response_format": {"type": "json_object", "value": PERSON}},
            "response_format.value is not supported",
        ),
        (
            ROUTES[0],
            {"response_format": {"type": "text", "schema": PERSON}},
            "response_format holds a schema and is of type text",
        ),
        (
            ROUTES[1],
            {"text": {"format": {"type": "text", "schema": PERSON}}},
            "text.format holds a schema and is of type text",
        ),
        (
            ROUTES[1],
            {"text": {"format": {"type": "json_object", "value": PERSON}}},
            "text.format.value is not supported",
        ),
        (ROUTES[1], {"text": {"format": {"type": "grammar"}}}, "text.format must be of type"),
        (
            ROUTES[2],
            {"output_config": {"format": {**FORMAT, "value": 1}}},
            "output_config.format.value is not supported",
        ),
        (ROUTES[2], {"output_config": FORMAT}, "output_config.schema is not supported"),
        (ROUTES[2], {"output_format": {"type": "json"}}, "output_format must be of type"),
        (
            ROUTES[2],
            {"output_format": FORMAT, "output_config": {"format": FORMAT}},
            "exclude each other",
        ),
    ],
)
def test_so_is_the_form_of_another_api(
    plain_server: Running, route: Route, fields: dict[str, Any], words: str, stream: bool
) -> None:
    said = route.ask(plain_server, route.body("x") | fields, stream)
    assert isinstance(said, str), said
    assert words in said


@each_way
@each_route
def test_a_call_that_must_come_leaves_the_form_to_text(
    plain_server: Running, route: Route, stream: bool
) -> None:
    call = CALL % ("look", '{"a": 1}')
    for choice, told, expected in (
        ("required", call, Said("", [("look", {"a": 1})])),
        ("auto", call, Said("", [("look", {"a": 1})])),
        ("auto", '{"a": 2}', Said('{"a": 2}', [])),
        ("none", '{"a": 2}', Said('{"a": 2}', [])),
    ):
        body = route.body(told, schema=PERSON, parameters=PERSON, choice=choice)
        assert route.ask(plain_server, body, stream) == expected
    nothing = {"type": "object", "properties": {}}
    body = route.body(NO, schema=PERSON, parameters=nothing, choice="required")
    said = route.ask(plain_server, body, stream)
    assert isinstance(said, Said), said
    assert [name for name, _ in said.calls] == ["look"] * len(said.calls) != []
