"""Shared makings of engine tests: plain runs, ways to draft, and a checked way to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from copyahead.engine import Choice, Completion, Engine, Request
from copyahead.engine.handle import Handle, collector
from copyahead.engine.scheduler import EngineOptions
from copyahead.testing import FakeBackend, ForcedDrafter, Plan, ToyLM

MakeBackend = Callable[[], FakeBackend]


def scripted(*script: int, num_prompt_tokens: int = 1, **options: object) -> FakeBackend:
    """A backend whose model writes exactly `script` after a prompt."""
    model = ToyLM(script=script, num_prompt_tokens=num_prompt_tokens)
    return FakeBackend(model, **options)  # type: ignore[arg-type]


def plain(backend: FakeBackend, request: Request) -> Completion:
    """The request alone, one token a pass: what every other run must equal."""
    with Engine(backend) as engine:
        return engine.complete(request)


def oracle(prompt: Sequence[int], answer: Sequence[int], length: int) -> Plan:
    """Drafts that are right as far as `answer` goes."""
    whole = [*prompt, *answer]
    return lambda history: whole[len(history) : len(history) + length]


def run(
    backend: FakeBackend,
    requests: Sequence[Request],
    plan: Plan | dict[int, Sequence[int]],
    *,
    arrivals: Sequence[int] | None = None,
    options: EngineOptions | None = None,
) -> list[Completion]:
    """All requests in one engine with forced drafts, the books checked after every step.

    `arrivals[i]`: the step before which request i is submitted.
    """
    engine = Engine(backend, make_drafter=ForcedDrafter(plan), policy="forced", options=options)
    when = list(arrivals) if arrivals is not None else [0] * len(requests)
    answers = [[Choice(index=i) for i in range(request.n)] for request in requests]
    handles: dict[int, Handle] = {}
    step = 0
    while len(handles) < len(requests) or not all(h.done for h in handles.values()):
        for place, request in enumerate(requests):
            if place not in handles and when[place] <= step:
                handles[place] = engine.submit(request, collector(answers[place]))
        engine.step()
        check(engine, backend)
        step += 1
        assert step < 20_000, "the engine does not come to an end"
    check(engine, backend)
    assert engine.num_active == 0
    assert backend.num_samplers == 0, "a sampler was not given back"
    return [
        Completion(choices=choices, stats=handles[place].stats)
        for place, choices in enumerate(answers)
    ]


def check(engine: Engine, backend: FakeBackend) -> None:
    """The engine's books against what the backend really holds."""
    engine.check()
    for slot in engine._slots._slots:
        held = backend.held[slot.index]
        assert len(held) == slot.length
        assert held == slot.tokens().tolist()
    for answer in engine._scheduler.running:
        stats = answer.stats
        assert stats.num_accepted_tokens <= stats.num_draft_tokens
        assert stats.num_output_tokens == answer.num_output_tokens
        session = answer.session
        if session is not None:
            assert session.history == answer.tokens  # type: ignore[attr-defined]


def same(left: Completion, right: Completion) -> bool:
    """Whether two runs gave the same answers, in every respect that a client sees."""
    return len(left.choices) == len(right.choices) and all(
        (a.tokens, a.text, a.finish_reason, a.logprobs, a.error)
        == (b.tokens, b.text, b.finish_reason, b.logprobs, b.error)
        for a, b in zip(left.choices, right.choices, strict=True)
    )
