"""What a policy is worth on recorded text: drafts against what was really written.

    python benchmarks/bench_policy.py TRACES [--policy NAME ...] [--cost 0.03 ...] [--category NAME]

No model is run: what the trace holds is taken for the model's answer, each request drafts
against it, and every round costs T(1 + drafted) with T(n) = 1 + cost * (n - 1). Reads
`agent-dev.jsonl.gz` (its second half; `agent-train` is the first) and `chat-history.md.gz`
(after token 200,000), tokenised with the demo model's vocabulary, and makes `random`. Prints a
card, and one JSON document as its last line.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.contracts import Drafter
from copyahead.drafters import LookupDrafter
from copyahead.history import HistoryPool
from copyahead.kernels import warm_up
from copyahead.policies import parse_policy
from copyahead.policies.priced import PricedDrafter
from copyahead.step_cost import StepCost

Text = npt.NDArray[np.int32]
CHAT_FROM = 200_000
STAIR = {1: 1, 2: 1.44, 3: 2.0, 4: 2.07, 5: 2.65, 8: 3.75, 16: 6.6, 24: 10.2, 32: 12.3}


@dataclass(frozen=True)
class Turn:
    """One request: it has read `stream[:start]` and writes `stream[start:end]`."""

    stream: Text
    start: int
    end: int


class Vocabulary:
    """The demo model's tokenizer, without the model."""

    def __init__(self) -> None:
        import llama_cpp

        from copyahead.models import bundled_model

        self._model = llama_cpp.Llama(str(bundled_model()), vocab_only=True, verbose=False)
        self.size = self._model.n_vocab()

    def encode(self, text: str) -> Text:
        """Token ids of `text`."""
        data = text.encode("utf-8")
        parts = [data[at : at + 20_000] for at in range(0, len(data), 20_000)]
        tokens = [t for part in parts for t in self._model.tokenize(part, False, True)]
        return np.array(tokens, dtype=np.int32)


def agent_turns(path: Path, vocabulary: Vocabulary, first_half: bool) -> list[Turn]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        runs = [json.loads(line)["messages"] for line in lines]
    half = len(runs) // 2 + 1
    turns = []
    for messages in runs[:half] if first_half else runs[half:]:
        parts = [encode_message(message, vocabulary) for message in messages]
        stream = np.concatenate([part for pair in parts for part in pair])
        at = 0
        for message, (head, body) in zip(messages, parts, strict=True):
            start = at + len(head)
            at = start + len(body)
            if message["role"] == "assistant":
                turns.append(Turn(stream, start, at))
    return turns


def encode_message(message: dict[str, Any], vocabulary: Vocabulary) -> tuple[Text, Text]:
    body = message.get("content") or ""
    if not isinstance(body, str):
        body = json.dumps(body)
    for call in message.get("tool_calls") or []:
        name, arguments = json.dumps(call["name"]), call["arguments"]
        body += f'\n<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
    head = vocabulary.encode(f"<|im_start|>{message['role']}\n")
    return head, vocabulary.encode(body + "<|im_end|>\n")


def chat_turns(path: Path, vocabulary: Vocabulary) -> list[Turn]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        stream = vocabulary.encode(file.read())
    return [Turn(stream, CHAT_FROM, len(stream))]


def random_turns(size: int) -> list[Turn]:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, wide, 20_000).astype(np.int32) for wide in (2, 50, size)]
    return [Turn(text, 1000, len(text)) for text in texts]


def make_drafter(policy: str, pool: HistoryPool, cost: StepCost) -> Drafter:
    if policy == "priced":
        return PricedDrafter(pool, cost)
    return LookupDrafter(pool, parse_policy(policy))


@dataclass
class Score:
    """Sums over one replay."""

    emitted: int = 0
    rounds: int = 0
    drafted: int = 0
    silent: int = 0
    cost: float = 0.0
    propose_ns: int = 0

    def row(self) -> dict[str, float]:
        """What is printed."""
        return {
            "speedup": round(self.emitted / self.cost, 4),
            "tokens_per_round": round(self.emitted / self.rounds, 3),
            "drafted_per_round": round(self.drafted / self.rounds, 2),
            "silent_share": round(self.silent / self.rounds, 3),
            "draft_us": round(self.propose_ns / self.rounds / 1e3, 2),
        }


def replay(turns: list[Turn], policy: str, cost: StepCost, size: int) -> Score:
    longest = max(turn.end for turn in turns)
    return replay_with(make_drafter(policy, HistoryPool(1, longest, size), cost), turns, cost)


def replay_with(drafter: Drafter, turns: list[Turn], cost: StepCost) -> Score:
    """Let `drafter` draft against every turn, one after another."""
    price = cost.curve(65).tolist()
    score = Score()
    for turn in turns:
        session = drafter.open(turn.stream[: turn.start], slot=0)  # type: ignore[arg-type]
        answer = turn.stream[turn.start : turn.end].tolist()
        at, end = 0, len(answer)
        while at < end:
            begun = perf_counter_ns()
            draft = session.propose(min(64, end - at - 1))
            score.propose_ns += perf_counter_ns() - begun
            tokens = draft.tokens
            kept = 0
            while kept < len(tokens) and tokens[kept] == answer[at + kept]:
                kept += 1
            session.settle(draft, answer[at : at + kept + 1])
            at += kept + 1
            score.rounds += 1
            score.drafted += len(tokens)
            score.silent += not tokens
            score.cost += price[1 + len(tokens)]
        score.emitted += end
        session.close()
    return score


def categories(folder: Path, wanted: list[str], cache: Path | None) -> Iterator[tuple[str, Any]]:
    vocabulary = Vocabulary()
    for name in wanted:
        kept = cache / f"{name}.npz" if cache else None
        if kept and kept.exists():
            data = np.load(kept)
            streams = np.split(data["tokens"], data["cuts"])
            yield name, ([Turn(streams[s], a, b) for s, a, b in data["turns"]], vocabulary.size)
            continue
        if name == "chat-history":
            turns = chat_turns(folder / "chat-history.md.gz", vocabulary)
        elif name == "random":
            turns = random_turns(vocabulary.size)
        else:
            path = folder / "agent-dev.jsonl.gz"
            turns = agent_turns(path, vocabulary, first_half=name == "agent-train")
        if kept:
            save(kept, turns)
        yield name, (turns, vocabulary.size)


def save(path: Path, turns: list[Turn]) -> None:
    streams = list({id(turn.stream): turn.stream for turn in turns}.values())
    place = {id(stream): s for s, stream in enumerate(streams)}
    np.savez(
        path,
        tokens=np.concatenate(streams),
        cuts=np.cumsum([len(stream) for stream in streams])[:-1],
        turns=[(place[id(turn.stream)], turn.start, turn.end) for turn in turns],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--policy", nargs="+", default=["priced"])
    parser.add_argument("--cost", nargs="+", default=["0.01", "0.03", "0.1", "0.3", "stair"])
    parser.add_argument("--category", nargs="+", default=["agent", "chat-history", "random"])
    parser.add_argument("--cache", type=Path, help="folder that keeps the tokenised traces")
    options = parser.parse_args()
    warm_up()
    results = []
    for name, (turns, size) in categories(options.traces, options.category, options.cache):
        total = sum(turn.end - turn.start for turn in turns)
        print(f"{name}: {len(turns)} requests, {total} tokens written")
        for policy in options.policy:
            for cost in options.cost:
                curve = StepCost(STAIR) if cost == "stair" else StepCost.linear(float(cost))
                row = replay(turns, policy, curve, size).row()
                results.append({"category": name, "policy": policy, "cost": cost} | row)
                shown = "  ".join(f"{key} {value}" for key, value in row.items())
                print(f"  {policy:16} {cost:6} {shown}", flush=True)
    print(json.dumps({"traces": options.traces.name, "results": results}))


if __name__ == "__main__":
    main()
