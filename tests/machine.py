"""What tests may use of the machine."""

from __future__ import annotations

import os

THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""For a real model. The threads of a pass wait for each other by spinning, so that two of them in
each of two test processes on two CPUs take several times as long as one."""
