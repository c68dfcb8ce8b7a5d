"""`copyahead.generate` beside plain `generate` and transformers' own prompt lookup.

`python benchmarks/bench_transformers.py` prints a card, and one JSON document as its last line. The
bundled model runs in bfloat16, greedily. Contestants take turns within one run, so that what the
machine does beside it meets all of them; a number is the median of `--repeats` turns.

Seconds are of a whole call. Reading the prompt is part of it and the same for all: `writing` is the
speed-up of what comes after the first token.

A text can differ from the plain one where two tokens are nearly tied: in bfloat16 a pass over
several rows rounds otherwise. `same` is how much of it is the same before that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import copyahead
from copyahead.backends.llama_cpp.gguf import bundled_model
from copyahead.evaluate.workloads import WORKLOADS, workload

BATCH = ("copy", "json", "prose", "rename")
"""The prompts of the batch: three that copy, one that does not."""
LOOKUPS = (3, 10, 20)


def loaded(dtype: torch.dtype) -> tuple[Any, Any]:
    """The bundled model and its tokenizer, padding on the left."""
    path = bundled_model()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    return model.eval(), tokenizer


def contestants(model: Any, *, batch: bool) -> dict[str, Callable[..., Any]]:
    """Each by its name; transformers' own prompt lookup takes one row only."""
    made: dict[str, Callable[..., Any]] = {
        "plain": model.generate,
        "copyahead": lambda **options: model.generate(
            custom_generate=copyahead.generate, **options
        ),
    }
    for count in () if batch else LOOKUPS:
        made[f"lookup {count}"] = lambda count=count, **options: model.generate(
            prompt_lookup_num_tokens=count, **options
        )
    return made


def same_part(text: Any, plain: Any) -> float:
    """How much of `plain`, whole rows of it, `text` begins with."""
    length = min(text.shape[1], plain.shape[1])
    differ = (text[:, :length] != plain[:, :length]).any(0).nonzero()
    return float((int(differ[0]) if len(differ) else length) / plain.shape[1])


def measured(model: Any, options: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Median seconds of each contestant, its ratios to plain, and how much of its text is plain."""
    runners = contestants(model, batch=options["input_ids"].shape[0] > 1)
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    firsts: list[float] = []
    texts: dict[str, Any] = {}
    for _ in range(repeats):
        began = time.perf_counter()
        model.generate(**options | {"max_new_tokens": 1})
        firsts.append(time.perf_counter() - began)
        for name, run in runners.items():
            began = time.perf_counter()
            texts[name] = run(**options)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    first = statistics.median(firsts)
    return {
        name: {
            "seconds": medians[name],
            "speedup": medians["plain"] / medians[name],
            "writing": (medians["plain"] - first) / (medians[name] - first),
            "same": same_part(texts[name], texts["plain"]),
        }
        for name in runners
    }


def row(name: str, results: dict[str, Any]) -> str:
    """A line of the card."""
    cells = [f"{results['plain']['seconds']:8.2f} s"]
    others = [results[who] for who in results if who != "plain"]
    cells += [f"{each['speedup']:7.2f}" for each in others]
    same, writing = f"   same {results['copyahead']['same']:.2f}", "   writing"
    return f"{name:10}{' '.join(cells)}{same}{writing}" + "".join(
        f"{each['writing']:7.2f}" for each in others
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=240)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    model, tokenizer = loaded(getattr(torch, arguments.dtype))
    common = {"do_sample": False, "max_new_tokens": arguments.max_tokens}
    common |= {"pad_token_id": tokenizer.pad_token_id}
    model.generate(
        **tokenizer("a b c a b c a b", return_tensors="pt"), custom_generate=copyahead.generate,
        **common | {"max_new_tokens": 8},
    )  # fmt: skip
    document: dict[str, Any] = {}
    heads = ["copyahead", *(f"look {count}" for count in LOOKUPS)]
    print(f"{'':10}{'plain':>10} " + " ".join(f"{head:>7.7}" for head in heads))
    for name in arguments.workloads:
        inputs = tokenizer(workload(name).prompt, return_tensors="pt")
        document[name] = measured(model, {**inputs, **common}, arguments.repeats)
        print(row(name, document[name]), flush=True)
    inputs = tokenizer([workload(n).prompt for n in BATCH], return_tensors="pt", padding=True)
    document["batch of 4"] = measured(model, {**inputs, **common}, arguments.repeats)
    print(row("batch of 4", document["batch of 4"]))
    print(json.dumps({"transformers": document}))


if __name__ == "__main__":
    main()
