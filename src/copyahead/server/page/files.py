"""The page's files over HTTP. They hold nothing of anybody's, so they need no key."""

from __future__ import annotations

import hashlib
from importlib import resources

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from starlette.responses import Response

INDEX = "index.html"
FOLDER = "/page/"
"""Where the files other than `INDEX` are; that one is at `/`."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, nothing that stands inside the document, and no page around this one."""
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept, and asked about each time: a new release is seen at once.
    "cache-control": "no-cache",
}


class PageFile(msgspec.Struct, frozen=True):
    """One file as it is sent."""

    body: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Every file of the page, by its path on the server."""
    found = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            path = "/" if file.name == INDEX else FOLDER + file.name
            found[path] = PageFile(body, kind, etag)
    return found


def add_page(app: FastAPI, files: dict[str, PageFile]) -> None:
    """Have `app` answer `GET` and `HEAD` for each of `files`."""

    async def page(http: HttpRequest) -> Response:
        return _answer(files[http.url.path], http.headers.get("if-none-match", ""))

    for path in files:
        app.add_api_route(
            path, page, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response
        )


def _answer(file: PageFile, known: str) -> Response:
    """`known`: the browser's header that names what it has."""
    headers = {**_HEADERS, "etag": file.etag}
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    if file.etag in tags or "*" in tags:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)
