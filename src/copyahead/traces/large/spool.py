"""What is too much to hold in memory: pieces of data, put away and read again.

A trace may be larger than memory, and a replay goes over it session by session. So what has been
read of it waits here: in memory while it is little, then in a file without a name, which ends with
the process.
"""

from __future__ import annotations

import tempfile
import weakref
from array import array
from typing import IO

import numpy as np
import numpy.typing as npt

IN_MEMORY = 64_000_000
"""Bytes of each spool that stay in memory."""

Tokens = npt.NDArray[np.int32]


def in_memory_bytes(given: int | None = None) -> int:
    """`given`, or `IN_MEMORY` as it is now."""
    return IN_MEMORY if given is None else given


class Spool:
    """Pieces of bytes by number. One thread at a time."""

    def __init__(self, in_memory: int | None = None) -> None:
        """`in_memory`: bytes before a file is begun; `IN_MEMORY` when not given."""
        # It lives as long as this object, which a `with` could not span.
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            max_size=in_memory_bytes(in_memory)
        )
        weakref.finalize(self, self._file.close)
        self._starts, self._ends = array("q"), array("q")
        self._size = 0

    def __len__(self) -> int:
        return len(self._starts)

    def put(self, data: bytes) -> int:
        """Put `data` away; its number."""
        self._file.seek(self._size)
        self._file.write(data)
        self._starts.append(self._size)
        self._size += len(data)
        self._ends.append(self._size)
        return len(self._starts) - 1

    def get(self, number: int) -> bytes:
        """The piece of that number."""
        start, end = self._starts[number], self._ends[number]
        self._file.seek(start)
        return self._file.read(end - start)


class TokenStore:
    """Token ids in a row: written once from the start to the end, then read anywhere."""

    def __init__(self, in_memory: int | None = None) -> None:
        """`in_memory`: bytes before a file is begun; `IN_MEMORY` when not given."""
        self._limit = in_memory_bytes(in_memory)
        self._parts: list[Tokens] = []
        self._file: IO[bytes] | None = None
        self._num_bytes = 0
        self.largest = -1
        """The largest id so far."""

    def __len__(self) -> int:
        return self._num_bytes // 4

    def add(self, tokens: Tokens) -> None:
        """Append `tokens`."""
        self.largest = max(self.largest, int(tokens.max(initial=-1)))
        self._num_bytes += tokens.nbytes
        if self._file is not None:
            self._file.write(tokens.tobytes())
            return
        self._parts.append(tokens)
        if self._num_bytes > self._limit:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            # What is mapped of it stays.
            weakref.finalize(self, self._file.close)
            for part in self._parts:
                self._file.write(part.tobytes())
            self._parts = []

    def tokens(self) -> Tokens:
        """All of them, int32. Those in a file are mapped: the system reads what is looked at, and
        takes the memory back when it needs it. What is written to them stays in this process."""
        if self._file is None:
            return np.concatenate([np.zeros(0, np.int32), *self._parts])
        self._file.flush()
        return np.asarray(np.memmap(self._file, dtype=np.int32, mode="c"))
