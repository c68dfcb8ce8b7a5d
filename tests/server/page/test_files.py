"""The page's files as a server sends them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import httpx
import pytest

from copyahead.server.page.files import page_files
from copyahead.server.service import ServerOptions
from tests.server.toys import Running, running

PATHS = sorted(page_files())
TYPES = {"/": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with running(options=ServerOptions(api_keys=("k",))) as server:
        yield server


def test_every_file_of_the_folder_is_sent() -> None:
    names = {f.name for f in resources.files("copyahead.server.page").joinpath("static").iterdir()}
    assert {path.removeprefix("/page/") for path in PATHS} == (names - {"index.html"}) | {"/"}
    assert len(names) > 8


@pytest.mark.parametrize("path", PATHS)
def test_a_file_needs_no_key_and_has_its_type(locked: Running, path: str) -> None:
    answer = httpx.get(locked.url + path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(TYPES[path.rpartition(".")[2]])
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    head = httpx.head(locked.url + path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("path", PATHS)
def test_what_a_browser_has_is_not_sent_again(locked: Running, path: str) -> None:
    tag = httpx.get(locked.url + path).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = httpx.get(locked.url + path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), known
    other = httpx.get(locked.url + path, headers={"if-none-match": '"other"'})
    assert other.status_code == 200


def test_the_policy_lets_in_nothing_from_elsewhere(locked: Running) -> None:
    policy = httpx.get(locked.url).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("frame-ancestors") == "'none'"
    assert set(rules.values()) <= {"'self'", "'none'"}
    assert {"script-src", "style-src", "connect-src"} <= set(rules)


def test_the_document_holds_no_script_and_names_nothing_elsewhere() -> None:
    text = page_files()["/"].body.decode()
    assert re.findall(r"<script[^>]*>([^<]+)", text) == []
    assert re.findall(r"\s(on\w+|style)=", text) == []
    everything = b"".join(file.body for file in page_files().values()).decode()
    # The one address names the format of a picture, and nothing is loaded from it.
    assert set(re.findall(r"https?://[^\s\"')]+", everything)) == {"http://www.w3.org/2000/svg"}
    linked = re.findall(r'(?:src|href)="(page/[^"]+)"', text)
    assert {f"/{name}" for name in linked} <= set(PATHS)
    assert len(linked) == 3


def test_requests_of_the_page_need_a_key(locked: Running) -> None:
    for path in ("/copyahead/status", "/v1/models", "/page/none.js", "/page/../v1/models"):
        assert httpx.get(locked.url + path).status_code == 401, path
    with_key = {"authorization": "Bearer k"}
    assert httpx.get(f"{locked.url}/page/none.js", headers=with_key).status_code == 404
    assert httpx.post(locked.url, headers=with_key).status_code == 405


def test_another_name_of_the_host_gets_no_page() -> None:
    with running() as server:
        answer = httpx.get(server.url, headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "host_not_allowed"


def test_without_the_page_there_are_no_files() -> None:
    with running(options=ServerOptions(ui=False)) as server:
        assert httpx.get(server.url).json() == {"name": "copyahead"}
        assert httpx.head(server.url).status_code == 200
        for path in PATHS:
            assert path == "/" or httpx.get(server.url + path).status_code == 404
    with running(options=ServerOptions(ui=False, api_keys=("k",))) as server:
        assert httpx.get(server.url).status_code == 401
