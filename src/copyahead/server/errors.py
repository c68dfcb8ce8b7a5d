"""Every refusal and fault as the client sees it: a status, and one JSON object.

The shape is OpenAI's, `{"error": {"message", "type", "param", "code"}}`; under `/v1/messages` it
is Anthropic's. Nothing that the client sent is repeated in it but names and short values.

`ApiError` and `ClientGone` stand here and not with the other errors: a status, headers and a
connection mean nothing below the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from copyahead.errors import (
    ConfigError,
    ContextOverflowError,
    CopyaheadError,
    EngineFailed,
    EngineStopped,
    MissingExtraError,
    RequestError,
)

MESSAGES_PATH = "/v1/messages"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {**_TYPES, 413: "request_too_large", 503: "overloaded_error"}


class ApiError(CopyaheadError):
    """A request that ends with an error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """`extra`: further fields of the error object."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON object, in the shape that clients of `path` expect."""
        if path.startswith(MESSAGES_PATH):
            return self._anthropic()
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": {**error, **self.extra}}

    def _anthropic(self) -> dict[str, Any]:
        message = str(self)
        if self.code == "context_length_exceeded":
            # The words by which its clients know that they have to shorten the conversation.
            prompt, limit = self.extra["n_prompt_tokens"], self.extra["n_ctx"] - 1
            message = f"prompt is too long: {prompt} tokens > {limit} maximum"
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


class ClientGone(Exception):  # noqa: N818
    """The client has closed its connection: there is nobody to answer."""


def api_error(error: BaseException, renames: Mapping[str, str] | None = None) -> ApiError:
    """What `error` is for the client. `renames`: field names of the engine to those of the wire.

    Faults that nobody foresaw become a 500 that tells nothing of the inside.
    """
    renames = renames or {}
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflowError):
        where = renames.get("prompt", "prompt")
        return context_overflow(error.num_prompt_tokens, error.context_size, where)
    if isinstance(error, RequestError):
        field = error.field
        param = renames.get(field, field) if field is not None else None
        message = str(error)
        if field is not None and param != field:
            message = message.replace(field, str(param), 1)
        return ApiError(message, param=param, code="invalid_value")
    if isinstance(error, UnicodeEncodeError):
        return ApiError(
            "the text is not valid Unicode: it holds half of a surrogate pair", code="invalid_value"
        )
    if isinstance(error, MissingExtraError):
        return ApiError(str(error), status=501, code="not_installed")
    if isinstance(error, ConfigError):
        return ApiError(str(error), code="invalid_value")
    if isinstance(error, EngineFailed):
        return ApiError(
            "the engine has failed, and the server ends: start it again",
            status=503,
            code="engine_failed",
        )
    if isinstance(error, EngineStopped):
        return ApiError("the server is shutting down", status=503, code="shutting_down")
    return ApiError("the server has met an internal fault", status=500, code="internal_error")


def context_overflow(
    num_prompt_tokens: int, context_size: int, param: str, *, at_least: bool = False
) -> ApiError:
    """The one error for a prompt that does not fit, with both numbers. `at_least`: it may have
    more tokens.

    Coding agents look for this code, or for the phrase `maximum context length`.
    """
    has = "has at least" if at_least else "has"
    return ApiError(
        f"This model's maximum context length is {context_size} tokens, and your prompt {has} "
        f"{num_prompt_tokens}: shorten it, or start the server with a larger --ctx",
        code="context_length_exceeded",
        param=param,
        extra={"n_prompt_tokens": num_prompt_tokens, "n_ctx": context_size},
    )
