"""Nothing is compiled in a request, and importing the package loads no compiler."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "copyahead" / "kernels"
POLICIES = ("priced", "hysteresis", "window", "single", "adaptive_k", "fixed")

AFTER_WARM_UP = """
import numba.core.event as event
from copyahead.kernels import compiled, warm_up
warm_up()
ready = list(compiled.READY)
with event.install_recorder("numba:compile") as seen:
    {body}
    late = [str(what) for what in seen.buffer] + compiled.READY[len(ready):]
    if late:
        raise SystemExit(f"compiled or loaded after the warm-up: {{late}}")
print("ok")
"""

ROUND = """
    import numpy as np
    from copyahead.contracts import Load
    from copyahead.drafters.factory import make_drafter
    from copyahead.history.pool import HistoryPool
    from copyahead.step_cost import StepCost
    load = Load(step_cost=StepCost.linear(0.03))
    drafter = make_drafter({policy!r}, HistoryPool(2, 300, 50), load)
    text = list(range(20)) * 3
    first = drafter.open(text, slot=0)
    second = drafter.open(np.array(text, dtype=np.int64), slot=1)
    drafts = [first.propose(8), *drafter.propose_batch([first, second], [8, 8])]
    assert all(draft.tokens for draft in drafts), drafts
    first.settle(drafts[0], [drafts[0].tokens[0], 7])
    first.truncate(10)
    second.close()
"""

SERVE = """
    import httpx
    from copyahead.config import LookupOptions, SharedOptions
    from copyahead.engine.async_engine import AsyncEngine
    from copyahead.loading import make_engine
    from copyahead.server.service import ServerOptions, Service
    from tests.server.toys import serving, toy_backend, toy_template
    store = SharedOptions(shared={shared})
    engine = make_engine(toy_backend(), lookup=LookupOptions(), shared=store)
    with serving(Service(AsyncEngine(engine), ServerOptions(), toy_template())) as (url, _):
        for policy in {policies}:
            content = "say:" + "one and two and three. " * 12
            body = dict(
                messages=[dict(role="user", content=content)],
                speculative=dict(policy=policy),
                max_tokens=200,
            )
            answer = httpx.post(f"{{url}}/v1/chat/completions", json=body).json()
            assert answer["timings"]["draft_n_accepted"] > 0, (policy, answer)
"""

REPLAY = """
    import contextlib, io, json
    from copyahead.cli import run
    from copyahead.traces.record import TraceWriter
    text = list(range(20)) * 3
    with TraceWriter({path!r}, vocab_size=50) as writer:
        for turn in range(3):
            writer.write(text * (turn + 1), text)
    words = ["replay", {path!r}, "--json", "--lengths", "--cost", "0.03", "--jobs", "1"]
    words += [word for policy in {policies} for word in ("--policy", policy)]
    for store in ([], ["--shared"]):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert run([*words, *store]) == 0
        rows = json.loads(out.getvalue())["results"]
        assert {{row["policy"] for row in rows}} >= set({policies})
        assert all(row["drafted_per_round"] > 0 for row in rows), rows
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def compiles_nothing(body: str) -> None:
    done = run(AFTER_WARM_UP.format(body=body.strip()))
    assert (done.stdout.strip(), done.returncode) == ("ok", 0), done.stderr


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_round_compiles_nothing(policy: str) -> None:
    compiles_nothing(ROUND.format(policy=policy))


@pytest.mark.parametrize("shared", [False, True])
def test_serving_compiles_nothing(shared: bool) -> None:
    compiles_nothing(SERVE.format(shared=shared, policies=POLICIES))


def test_replaying_compiles_nothing(tmp_path: Path) -> None:
    compiles_nothing(REPLAY.format(path=str(tmp_path / "trace.jsonl"), policies=POLICIES))


def test_the_recorder_would_see_a_compilation() -> None:
    compile_one = "import numba; numba.njit(lambda x: x + 1)(1)"
    done = run(AFTER_WARM_UP.format(body=compile_one))
    assert "after the warm-up" in done.stderr


def test_the_warm_up_covers_every_kernel() -> None:
    written = {
        f"copyahead.kernels.{path.stem}.{function.name}"
        for path in KERNELS.glob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "compiled"
    }
    code = (
        "from copyahead.kernels import warm_up\n"
        "count = warm_up()\n"
        "from copyahead.kernels.compiled import READY\n"
        "print(count, *READY)"
    )
    count, *ready = run(code).stdout.split()
    assert written
    assert set(ready) == written
    assert int(count) == len(ready) == len(written)


def test_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the cache directory should be")
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from copyahead.kernels import index\n"
        "print(index.hash_pair(1, 2) >= 0)"
    )
    done = run(code, NUMBA_CACHE_DIR=str(blocked / "below"))
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


def test_importing_the_package_loads_no_compiler() -> None:
    code = (
        "import sys, copyahead, copyahead.drafters, copyahead.policies, copyahead.contracts\n"
        "print(sorted({'numba', 'llama_cpp', 'torch'} & set(sys.modules)))"
    )
    assert run(code).stdout.strip() == "[]"
