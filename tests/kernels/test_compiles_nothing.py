"""Nothing is compiled in a request, and importing the package loads no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = """
import numba.core.event as event
from copyahead import kernels
kernels.warm_up()
with event.install_recorder("numba:compile") as seen:
    import numpy as np
    from copyahead.contracts import Load
    from copyahead.drafters.factory import make_drafter
    from copyahead.history.pool import HistoryPool
    from copyahead.step_cost import StepCost
    {body}
    if seen.buffer:
        raise SystemExit(f"compiled in a request: {{seen.buffer}}")
print("ok")
"""

PRESET = """
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


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "policy", ["priced", "hysteresis", "window", "single", "adaptive_k", "fixed"]
)
def test_the_first_round_compiles_nothing(policy: str) -> None:
    done = run(ROUNDS.format(body=PRESET.format(policy=policy).strip()))
    assert (done.stdout.strip(), done.returncode) == ("ok", 0), done.stderr


def test_the_recorder_would_see_a_compilation() -> None:
    compile_one = "import numba; numba.njit(lambda x: x + 1)(1)"
    done = run(ROUNDS.format(body=compile_one))
    assert "compiled in a request" in done.stderr


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
