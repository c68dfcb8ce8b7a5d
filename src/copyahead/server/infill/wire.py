"""What plugins of editors send to `POST /infill`, as llama.cpp's server takes it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from copyahead.sampling import SamplingOptions
from copyahead.server.errors import ApiError
from copyahead.server.wire import CommonFields, Wire, budget, not_supported

MAX_EXTRA = 256
"""Texts beside the file. Plugins send 16 to 64."""
MAX_FIELDS = 64
"""Fields that a reply may be cut to."""

_SAMPLERS = {
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "typ_p": ("typical_p",),
    "typical_p": ("typical_p",),
    "temperature": ("temperature",),
    "penalties": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "dry": ("dry_multiplier",),
    "infill": (),
    "xtc": (),
    "top_n_sigma": (),
}
"""llama.cpp's names of samplers, and the options that each of them applies; for `infill` see
`_LIKELY`. The last two are known, and off unless options are given that are not known here."""
_LIKELY = 0.5
"""The least `min_p` with the sampler `infill`. What llama.cpp's leaves in the end is what has more
than the (n + 1)th part of the probability of n tokens: of two, half of the better one's."""
_USUAL: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What llama.cpp's server takes where a request says nothing."""
_OFF: dict[str, Any] = {
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "temperature": 1.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}  # fmt: skip
"""What each option is where its sampler is not named."""


class ExtraText(Wire):
    """A text beside the file: a piece of another one, or of this one further away."""

    text: str
    filename: str | None = Field(None, description="`tmp` when not given.")


class InfillRequest(CommonFields):
    """Body of `POST /infill`."""

    input_prefix: str = Field(description="The file before the line of the cursor, or up to it.")
    input_suffix: str = Field(description="The file from the cursor on.")
    prompt: str | None = Field(None, description="What of its line stands before the cursor.")
    input_extra: list[ExtraText] | None = Field(
        None, description=f"The most useful last; at most {MAX_EXTRA}."
    )
    n_predict: int | None = Field(
        None,
        description="Most tokens to write: -1 or null for no limit; 0 only reads the prompt, so "
        "that the next request finds it read. Wins over max_tokens.",
    )
    n_indent: int | None = Field(
        None, description="End before a line that is indented by fewer characters."
    )
    t_max_predict_ms: int | None = Field(
        None, description="After so long, end at the next chunk once a line has ended."
    )
    t_max_prompt_ms: int | None = Field(None, description="Ignored: a prompt is read whole.")
    samplers: list[str] | None = Field(
        None, description="The options that apply, as llama.cpp names them; their order is ours."
    )
    repeat_penalty: float | None = Field(None, description="Another name of repetition_penalty.")
    response_fields: list[str] | None = Field(
        None, description="The reply holds only these; `timings/prompt_n` is a field in a field."
    )
    cache_prompt: bool | None = Field(None, description="Ignored: prompts are always kept.")
    n_probs: int | None = Field(None, description="Refused above 0.")

    def check(self) -> None:
        """Raise ApiError for what this route cannot do."""
        for name, limit in (("input_extra", MAX_EXTRA), ("response_fields", MAX_FIELDS)):
            count = len(getattr(self, name) or ())
            if count > limit:
                raise ApiError(
                    f"{name} holds {count} entries, and at most {limit} are allowed: send fewer",
                    param=name,
                    code="invalid_value",
                )
        if self.n not in (None, 1):
            raise not_supported("n", "a completion has one answer, so leave it out")
        if self.n_probs:
            raise not_supported("n_probs", "ask /v1/completions for logprobs")
        unknown = next((name for name in self.samplers or () if name not in _SAMPLERS), None)
        if unknown is not None:
            raise ApiError(
                f"samplers holds {unknown[:40]!r}, and known are {', '.join(_SAMPLERS)}",
                param="samplers",
                code="invalid_value",
            )

    @property
    def max_answer(self) -> int | None:
        """Most tokens to write; None for no limit. ApiError for a number below -1."""
        if self.n_predict is not None:
            return budget("n_predict", self.n_predict)
        return budget("max_tokens", self.max_tokens)

    def chosen(self) -> SamplingOptions:
        """How tokens are chosen, as llama.cpp's server would. RequestError for a value out of
        range."""
        changes = {name: value for name, value in _USUAL.items() if getattr(self, name) is None}
        if self.repetition_penalty is None and self.repeat_penalty is not None:
            changes["repetition_penalty"] = self.repeat_penalty
        if self.top_k is not None and self.top_k < 0:
            changes["top_k"] = 0
        if self.seed == -1:
            changes["seed"] = None
        if self.samplers is not None:
            applied = {name for sampler in self.samplers for name in _SAMPLERS[sampler]}
            off = {name: value for name, value in _OFF.items() if name not in applied}
            if self.temperature == 0:
                # Whoever asks for the likeliest token by its other name gets it.
                del off["temperature"]
            changes |= off
            if "infill" in self.samplers:
                changes["min_p"] = max(_LIKELY, changes.get("min_p", self.min_p) or 0.0)
        return self.model_copy(update=changes).sampling(default_temperature=0.8)
