"""Children end with their parent, whatever ends that, and whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from copyahead.children.process import ChildProcess

PARENT = """
import sys, threading, time
from copyahead.children.process import ChildProcess

def start():
    global child
    child = ChildProcess([sys.argv[1]])
    child.ask(b"", 60)
    print(child.pid, flush=True)

# A thread of a pool may end long before the child does.
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(60)
"""
BUSY = {
    "asleep": "import time; print(flush=True); time.sleep(60)",
    "computing": "print(flush=True); 7 ** (9 ** 9)",
    "reading": "import sys; print(flush=True); sys.stdin.read()",
    "deaf": "import signal, time; print(flush=True)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
}


def ended(pid: int) -> bool:
    """Whether a process that is nobody's to wait for has ended, within half a minute."""
    for _ in range(3000):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("work", BUSY)
def test_a_child_ends_with_its_parent(number: signal.Signals, work: str, tmp_path: Path) -> None:
    program = tmp_path / "busy.py"
    program.write_text(BUSY[work])
    command = [sys.executable, "-c", PARENT, str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not ended_now(pid)
        parent.send_signal(number)
        try:
            assert ended(pid)
        finally:
            if not ended_now(pid):
                os.kill(pid, signal.SIGKILL)


def ended_now(pid: int) -> bool:
    """Whether the process has ended already."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "echo.py"
    program.write_text("import sys\nfor line in sys.stdin: print(line, end='', flush=True)")
    started: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: started.append(ChildProcess([str(program)])))
    thread.start()
    thread.join()
    (child,) = started
    try:
        assert child.ask(b"a\n", 30) == b"a\n"
        assert child.ask(b"b\n", 30) == b"b\n"
    finally:
        child.end()
        child.end()
    assert child.status == -signal.SIGKILL


def test_no_answer_in_time_and_an_early_end_are_told_apart(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(TimeoutError):
        ChildProcess([str(program)]).ask(b"", 0.1)
    program.write_text("")
    with pytest.raises(ChildProcessError):
        ChildProcess([str(program)]).ask(b"", 30)


@pytest.mark.skipif(os.name != "posix", reason="it sends a signal")
def test_ctrl_c_in_a_terminal_is_for_the_parent_alone(tmp_path: Path) -> None:
    program = tmp_path / "echo.py"
    program.write_text("import sys\nfor line in sys.stdin: print(line, end='', flush=True)")
    child = ChildProcess([str(program)])
    try:
        assert child.ask(b"a\n", 30) == b"a\n"
        os.kill(child.pid, signal.SIGINT)
        assert child.ask(b"b\n", 30) == b"b\n"
    finally:
        child.end()


def test_memory_has_a_limit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "try: print(len(bytes(400_000_000)), flush=True)\n"
        "except MemoryError: print('no memory', flush=True)"
    )
    for max_bytes, said in ((0, b"400000000\n"), (300_000_000, b"no memory\n")):
        child = ChildProcess([str(program)], max_bytes=max_bytes)
        try:
            assert child.ask(b"", 30) == said
        finally:
            child.end()
