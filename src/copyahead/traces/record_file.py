"""The file that a trace is appended to: whole lines, for its owner's eyes only."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from copyahead.errors import ConfigError

_PRIVATE = stat.S_IRUSR | stat.S_IWUSR


class RecordFile:
    """Appends lines. Several processes may append to the same file; one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be opened for appending, is no regular file, or
        where it, or a link that the path ends in, is another user's."""
        self._path = path
        self._is_torn = False
        """Whether the file may end within a line."""
        try:
            self._fd = _open(path)
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from None
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def append(self, line: bytes) -> None:
        """Write a line, with its break at the end, whole or not at all. Raises OSError."""
        with _locked(self._fd):
            size = os.fstat(self._fd).st_size
            data = b"\n" + line if self._is_torn else line
            try:
                written = os.write(self._fd, data)
                if written < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException:
                self._take_back(size)
                raise
            self._is_torn = False

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _take_back(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError:
            self._is_torn = True

    def _check(self) -> None:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise self._refusal("it is no regular file")
        if hasattr(os, "geteuid"):
            if found.st_uid != os.geteuid():
                raise self._refusal("it is another user's")
            if stat.S_IMODE(found.st_mode) & ~_PRIVATE:
                os.fchmod(self._fd, stat.S_IMODE(found.st_mode) & _PRIVATE)
        if found.st_size:
            # What a process that was killed in the middle of a line has left.
            os.lseek(self._fd, -1, os.SEEK_END)
            self._is_torn = os.read(self._fd, 1) != b"\n"

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"record file {self._path} cannot be written ({reason}): name another")


def _open(path: Path) -> int:
    """The file, made where there is none. A link counts only where it is this user's own: in a
    folder that others may write to, theirs leads wherever they like."""
    if path.is_symlink():
        if hasattr(os, "geteuid") and path.lstat().st_uid != os.geteuid():
            raise OSError(errno.EACCES, "it is a link of another user")
        path = path.resolve()
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    # The last is for a pipe that nobody reads, which is refused and not waited for.
    for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY", "O_NONBLOCK"):
        flags |= getattr(os, name, 0)
    return os.open(path, flags, _PRIVATE)


@contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Hold the file against other processes that append to it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        # Not every file system has locks.
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
