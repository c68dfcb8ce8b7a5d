"""A step of 80 rows inside vLLM: this project's proposer, vLLM's n-gram, arctic's suffix trees.

    python benchmarks/in_vllm/bench_propose.py [--rows 80] [--steps 60] [--longest 200000]

Run by a Python that has vLLM; a peer that is not installed is named and left out. All get the
arrays of one runner: rows of 8,000 to `--longest` tokens that copy from themselves, teacher-forced,
so that every proposer sees the same rounds whatever it drafts. Timed is the whole call that vLLM
makes each step: for this project recognising rows, settling and drafting. Prints a card, and JSON
as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Propose = Callable[[list[list[int]], Ints, Ints, list[str]], list[list[int]]]

VOCAB = 50_000
DRAFT = 16
SHORTEST = 8_000


def copied_text(length: int, seed: int) -> Ints:
    """Skewed random tokens with passages copied from earlier on, and errors in them."""
    rng = np.random.default_rng(seed)
    text = (rng.zipf(1.3, length) % VOCAB).astype(np.int32)
    for start in range(1000, length - 500, 500):
        if rng.random() < 0.5:
            origin = int(rng.integers(0, start - 500))
            text[start : start + 500] = text[origin : origin + 500]
            text[start + rng.integers(0, 500, 8)] = rng.integers(0, VOCAB, 8)
    return text


def config(rows: int, longest: int) -> Any:
    """As much of a `VllmConfig` as proposers read."""
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=longest, get_vocab_size=lambda: VOCAB),
        scheduler_config=SimpleNamespace(max_num_seqs=rows, max_num_batched_tokens=8192),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=DRAFT,
            prompt_lookup_min=3,
            prompt_lookup_max=5,
            suffix_decoding_max_tree_depth=24,
            suffix_decoding_max_cached_requests=0,
            suffix_decoding_max_spec_factor=1.0,
            suffix_decoding_min_token_prob=0.1,
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        device_config=SimpleNamespace(device_type="cuda"),
    )


def copyahead_hooked(settings: Any) -> Propose:
    """With the hook: rows have names."""
    from copyahead.plugins.vllm import Proposer

    proposer = Proposer(settings)
    tenants = [""] * settings.scheduler_config.max_num_seqs

    def propose(sampled: Any, lengths: Any, tokens: Any, names: Any) -> Any:
        proposer.name_requests(names, tenants, dict.fromkeys(names, DRAFT))
        return proposer.propose(sampled, lengths, tokens)

    return propose


def copyahead(settings: Any) -> Propose:
    """As a `custom_class`: rows are found by content."""
    from copyahead.plugins.vllm import Proposer

    proposer = Proposer(settings)
    return lambda sampled, lengths, tokens, _: proposer.propose(sampled, lengths, tokens)


def ngram(settings: Any) -> Propose:
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    proposer = NgramProposer(settings)
    return lambda sampled, lengths, tokens, _: proposer.propose(DRAFT, sampled, lengths, tokens)


def suffix(settings: Any) -> Propose:
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    proposer = SuffixDecodingProposer(settings)

    def propose(sampled: Any, lengths: Any, tokens: Any, names: Any) -> Any:
        counts = [len(new) for new in sampled]
        batch = SimpleNamespace(
            req_ids=names,
            num_tokens_no_spec=lengths,
            req_id_to_index={name: place for place, name in enumerate(names)},
            num_prompt_tokens=[lengths[place] - counts[place] for place in range(len(names))],
            token_ids_cpu=tokens,
        )
        return proposer.propose(DRAFT, batch, sampled)

    return propose


PROPOSERS: dict[str, Callable[[Any], Propose]] = {
    "copyahead": copyahead,
    "copyahead, hook": copyahead_hooked,
    "vllm n-gram 3 to 5": ngram,
    "arctic suffix": suffix,
}


def drive(propose: Propose, texts: list[Ints], prompts: list[int], steps: int) -> dict[str, Any]:
    """Steps over all rows, teacher-forced."""
    rows, longest = len(texts), max(map(len, texts))
    tokens = np.zeros((rows, longest), dtype=np.int32)
    lengths = np.zeros(rows, dtype=np.int32)
    names = [str(row) for row in range(rows)]
    drafts: list[list[int]] = [[] for _ in range(rows)]
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        tokens[row, :prompt] = text[:prompt]
        lengths[row] = prompt
    times, emitted, drafted = [], 0, 0
    for step in range(steps + 1):
        sampled = []
        for row, text in enumerate(texts):
            at, kept = int(lengths[row]), 0
            while kept < len(drafts[row]) and drafts[row][kept] == text[at + kept]:
                kept += 1
            new = text[at : at + kept + 1].tolist()
            tokens[row, at : at + len(new)] = new
            lengths[row] += len(new)
            sampled.append(new)
        began = perf_counter_ns()
        drafts = [list(draft) for draft in propose(sampled, lengths, tokens, names)]
        took = (perf_counter_ns() - began) / 1e6
        if step == 0:
            first = took
            continue
        times.append(took)
        emitted += sum(map(len, sampled))
        drafted += sum(map(len, drafts))
    return {
        "first_ms": round(first, 3),
        "p50_ms": round(float(np.percentile(times, 50)), 3),
        "p90_ms": round(float(np.percentile(times, 90)), 3),
        "least_ms": round(min(times), 3),
        "tokens_a_round": round(emitted / (steps * rows), 3),
        "drafted_a_round": round(drafted / (steps * rows), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="a step of many rows inside vLLM")
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--longest", type=int, default=200_000)
    parser.add_argument("--proposer", nargs="+", default=list(PROPOSERS))
    options = parser.parse_args()
    os.environ.setdefault("COPYAHEAD_COSTS", "0.01")
    rng = np.random.default_rng(0)
    prompts = np.linspace(SHORTEST, options.longest, options.rows).astype(int).tolist()
    rng.shuffle(prompts)
    room = (DRAFT + 1) * (options.steps + 2)
    texts = [copied_text(prompt + room, row) for row, prompt in enumerate(prompts)]
    settings = config(options.rows, options.longest + room + DRAFT)
    results = {}
    print(f"{options.rows} rows of {SHORTEST} to {options.longest} tokens, ms a step")
    print(f"  {'':20} {'p50':>9} {'p90':>9} {'least':>9} {'first':>9}  tok/round  drafted/round")
    for name in options.proposer:
        try:
            propose = PROPOSERS[name](settings)
        except ImportError as error:
            print(f"  {name}: left out ({error})")
            continue
        results[name] = row = drive(propose, texts, prompts, options.steps)
        shown = " ".join(f"{row[key]:9.3f}" for key in ("p50_ms", "p90_ms", "least_ms", "first_ms"))
        tail = f"{row['tokens_a_round']:9.2f} {row['drafted_a_round']:14.2f}"
        print(f"  {name:20} {shown}  {tail}", flush=True)
    print(json.dumps({"rows": options.rows, "longest": options.longest, "results": results}))


if __name__ == "__main__":
    main()
