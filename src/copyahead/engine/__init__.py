"""The decode loop: many requests over one backend, a block of tokens a round."""

from copyahead.engine.engine import Engine
from copyahead.engine.request import Choice, Chunk, Completion, Request, TokenLogprob

__all__ = ["Choice", "Chunk", "Completion", "Engine", "Request", "TokenLogprob"]
