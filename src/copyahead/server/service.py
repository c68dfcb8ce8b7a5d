"""What the routes of one server share."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from copyahead.chat.prompt import ChatPrompt, chat_prompt
from copyahead.config import Limits
from copyahead.contracts import Capabilities
from copyahead.engine.async_engine import AsyncEngine
from copyahead.engine.request import Request
from copyahead.policies.registry import POLICIES
from copyahead.server.errors import ApiError
from copyahead.server.generation import Generation, Outcome, Written
from copyahead.server.http.limits import Queue
from copyahead.server.http.text_limit import TextLimit
from copyahead.server.http.work import Work, check_wanted
from copyahead.server.metrics import Metrics
from copyahead.server.page.status import TenantBooks
from copyahead.types import Token

if TYPE_CHECKING:
    from copyahead.chat.template.template import ChatTemplate

logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """What writes a trace; see `copyahead.traces.record`."""

    def write(
        self,
        prompt: Sequence[Token],
        output: Sequence[Token],
        *,
        rounds: Iterable[tuple[int, int]],
        options: Mapping[str, Any],
        finish_reason: str,
        seconds: float,
    ) -> None:
        """Append one answer, which took `seconds` from the request to its end."""
        ...

    def close(self) -> None:
        """End the file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server is set up, apart from its engine."""

    model_name: str = "copyahead"
    """The name under which the model is listed."""
    api_keys: Sequence[str] = ()
    metrics_key: str | None = None
    """The key that reads the counters, and nothing else."""
    cors_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    """Names in `Host` that are taken besides this machine's; with any, no others are."""
    open_to_network: bool = False
    """Whether requests may come by any name where there is no key."""
    limits: Limits = field(default_factory=Limits)
    ui: bool = True
    """Whether there is a page at `/`."""
    policy: str = ""
    """The engine's length policy, to be shown; empty where nothing is drafted."""


class Service:
    """The engine, its tokens, its chat template, and the books about requests."""

    def __init__(
        self,
        engine: AsyncEngine,
        options: ServerOptions,
        template: ChatTemplate,
    ) -> None:
        self.engine = engine
        self.options = options
        self.limits = options.limits
        self.backend = engine.backend
        self.tokenizer = self.backend.tokenizer
        # Read once, and here: the backend's own cache is filled by the engine's thread.
        self.pieces = [self.tokenizer.token_bytes(t) for t in range(self.tokenizer.vocab_size)]
        self.text_limit = TextLimit.of(self.tokenizer, self.pieces, self.capabilities.context_size)
        self.queue = Queue(self.capabilities.num_slots, options.limits)
        self.metrics = Metrics(
            options.model_name,
            self.queue,
            self.backend.exactness,
            lambda: engine.cells_in_use,
            lambda: engine.held,
        )
        self.books = TenantBooks()
        self.recorder: Recorder | None = None
        self._num_unrecorded = 0
        """Answers that the trace lacks since it could last be written."""
        self.template = template
        self.work = Work()

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do."""
        return self.backend.capabilities

    @property
    def max_body_bytes(self) -> int:
        """Of the largest body that is read."""
        given = self.limits.max_body_bytes
        return self.text_limit.max_body_bytes if given is None else given

    async def chat_prompt(self, read: Callable[[], Mapping[str, Any]]) -> ChatPrompt:
        """A conversation rendered and tokenised, in a thread. `read`, called there: the arguments
        of `chat.prompt.chat_prompt`."""

        def make() -> ChatPrompt:
            return chat_prompt(self.template, self.tokenizer, check=check_wanted, **read())

        return await self.work.run(make)

    async def encode_part(self, text: str) -> list[Token]:
        """Token ids of a text that is no prompt: no leading token, no control tokens."""
        return await self.work.run(self.tokenizer.encode, text, special=False)

    def check_length(self, num_tokens: int, param: str) -> None:
        """Raise ApiError for a prompt that is longer than this server takes."""
        limit = self.limits.max_prompt_tokens
        if limit is not None and limit < num_tokens < self.capabilities.context_size:
            raise ApiError(
                f"the prompt has {num_tokens} tokens, and this server takes {limit}: shorten it, "
                "or start the server with a larger --max-prompt-tokens",
                code="context_length_exceeded",
                param=param,
                extra={"n_prompt_tokens": num_tokens, "n_ctx": limit + 1},
            )

    def start(self, requests: Sequence[Request], *, answer_id: str, route: str) -> Generation:
        """Run `requests` as one generation; whoever starts it must close it."""
        generation = Generation(
            self.engine,
            requests,
            answer_id=answer_id,
            route=route,
            queue=self.queue,
            limits=self.limits,
            done=self._done,
            keep_tokens=self.recorder is not None,
        )
        self.books.begin(generation)
        return generation

    def text(self, tokens: Sequence[Token], param: str = "tokens") -> str:
        """The text of token ids; ApiError for an id that there is not."""
        wrong = next((token for token in tokens if not 0 <= token < len(self.pieces)), None)
        if wrong is not None:
            raise ApiError(
                f"{param} holds id {wrong}, and the model has ids 0 to {len(self.pieces) - 1}",
                param=param,
                code="invalid_value",
            )
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")

    def report(self, error: BaseException, fault: ApiError) -> None:
        """Count and log a request that ended with an error object."""
        self.metrics.refuse(fault.code or "other")
        logger.info("refused status=%d code=%s param=%s", fault.status, fault.code, fault.param)
        cause = error.__cause__ if isinstance(error, ApiError) else error
        if fault.status == 500 and cause is not None:
            logger.error("a request failed", exc_info=cause)

    def close(self) -> None:
        """End what runs and free the model. Idempotent."""
        self.work.close()
        self.engine.close()
        self.template.close()

    def describe(self) -> dict[str, Any]:
        """The model as `GET /v1/models` lists it, without its time."""
        exactness = self.backend.exactness
        return {
            "id": self.options.model_name,
            "object": "model",
            "owned_by": "copyahead",
            "max_model_len": self.capabilities.context_size,
            "copyahead": {
                "slots": self.capabilities.num_slots,
                "policy": self.options.policy or None,
                "max_draft_tokens": self.engine.max_draft_tokens,
                "exactness": str(exactness) if exactness is not None else None,
                "note": self.capabilities.note,
            },
        }

    def status(self, tenant: str) -> dict[str, Any]:
        """What `GET /copyahead/status` says to `tenant`."""
        return {
            "model": self.options.model_name,
            "slots": self.capabilities.num_slots,
            "max_draft_tokens": self.engine.max_draft_tokens,
            "policy": self.options.policy or None,
            "policies": list(POLICIES),
            **self.books.status(tenant),
        }

    def properties(self) -> dict[str, Any]:
        """What llama.cpp's clients ask of `GET /props`; of the model's path only the name."""
        return {
            "default_generation_settings": {"n_ctx": self.capabilities.context_size},
            "total_slots": self.capabilities.num_slots,
            "model_path": self.options.model_name,
            "chat_template": self.template.source,
        }

    def _done(self, generation: Generation, outcome: Outcome) -> None:
        self.metrics.record(outcome)
        self.books.end(generation, outcome.stats)
        _log(outcome, generation.requests, self.options.policy)
        if self.recorder is not None:
            # In a thread: a long prompt takes a while to compare with those before it.
            arguments = generation.requests, outcome
            asyncio.get_running_loop().run_in_executor(None, self._record, *arguments)

    def _record(self, requests: Sequence[Request], outcome: Outcome) -> None:
        """Append every answer to the trace. A file that cannot be written fails no request."""
        answers = zip(outcome.written, outcome.reasons, strict=True)
        for request in requests:
            options = _recorded_options(request)
            for written, reason in itertools.islice(answers, request.n):
                try:
                    self._record_one(request, written, options, reason, outcome.total_seconds)
                except OSError as error:
                    if not self._num_unrecorded:
                        logger.error(
                            "the trace cannot be written, and requests are missing from it until "
                            "it can: %s",
                            error,
                        )
                    self._num_unrecorded += 1

    def _record_one(
        self,
        request: Request,
        written: Written,
        options: Mapping[str, Any],
        reason: str,
        seconds: float,
    ) -> None:
        if self.recorder is None:
            return
        self.recorder.write(
            request.prompt,
            written.tokens,
            rounds=written.rounds,
            options=options,
            finish_reason=reason,
            seconds=seconds,
        )
        if self._num_unrecorded:
            logger.warning("the trace is written again, without %d answers", self._num_unrecorded)
            self._num_unrecorded = 0


def _recorded_options(request: Request) -> dict[str, Any]:
    """What a trace says of how an answer was asked for."""
    options = {
        **{name: value for name, value in asdict(request.sampling).items() if value},
        "lookup": request.lookup,
        "policy": request.policy,
    }
    # JSON knows no numbers as keys.
    options["logit_bias"] = {str(t): b for t, b in request.sampling.logit_bias.items()}
    return options


def _log(outcome: Outcome, requests: Sequence[Request], policy: str) -> None:
    """One line a request; never any of its text. `copyahead logs` reads it back
    (`traces/logs/own.py`)."""
    stats, first = outcome.stats, outcome.first_token_seconds
    logger.info(
        "request id=%s route=%s tenant=%s finish=%s read=%d cached=%d written=%d queue_ms=%.1f "
        "first_token_ms=%s total_ms=%.1f tok_s=%.1f rounds=%d drafted=%d accepted=%d prompts=%d "
        "policy=%s",
        outcome.id,
        outcome.route,
        outcome.tenant or "-",
        ",".join(outcome.reasons),
        stats.num_prompt_tokens,
        stats.num_cached_tokens,
        stats.num_output_tokens,
        1000 * outcome.queue_seconds,
        "-" if first is None else f"{1000 * first:.1f}",
        1000 * outcome.total_seconds,
        stats.tokens_per_second,
        stats.rounds,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        len(requests),
        _policy(requests, policy),
    )


def _policy(requests: Sequence[Request], policy: str) -> str:
    """What drafted; `-` where nothing did. `policy`: that of requests which name none."""
    names = (each.policy or policy if each.lookup else "" for each in requests)
    return "+".join(sorted(set(filter(None, names)))) or "-"
