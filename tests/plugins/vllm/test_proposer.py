"""Drafts for a host that moves its rows and names no request."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from copyahead.plugins.vllm.proposer import Drafting, Host, Proposer
from copyahead.plugins.vllm.settings import Settings, read_settings
from tests.plugins.vllm.runner import Runner, Running, a_request

VOCAB = 5000
LENGTH = 400


def vllm_config(max_requests: int = 8, num_speculative_tokens: int = 16, ranks: int = 1) -> Any:
    """As much of a `VllmConfig` as a proposer reads."""
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=LENGTH, get_vocab_size=lambda: VOCAB),
        scheduler_config=SimpleNamespace(max_num_seqs=max_requests, max_num_batched_tokens=2048),
        speculative_config=SimpleNamespace(num_speculative_tokens=num_speculative_tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        device_config=SimpleNamespace(device_type="cpu"),
    )


def proposer(**environment: str) -> Proposer:
    """A proposer with the settings of `environment`, at a cost of 0.05 a row unless it says one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ({"COSTS": "0.05"} | environment).items():
            patch.setenv(f"COPYAHEAD_{name}", value)
        return Proposer(vllm_config())


def the_drafting(made: Proposer) -> Drafting:
    assert made.drafting is not None
    return made.drafting


def test_a_copy_is_drafted_and_what_is_kept_is_counted() -> None:
    made, runner = proposer(), Runner(8, LENGTH)
    prompt = list(range(100, 160))
    runner.add(Running("a", list(prompt), [*prompt, *prompt], len(prompt)))
    while runner.batch[0].script:
        runner.step(made.propose)
    assert runner.rounds < 40  # 120 tokens.
    drafting = the_drafting(made)
    drafted, accepted = drafting.rounds.counters.sum(axis=0).tolist()
    assert 120 - runner.rounds == accepted <= drafted
    assert drafting.counters.faults == 0


def test_nothing_sampled_means_nothing_drafted_and_the_prompt_is_indexed_meanwhile() -> None:
    made, runner = proposer(), Runner(8, LENGTH, chunk=20)
    prompt = list(range(100, 150)) * 2
    runner.add(Running("a", list(prompt), [100, 101, 102, 103], len(prompt)))
    assert [runner.step(made.propose) for _ in range(2)] == [[[]], [[]]]
    assert the_drafting(made).steps.drafter is not None
    (seat,) = the_drafting(made).book.seats.values()
    assert the_drafting(made).book._pool.length(seat.row) == len(prompt)


def test_rows_that_are_swapped_are_found_again() -> None:
    made, runner = proposer(), Runner(8, LENGTH)
    for name, first in (("a", 100), ("b", 1000)):
        prompt = list(range(first, first + 50))
        runner.add(Running(name, list(prompt), prompt * 3, len(prompt)))
    for number in range(12):
        if number % 2:
            runner.swap(0, 1)
        for request, draft in zip(runner.batch, runner.step(made.propose), strict=True):
            low, high = (100, 150) if request.name == "a" else (1000, 1050)
            assert all(low <= token < high for token in draft)
            assert draft or number == 0 or not request.script
    assert len(the_drafting(made).book.seats) == 2


def test_a_request_that_comes_back_goes_on_where_it_was() -> None:
    made, runner = proposer(), Runner(8, LENGTH)
    for name, first in (("a", 100), ("b", 1000)):
        prompt = list(range(first, first + 50))
        runner.add(Running(name, list(prompt), prompt * 3, len(prompt)))
    for _ in range(3):
        runner.step(made.propose)
    before = {seat.row for seat in the_drafting(made).book.seats.values()}
    away = runner.remove(0)
    for _ in range(5):
        runner.step(made.propose)
    runner.add(away)
    assert runner.step(made.propose)[1] != []
    assert {seat.row for seat in the_drafting(made).book.seats.values()} == before


def churn(
    made: Proposer,
    seed: int,
    steps: int,
    *,
    alike: bool,
    check: Any,
    after: Any = lambda runner: None,
) -> Runner:
    """Requests that start, finish, are preempted and swap rows at random."""
    random, runner = Random(seed), Runner(8, LENGTH, chunk=60)
    away: list[Running] = []
    number = 0
    common = [random.randrange(100) for _ in range(60)]
    for _ in range(steps):
        for place in reversed(range(len(runner.batch))):
            request = runner.batch[place]
            if request.done or len(request.text) > LENGTH - 70:
                runner.remove(place)
            elif random.random() < 0.05:
                away.append(runner.remove(place))
                away[-1].read = 0
                away[-1].prompt = len(away[-1].text)
        if len(runner.batch) > 1 and random.random() < 0.3:
            runner.swap(*random.sample(range(len(runner.batch)), 2))
        while len(runner.batch) < 8 and random.random() < 0.5:
            if away and random.random() < 0.5:
                runner.add(away.pop(0))
                continue
            number += 1
            # Tokens that no other request has.
            own = [200 + (number % 400) * 10 + k for k in range(10)]
            prompt = None
            if alike:
                prompt = [*common, own[0], *common, own[1]]
            runner.add(a_request(random, str(number), [*range(100), *own], prompt))
        if runner.batch:
            for request, draft in zip(runner.batch, runner.step(made.propose), strict=True):
                check(request, draft)
            after(runner)
    return runner


def explained(request: Running, draft: list[int]) -> None:
    """Every drafted token stands in the request's own text."""
    assert set(draft) <= set(request.text), request.name


@pytest.mark.parametrize("policy", ["priced", "fixed:num_draft_tokens=12", "window"])
@pytest.mark.parametrize("alike", [False, True])
def test_no_draft_is_of_another_requests_text(policy: str, alike: bool) -> None:
    made = proposer(POLICY=policy)
    drafting = the_drafting(made)
    total = 0

    def check(request: Running, draft: list[int]) -> None:
        nonlocal total
        explained(request, draft)
        total += len(draft)

    def after(runner: Runner) -> None:
        if runner.rounds % 25 == 0:
            drafting.book.check(
                drafting._view([[]] * len(runner.batch), runner.lengths, runner.tokens)
            )

    churn(made, 1, 500, alike=alike, check=check, after=after)
    assert drafting.counters.faults == 0
    assert total > 500


def test_the_drafts_of_two_ranks_are_the_same() -> None:
    one, other = [], []
    churn(proposer(), 5, 300, alike=True, check=lambda _, draft: one.append(draft))
    churn(proposer(), 5, 300, alike=True, check=lambda _, draft: other.append(draft))
    assert one == other
    assert any(one)


def test_what_fingerprints_let_through_is_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts of one length with the same end, which differ where nobody looks."""
    made, runner = proposer(), Runner(2, LENGTH)
    base = [*range(100, 200), *range(300, 340)]
    texts = {
        name: [*base[:50], private, *base[51:]] for name, private in (("a", 4001), ("b", 4002))
    }
    script = [*base[40:50], 0, *base[40:50]]
    for name, text in texts.items():
        runner.add(Running(name, list(text), list(script), len(text)))
    drafting = the_drafting(made)
    for _ in range(8):
        drafting.rounds.marks[:] = -1  # As if there were too many others to mark.
        for request, draft in zip(runner.batch, runner.step(made.propose), strict=True):
            explained(request, draft)
        runner.swap(0, 1)


def test_uniform_drafts_are_all_of_one_length_or_none() -> None:
    made, lengths = proposer(VLLM_UNIFORM="1"), set()

    runner = Runner(8, LENGTH)
    for first in (100, 1000, 2000):
        prompt = list(range(first, first + 50))
        runner.add(Running(str(first), list(prompt), prompt * 3, len(prompt)))
    for _ in range(8):
        drafts = runner.step(made.propose)
        assert len({len(draft) for draft in drafts}) == 1
        lengths.add(len(drafts[0]))
    assert lengths == {0, 16}


def test_a_fault_is_a_plain_step_and_the_next_one_drafts_again() -> None:
    made, runner = proposer(), Runner(2, LENGTH)
    prompt = list(range(100, 160))
    runner.add(Running("a", list(prompt), prompt * 3, len(prompt)))
    runner.step(made.propose)
    steps = the_drafting(made).steps
    whole, steps.step = steps.step, None  # type: ignore[method-assign, assignment]
    assert runner.step(made.propose) == [[]]
    steps.step = whole  # type: ignore[method-assign]
    assert the_drafting(made).counters.faults == 1
    assert runner.step(made.propose)[0] != []


def test_no_draft_goes_past_the_longest_request() -> None:
    made, runner = proposer(), Runner(2, LENGTH)
    prompt = [7] * (LENGTH - 20)
    runner.add(Running("a", list(prompt), [7] * 19, len(prompt)))
    for _ in range(19):
        if runner.batch[0].script:
            (draft,) = runner.step(made.propose)
            assert len(runner.batch[0].text) + len(draft) < LENGTH


def test_named_requests_feed_the_store_when_they_end() -> None:
    made, runner = proposer(SHARED="1"), Runner(4, LENGTH)
    text = list(range(100, 160))
    runner.add(Running("a", list(text), text[:20], len(text)))

    def named(*arguments: Any) -> list[list[int]]:
        names = [request.name for request in runner.batch]
        made.name_requests(names, [""] * len(names), dict.fromkeys(names, 16))
        return made.propose(*arguments)

    while runner.batch[0].script:
        runner.step(named)
    runner.remove(0)
    made.finish(["a"])
    runner.add(Running("b", [1, 2, 3, *text[:8]], text[8:40], 11))
    runner.step(named)
    (draft,) = runner.step(named)
    assert draft[:4] == text[len(runner.batch[0].text) - 3 :][:4]


def test_lookup_off_drafts_nothing() -> None:
    made, runner = proposer(LOOKUP="0"), Runner(2, LENGTH)
    runner.add(Running("a", [1, 2] * 20, [1, 2, 1, 2], 40))
    assert runner.step(made.propose) == [[]]
    made.load_model("anything")


def test_importing_the_name_imports_no_vllm() -> None:
    import copyahead.plugins.vllm as package

    assert package.Proposer is Proposer
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        package.Other  # noqa: B018


def test_settings_are_those_of_the_host() -> None:
    drafting = Drafting(
        Host(max_requests=2, max_length=64, vocab_size=50, max_draft_tokens=4), Settings()
    )
    tokens = np.zeros((2, 64), dtype=np.int32)
    tokens[0, :8] = [1, 2, 3, 4, 1, 2, 3, 4]
    host = drafting.step([[4]], np.array([8, 0], dtype=np.int32), tokens)
    assert drafting.drafts(host) == [drafting.drafts(host)[0]]
    assert read_settings({}) == Settings()
