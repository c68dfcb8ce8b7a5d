"""The application against its own OpenAPI document: whatever is sent, no status of 500 or above."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.infill.toys import gap_backend
from tests.server.toys import Running, running

ROUTES = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/infill"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/props"),
    ("GET", "/copyahead/status"),
    ("GET", "/health"),
    ("GET", "/metrics"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(gap_backend(context_size=256)) as server:
        yield server


@pytest.fixture(scope="module")
def schema(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_route_is_in_the_document(server: Running) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert set(ROUTES) <= {(m.upper(), path) for path, item in paths.items() for m in item}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_that_fits_the_document_is_a_fault(
    server: Running, schema: Any, method: str, path: str
) -> None:
    @given(case=schema[path][method].as_strategy())
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def send(case: Any) -> None:
        answer = case.call()
        assert answer.status_code < 500, answer.text

    send()
    assert server.is_idle()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("path", [path for method, path in ROUTES if method == "POST"])
def test_nothing_in_a_field_is_a_fault(server: Running, schema: Any, path: str) -> None:
    """Each field in turn with anything at all in it, the rest of the body being right."""
    right: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "prompt": "x",
        "input": "x",
        "content": "x",
        "max_tokens": 4,
    }
    names = sorted(_fields(schema, path))

    @given(name=st.sampled_from(names), value=JSON)
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    def send(name: str, value: Any) -> None:
        answer = httpx.post(server.url + path, json={**right, name: value}, timeout=30)
        assert answer.status_code < 500, answer.text

    send()
    assert server.is_idle()


def _fields(schema: Any, path: str) -> list[str]:
    document = schema.raw_schema
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rsplit("/", 1)[1]
    return list(document["components"]["schemas"][name]["properties"])
