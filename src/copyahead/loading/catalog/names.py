"""From what somebody typed to a model that is on this machine."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from copyahead.errors import ModelError
from copyahead.loading.catalog import folders
from copyahead.loading.catalog.entry import Entry
from copyahead.loading.catalog.ollama import ollama

_SOURCES = (
    folders.bundled,
    folders.named_by_user,
    folders.lm_studio,
    ollama,
    folders.hugging_face,
    folders.llama_cpp,
)
_SHOWN = 6
"""Models that a sentence lists at most."""
_NEAREST = 3
_ALIKE = 0.6
_SEPARATORS = re.compile(r"[\s:/\\_.@-]+")


def scan() -> list[Entry]:
    """Every model in the folders where people keep them, each with a name of its own.

    Only names and sizes are looked at. A file that several folders link to is listed once.
    """
    entries: dict[str, Entry] = {}
    for source in _SOURCES:
        for entry in source():
            known = entries.setdefault(os.path.realpath(entry.path), entry)
            if known is not entry:
                known.names = tuple(dict.fromkeys((*known.names, *entry.names)))
    found = list(entries.values())
    _name_apart(found)
    return found


def find_named(word: str) -> Entry | None:
    """The model that `word` names, or a part of whose name it is; None where there is none.

    Raises ModelError where several are meant equally, and where the one that is meant is broken.
    """
    matches = matching(word, scan())
    whole = [entry for entry in matches if not entry.problem]
    if len(whole) > 1:
        raise ModelError(f"model {word!r} may be {_listed(whole)}: give a longer name")
    if not whole and matches:
        entry = matches[0]
        raise ModelError(f"model {word!r} is {entry.path}, which is broken: {entry.problem}")
    return whole[0] if whole else None


def unknown(word: str, command: str = "") -> str:
    """What to say of a name that no model has: those that are nearest to it. `command`: where it
    was given."""
    entries = [entry for entry in scan() if not entry.problem]
    near = closest(word, entries)
    if near:
        return f"did you mean {_listed(near)}?"
    example = f", as in copyahead {command} ./{word}.gguf" if command else ""
    known = "that copyahead models lists" if entries else "of a model in COPYAHEAD_MODELS"
    return f"give the path of a GGUF file{example}, or a name {known}"


def matching(word: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that `word` may mean: those of exactly that name, or else those of that name but
    for case and what separates its words, or else those with that in a name."""
    exact = re.sub(r"\.gguf$", "", word.strip(), flags=re.IGNORECASE).casefold()
    plain = _plain(exact)
    if not plain:
        return []
    for means in (
        lambda name: name.casefold() == exact,
        lambda name: _plain(name) == plain,
        lambda name: plain in _plain(name),
    ):
        found = [entry for entry in entries if any(map(means, entry.names))]
        if found:
            return found
    return []


def closest(word: str, entries: Iterable[Entry]) -> list[Entry]:
    """The entries with a name that is much like `word`."""
    plain = _plain(word)
    if not plain:
        return []
    scored = [(max(_likeness(plain, _plain(name)) for name in e.names), e.name, e) for e in entries]
    near = sorted((one for one in scored if one[0] >= _ALIKE), key=lambda one: (-one[0], one[1]))
    return [entry for _, _, entry in near[:_NEAREST]]


def _likeness(word: str, name: str) -> float:
    """From 0 to 1: how much `word` is like `name`, or a part of it."""
    parts = (name, name[: len(word)], *name.split("-"))
    return max(difflib.SequenceMatcher(None, word, part).ratio() for part in parts)


def _name_apart(entries: Sequence[Entry]) -> None:
    """Give each entry the first of its names that no other has."""
    counts = Counter(name.casefold() for entry in entries for name in set(entry.names))
    for entry in entries:
        apart = (name for name in entry.names if counts[name.casefold()] == 1)
        entry.name = next(apart, str(entry.path))


def _listed(entries: Sequence[Entry]) -> str:
    names = [entry.name for entry in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        names.append(f"{len(entries) - _SHOWN} more (copyahead models lists them)")
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _plain(name: str) -> str:
    return _SEPARATORS.sub("-", name.casefold()).strip("-")
