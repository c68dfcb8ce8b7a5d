"""Every error that copyahead raises on purpose.

    CopyaheadError
    ├── ConfigError               an option is wrong, or two exclude each other
    ├── RequestError              one request cannot be served as asked
    │   ├── ContextOverflowError  its prompt does not fit the context
    │   └── TemplateError         the model's chat template cannot render its messages
    │       └── TemplateLimitError  it takes too much time or memory over them
    ├── ModelError                the model file is missing, unreadable, or unsuitable
    ├── BackendError              a target pass failed
    ├── EngineStopped             the engine was closed before the answer was done
    │   └── EngineFailed          the engine cannot go on
    ├── ClusterError              work that was sent to other machines was lost
    └── MissingExtraError         an optional package is not installed

The text of each is one sentence that names the field and the fix. What only HTTP knows, a status
and an error object, stands in `server.errors`.
"""

from __future__ import annotations


class CopyaheadError(Exception):
    """Base of all errors raised on purpose; its text is fit for a user."""


class ConfigError(CopyaheadError, ValueError):
    """An option has a wrong value, or two options exclude each other."""


class RequestError(CopyaheadError, ValueError):
    """One request cannot be served as asked; others are not affected."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextOverflowError(RequestError):
    """The prompt alone fills the context."""

    def __init__(self, num_prompt_tokens: int, context_size: int) -> None:
        super().__init__(
            f"prompt is {num_prompt_tokens} tokens, and a context of {context_size} holds at most "
            f"{context_size - 1} with one token of answer: shorten the prompt or raise --ctx",
            field="prompt",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.context_size = context_size


class TemplateError(RequestError):
    """The model's chat template cannot render these messages, or has a fault of its own."""


class TemplateLimitError(TemplateError):
    """The model's chat template takes too much time or memory over these messages."""


class ModelError(CopyaheadError):
    """The model file is missing, not GGUF, or cannot do what was asked."""


class BackendError(CopyaheadError):
    """A target pass failed."""


class EngineStopped(CopyaheadError):  # noqa: N818
    """The engine was closed, or its worker failed, before a request was answered."""


class EngineFailed(EngineStopped):
    """The engine met a fault that is no backend's, and cannot go on."""


class ClusterError(CopyaheadError):
    """Work that was sent to a cluster could not be done there."""


class MissingExtraError(CopyaheadError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'copyahead[{extra}]'")
        self.package = package
        self.extra = extra
