"""The soak of benchmarks/, as a module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def soak_server() -> Any:
    # As for a program, its own folder is where it finds its other files.
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("soak_server")
    finally:
        sys.path.remove(str(BENCHMARKS))
