"""From a body and the tokens of its prompt to the engine's request, for every route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from copyahead.engine.request import MAX_CHOICES, Request
from copyahead.errors import ConfigError
from copyahead.server.errors import ApiError
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES, CommonFields, joined
from copyahead.types import Token


async def make_request(
    service: Service,
    body: CommonFields,
    prompt: Sequence[Token],
    tenant: str,
    *,
    prompt_field: str,
    **more: Any,
) -> Request:
    """The engine's request for what all routes share; `more` for the rest. ApiError for a prompt
    that is too long, by the name of its field."""
    service.check_length(len(prompt), prompt_field)
    speculative = body.speculative
    lookup = speculative is None or speculative.enabled is not False
    if speculative is not None and speculative.policy is not None:
        check_policy(speculative.policy)
    prediction: Sequence[Token] = ()
    if body.prediction is not None:
        text = joined(body.prediction.content, "prediction") or ""
        prediction = await service.encode_part(text)
    return Request(
        prompt=prompt,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        n=num_choices(body.n),
        lookup=lookup,
        policy=speculative.policy if speculative is not None else None,
        max_draft_tokens=speculative.max_draft_tokens if speculative is not None else None,
        tenant=tenant,
        prediction=tuple(prediction),
        **more,
    )


def num_choices(n: int | None) -> int:
    """How many answers are asked for; ApiError for too many or too few."""
    if n is None:
        return 1
    if not 1 <= n <= MAX_CHOICES:
        message = f"n must be from 1 to {MAX_CHOICES}, not {n}"
        raise ApiError(message, param="n", code="invalid_value")
    return n


def check_policy(text: str) -> None:
    """Raise ApiError where a request's length policy is not one.

    Whether there is a draft model, for a policy that speaks of one, is the engine's to say.
    """
    from copyahead.drafters.factory import parse_mode

    try:
        parse_mode(text, "first")
    except ConfigError as error:
        param = RENAMES["policy"]
        raise ApiError(str(error), param=param, code="invalid_value") from None
