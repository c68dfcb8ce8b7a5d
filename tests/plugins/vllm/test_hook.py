"""The hook, over a runner that has the functions of vLLM's that it stands around."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from copyahead.kernels import hosted
from copyahead.plugins.vllm import hook
from copyahead.plugins.vllm.beside import Acceptance, Times, obstacle
from copyahead.plugins.vllm.proposer import LAST, Proposer
from tests.plugins.vllm.runner import Runner, Running
from tests.plugins.vllm.test_proposer import LENGTH, VOCAB, vllm_config


class RejectionSampler:
    def forward(self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        raise NotImplementedError


def rejection_sample(
    draft_token_ids: Any,
    num_draft_tokens: Any,
    max_spec_len: Any,
    cu_num_draft_tokens: Any,
    draft_probs: Any,
    target_logits: Any,
    bonus_token_ids: Any,
    sampling_metadata: Any,
) -> Any:
    raise NotImplementedError


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    raise NotImplementedError


class FakeRunner:
    """As much of vLLM's runner as the hook touches, around the toy of the other tests."""

    def __init__(self, method: str = "custom_class", chain: int = 4) -> None:
        self.toy = Runner(8, LENGTH)
        self.vllm_config = vllm_config()
        self.speculative_config = SimpleNamespace(
            method=method, num_speculative_tokens=16, parallel_drafting=False
        )
        self.parallel_config = SimpleNamespace(world_size=1)
        self.use_async_scheduling = False
        self.drafter: Any = Proposer(self.vllm_config) if method == "custom_class" else object()
        self.requests: dict[str, Any] = {}
        self._draft_probs = None
        self.input_batch: Any = None
        self.asked: list[int] = []
        self.drafts: Any = None

    def _update_states(self, scheduler_output: Any) -> None:
        """Nothing more."""

    def propose_draft_token_ids(self, scheduler_output: Any, sampled_token_ids: Any) -> Any:
        chain = scheduler_output.num_spec_tokens_to_schedule
        self.asked.append(chain)
        if isinstance(self.drafter, Proposer):
            return self.drafter.propose(
                sampled_token_ids, self.toy.lengths, self.toy.tokens, slot_mappings=None
            )
        # It knows prose, and nothing else.
        drafts = [
            (request.script if request.name != "copy" else [3] * chain)[:chain]
            for request in self.toy.batch
        ]
        longest = max(map(len, drafts))
        padded = [[*draft, *[0] * (longest - len(draft))] for draft in drafts]
        return np.array(padded, dtype=np.int64)

    def step(self, finished: set[str] | None = None) -> list[list[int]]:
        toy = self.toy
        names = [request.name for request in toy.batch]
        for name in names:
            self.requests.setdefault(name, SimpleNamespace(lora_request=None))
        self.input_batch = SimpleNamespace(
            req_ids=names,
            num_reqs=len(names),
            vocab_size=VOCAB,
            num_tokens_no_spec=toy.lengths,
            token_ids_cpu=toy.tokens,
        )
        output = SimpleNamespace(
            finished_req_ids=finished or set(),
            scheduled_spec_decode_tokens={r.name: r.draft for r in toy.batch if r.draft},
            num_spec_tokens_to_schedule=16,
        )
        self._update_states(output)
        return toy.step(lambda sampled, *_: self.propose_draft_token_ids(output, sampled))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[FakeRunner]:
    """Modules under vLLM's names, and the hook on."""
    monkeypatch.setenv("COPYAHEAD_VLLM_HOOK", "1")
    monkeypatch.setenv("COPYAHEAD_COSTS", "0.05")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")

    class Fresh(FakeRunner):
        propose_draft_token_ids = FakeRunner.propose_draft_token_ids
        _update_states = FakeRunner._update_states

    sampler: Any = ModuleType("vllm.v1.sample.rejection_sampler")
    sampler.rejection_sample = rejection_sample
    sampler.expand_batch_to_tokens = expand_batch_to_tokens
    sampler.RejectionSampler = type(
        "RejectionSampler", (RejectionSampler,), {"forward": RejectionSampler.forward}
    )
    worker: Any = ModuleType("vllm.v1.worker.gpu_model_runner")
    worker.GPUModelRunner = Fresh
    sample: Any = ModuleType("vllm.v1.sample")
    sample.rejection_sampler = sampler
    above = map(ModuleType, ("vllm", "vllm.v1", "vllm.v1.worker"))
    for module in (sample, sampler, worker, *above):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Fresh


def copies(first: int, name: str) -> Running:
    prompt = list(range(first, first + 50))
    return Running(name, list(prompt), prompt * 2, len(prompt))


def prose(first: int, name: str) -> Running:
    """Nothing in it occurs twice."""
    return Running(name, list(range(first, first + 10)), list(range(first + 10, first + 60)), 10)


def test_off_it_touches_nothing(vllm: type[FakeRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYAHEAD_VLLM_HOOK", "0")
    before = vllm.propose_draft_token_ids
    hook.register()
    assert vllm.propose_draft_token_ids is before


def test_requests_have_names_and_leave_when_they_end(vllm: type[FakeRunner]) -> None:
    hook.register()
    hook.register()  # As vLLM does.
    runner = vllm()
    runner.toy.add(copies(100, "a"))
    runner.toy.add(copies(1000, "b"))
    runner.step()
    book = runner.drafter.drafting.book
    assert {seat.name for seat in book.seats.values()} == {"a", "b"}
    runner.toy.swap(0, 1)
    assert all(runner.step())
    runner.toy.remove(0)
    runner.step({"b"})
    assert {seat.name for seat in book.seats.values()} == {"a"}
    book.finish(["never heard of"])


def test_a_name_may_be_used_again_at_once(vllm: type[FakeRunner]) -> None:
    """Aborted, and sent again with the same id: it is another request, in the same row."""
    hook.register()
    runner = vllm()
    runner.toy.add(copies(100, "a"))
    runner.step()
    runner.step()
    runner.toy.remove(0)
    runner.toy.add(copies(1000, "a"))
    runner.step({"a"})
    drafting = runner.drafter.drafting
    (seat,) = drafting.book.seats.values()
    assert drafting.rounds.prompts[seat.row] == 50
    assert all(token >= 1000 for token in runner.step()[0])
    drafting.book.check(drafting._view([[]], runner.toy.lengths, runner.toy.tokens))


def test_what_a_grammar_cut_from_a_draft_was_not_verified(vllm: type[FakeRunner]) -> None:
    hook.register()
    runner = vllm()
    runner.toy.add(copies(100, "a"))
    while not runner.step()[0]:
        pass
    runner.toy.batch[0].draft = runner.toy.batch[0].draft[:2]
    before = runner.drafter.drafting.rounds.counters[:, hosted.ACCEPTED].sum()
    runner.step()
    assert runner.drafter.drafting.rounds.counters[:, hosted.ACCEPTED].sum() - before == 2


def test_a_copy_goes_before_the_drafter_where_it_brings_more(vllm: type[FakeRunner]) -> None:
    hook.register()
    runner = vllm("draft_model")
    runner.toy.add(copies(100, "copy"))
    while runner.toy.batch[0].script:
        runner.step()
    rounds = LAST[0].rounds
    assert rounds.counters[hosted.PROMPT, hosted.ACCEPTED] > 40
    assert 0 in runner.asked  # It only read.


def test_where_nothing_is_to_be_copied_the_drafter_drafts(vllm: type[FakeRunner]) -> None:
    hook.register()
    runner = vllm("draft_model")
    runner.toy.add(prose(100, "prose"))
    runner.toy.add(prose(1000, "more"))
    for _ in range(4):
        assert all(runner.step()) or not all(request.script for request in runner.toy.batch)
    rounds = LAST[0].rounds
    assert rounds.counters[hosted.FROM_MODEL, hosted.ACCEPTED] > 20
    assert rounds.counters[: hosted.FROM_MODEL, hosted.DRAFTED].sum() == 0


def test_a_version_that_is_not_known_runs_without_it(
    vllm: type[FakeRunner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def propose_draft_token_ids(self: Any, something_else: Any) -> None:
        """Of another version."""

    monkeypatch.setattr(vllm, "propose_draft_token_ids", propose_draft_token_ids)
    with caplog.at_level(logging.ERROR):
        hook.register()
    current: Any = vllm.propose_draft_token_ids
    assert current is propose_draft_token_ids
    (record,) = caplog.records
    said = record.getMessage()
    assert "does not know this version of vLLM (propose_draft_token_ids takes self" in said


def test_a_wrong_setting_is_said_and_vllm_runs_on(
    vllm: type[FakeRunner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COPYAHEAD_MAX_DRAFT_TOKENS", "0")
    hook.register()
    assert "copyahead's hook is off: max_draft_tokens must be from 1 to 64" in caplog.text


def test_what_stands_in_the_way_is_named() -> None:
    runner = FakeRunner("draft_model")
    assert obstacle(runner) is None
    runner.use_async_scheduling = True
    assert "--no-async-scheduling" in (obstacle(runner) or "")
    assert "medusa is not one of" in (obstacle(FakeRunner("medusa")) or "")


def test_what_a_drafter_brings_is_counted_place_by_place() -> None:
    always, never = Acceptance(4), Acceptance(4)
    for _ in range(200):
        always.settle(4, 4)
        never.settle(4, 0)
    assert always.expected(4) > 3.8
    assert never.expected(4) < 0.1


def test_a_drafter_pays_where_its_passes_are_cheaper_than_what_they_bring() -> None:
    times = Times()
    assert times.pays(4, 0.1)  # Nothing is known yet.
    times.observe(4, drafting=0.010, rest=0.010)
    assert times.pays(4, 3.0)
    assert not times.pays(4, 0.5)
    times.observe(0, drafting=0.0005, rest=0.010)
    assert times.is_cheap(0)
