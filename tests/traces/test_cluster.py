"""A replay on Ray: the table of a replay without it, and what happens when workers die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyahead.errors import MissingExtraError
from copyahead.traces.cluster import Part, replay_on_ray, share_of, work
from copyahead.traces.corpus import Corpus
from copyahead.traces.runs import LIMIT, Run, do_run
from tests.traces.test_replay import corpus_of

ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")


def made_corpus(num_sessions: int = 7) -> Corpus:
    """Sessions that repeat themselves, in two categories."""
    random = np.random.default_rng(5)
    sessions = []
    for _ in range(num_sessions):
        phrase = random.integers(0, 50, 40).tolist()
        stream = [*phrase, *random.integers(0, 50, 20).tolist(), *phrase, *phrase]
        sessions.append((stream, [(60, 90), (100, 140)]))
    return corpus_of(*sessions, categories=2)


@pytest.mark.parametrize("policy", ["hysteresis", "priced", LIMIT])
def test_a_share_of_the_corpus_gives_what_the_whole_gives(policy: str) -> None:
    corpus, run = made_corpus(), Run(policy)
    for category in (0, 1):
        spans = tuple(corpus.sessions(category))
        for some in (spans, spans[1:], spans[1:3]):
            share = share_of(corpus, some)
            assert len(share.corpus.tokens) <= len(corpus.tokens)
            found, wanted = work(Part(run, some), share, None), do_run(corpus, None, run, some)
            for one, other in ((found.cold, wanted.cold), (found.warm, wanted.warm)):
                assert one.drafted.tolist() == other.drafted.tolist()
                assert one.accepted.tolist() == other.accepted.tolist()
                assert (one.requests, one.emitted) == (other.requests, other.emitted)


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'copyahead\[ray\]'"):
        replay_on_ray("local", made_corpus(), None, [])


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a cluster leaves threads behind."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    # Ray's sockets lie in this folder, and the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        variables = {**os.environ, "PYTHONPATH": path, "RAY_TMPDIR": folder}
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True, text=True, timeout=300, env=variables, check=False,
        )  # fmt: skip


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {name: value for name, value in row.items() if name not in ("draft_us", "settle_us")}
        for row in document["results"]
    ]
    return {**document, "results": rows}


@needs_ray
@pytest.mark.slow
def test_the_table_is_that_of_a_replay_without_ray(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for name in ("a", "b"):
        lines = []
        for _ in range(12):
            phrase = random.integers(0, 300, 150).tolist()
            answer = [*phrase[20:120], *random.integers(0, 300, 40).tolist(), *phrase[:60]]
            lines.append(json.dumps({"prompt_ids": phrase, "output_ids": answer}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    command = [
        "-m", "copyahead", "replay", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"),
        "--policy", "priced", "hysteresis", "--lengths", "--cost", "0.03,0.3", "--json", "--quiet",
    ]  # fmt: skip
    alone = run_python(*command, "--jobs", "1")
    assert alone.returncode == 0, alone.stderr
    found = run_python(*command, "--ray", "local", "--jobs", "2")
    assert found.returncode == 0, found.stderr
    assert without_times(json.loads(found.stdout)) == without_times(json.loads(alone.stdout))


_DIES = """
import os, sys
from pathlib import Path
from copyahead.errors import ClusterError
from copyahead.traces.cluster import Part, replay_on_ray
from tests.traces.test_cluster import made_corpus

class Dies:
    beside = None

    def __init__(self, folder, times):
        self.folder, self.times = folder, times

    @property
    def policy(self):
        count = len(list(self.folder.iterdir()))
        if count < self.times:
            (self.folder / str(count)).touch()
            os._exit(1)
        return "limit"

corpus = made_corpus()
folder = Path(sys.argv[1])
spans = tuple(corpus.sessions(0))
try:
    parts = [Part(Dies(folder, int(sys.argv[2])), spans)]
    found = replay_on_ray("local", corpus, None, parts, jobs=1)
    print("requests", found[0].both().requests)
except ClusterError as error:
    print("refused:", error)
"""


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "said"),
    [(1, "requests 8"), (99, "refused: a worker of the Ray cluster died 2 times over")],
)
def test_a_worker_that_dies_is_replaced_once(tmp_path: Path, times: int, said: str) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    found = run_python("-c", _DIES, str(deaths), str(times))
    assert said in found.stdout, found.stderr
    assert len(list(deaths.iterdir())) == min(times, 2)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "127.0.0.1:99999", "nowhere"])
def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path, address: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt_ids": [1, 2], "output_ids": [1]}))
    command = ["-m", "copyahead", "replay", str(tmp_path / "a.jsonl"), "--ray", address]
    found = run_python(*command)
    assert found.returncode == 2
    (sentence,) = found.stderr.splitlines()
    assert sentence.startswith(f"copyahead: the Ray cluster at {address} cannot be reached (")
    assert "Traceback" not in found.stderr
