"""Prompts that show what copying does for text of different kinds.

Five copy much (`list`, `copy`, `rename`, `json`, `quote`) and two hardly at all (`prose`,
`short`). All texts are the project's own, or source files of the standard library, which are
on every machine. They are written for a small model, which copies when it has seen the text
copied once before and the copy has begun.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from copyahead.errors import ConfigError


class Workload(msgspec.Struct, frozen=True):
    """One prompt, and what to look for in its answer."""

    name: str
    prompt: str
    max_tokens: int
    """Longest answer to ask for, in tokens."""
    shows: str
    """What the answer is made of, in a few words."""
    min_tokens: int = 0
    """Shortest answer to ask for: a sampled one may otherwise end after a line."""
    copies: bool = True
    """Whether most of the answer stands in the prompt."""


COMMANDS = """\
git fetch origin --prune
git switch tide-tables
python -m venv .venv
pip install -e '.[dev]'
pytest tests/test_harbour.py -q
ruff check src tests
mypy --strict src
make clean
make docs
tar -czf logs.tar.gz var/log
rsync -av build/ pier3:/srv/www/
ssh pier3 uptime
curl -s localhost:8420/health
docker build -t harbour .
docker run --rm harbour
psql tides < seed.sql
pg_dump tides > tides.dump
createdb tides_copy
redis-cli ping
find . -name '*.orig' -delete
cat etc/harbour.toml
sed -i 's/old/new/' notes.txt
sort -u data/berths.csv
du -sh var/cache
df -h /srv
lsof -i :8420
crontab -l > cron.txt
journalctl -u harbour
openssl version
gpg --verify harbour.asc
chmod 640 etc/harbour.toml
chown harbour var/spool
ln -s releases/0.9 current
git tag v0.9
git push origin v0.9
ffmpeg -i buoy.mov buoy.mp4
convert chart.png chart.jpg
pandoc manual.md -o manual.pdf
wc -l src/harbour/*.py
nice -n 10 make bench
timeout 90 make check
watch -n 5 date
export ZONE=north-quay
unset DEBUG
cd releases
ls -l
history -c
exit
""".splitlines()


def _list() -> Workload:
    """A numbered list of 48 commands, given twice, and then begun.

    The numbers let the model find its place again after a slip.
    """
    head = "The 48 commands of the release, in order:\n\n"
    lines = [f"{number}. {command}" for number, command in enumerate(COMMANDS, start=1)]
    body = "\n".join(lines)
    return Workload(
        name="list",
        prompt=f"{head}{body}\n\n{head}{body}\n\n{head}" + "\n".join(lines[:3]),
        max_tokens=400,
        min_tokens=300,
        shows="a list of 48 commands, reproduced",
    )


def standard_library(module: str, start: str = "", max_chars: int = 1500) -> str:
    """Whole lines of a standard library module's source, from `start` on, `max_chars` at most.

    Raises ConfigError where the interpreter came without source files.
    """
    try:
        spec = importlib.util.find_spec(module)
        text = Path(spec.origin if spec and spec.origin else "").read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise ConfigError(
            f"this Python has no source file of its module {module!r}: "
            "leave out the workloads copy and rename"
        ) from None
    text = text[max(0, text.find(start)) :][:max_chars]
    return text[: text.rfind("\n") + 1]


def _versions(kind: str, heads: Sequence[str], texts: Sequence[str], num_lines: int) -> str:
    """Each text in a fence of `kind` under its head, the last one only begun."""
    whole = [
        f"{head}\n\n```{kind}\n{text.rstrip()}\n```\n\n"
        for head, text in zip(heads[:-1], texts[:-1], strict=True)
    ]
    begun = "\n".join(texts[-1].splitlines()[:num_lines])
    return "".join(whole) + f"{heads[-1]}\n\n```{kind}\n{begun}"


def _copy() -> Workload:
    text = standard_library("colorsys")
    return Workload(
        name="copy",
        prompt=_versions("python", ["# colorsys.py"] * 3, [text] * 3, 12),
        max_tokens=360,
        min_tokens=300,
        shows="a source file, again",
    )


def _rename() -> Workload:
    text = standard_library("queue", "class Queue:", 1650)
    texts = [re.sub(r"\bmaxsize\b", name, text) for name in ("maxsize", "capacity", "limit")]
    heads = [
        "The file queue.py:",
        "The same file with `maxsize` renamed to `capacity`:",
        "The same file with `maxsize` renamed to `limit`:",
    ]
    return Workload(
        name="rename",
        prompt=_versions("python", heads, texts, 7),
        max_tokens=320,
        min_tokens=300,
        shows="a source file with one identifier changed",
    )


_BRANCHES = (
    ("Harbour Street", "Ostwick", 1903, 41250, True),
    ("Mill Pond", "Ostwick", 1961, 18730, False),
    ("Saint Brannock", "Venlow", 1887, 63400, True),
    ("Old Tannery", "Venlow", 1994, 9120, False),
    ("Larkfield", "Dunmarsh", 1932, 27865, True),
    ("Station Road", "Dunmarsh", 1978, 15040, True),
    ("Upper Quarry", "Kelham", 2006, 7310, False),
)


def _document(**changed: object) -> str:
    """A made-up document, with `changed` fields."""
    keys = ("name", "town", "opened", "books", "reading_room")
    branches = [
        {"id": f"branch-{number}", **dict(zip(keys, row, strict=True))}
        for number, row in enumerate(_BRANCHES, start=1)
    ]
    fields = {"library": "Five Towns", "open": False, "year": 2024, "branches": branches}
    return json.dumps(fields | changed, indent=2)


def _json() -> Workload:
    texts = [_document(), _document(open=True), _document(open=True, year=2025)]
    heads = [
        "A document:",
        'The same document with "open" changed to true:',
        'The same document with "year" changed to 2025:',
    ]
    return Workload(
        name="json",
        prompt=_versions("json", heads, texts, 5),
        max_tokens=400,
        min_tokens=300,
        shows="a JSON document with one field changed",
    )


REPORT = """\
The lighthouse on Gannet Rock was first lit on the ninth of October 1874. Its lamp burned \
rape oil until 1902, when the keepers changed to paraffin, and it was given an electric light \
in the spring of 1957. The tower is 31 metres high and built of grey granite from the \
quarries at Pell, brought over in 112 boat loads, of which two were lost.

Three keepers lived on the rock at a time, for eight weeks, and then had four weeks on shore. \
The relief boat came every second Thursday if the swell allowed it, and in the winter of 1911 \
it could not land for forty-one days. The keepers of that winter, Amos Reddle, John Carrow \
and William Thew, ate ship's biscuit and salt cod, and burned the spare door of the store.

The fog signal was a bell until 1889, then a gun fired every ten minutes, and from 1923 a siren \
driven by compressed air. People in Pell said that they could tell the weather of the next day \
by its echo. It sounded for the last time on the second of March 1988, when the light was made \
automatic and the last keeper, Edith Marsh, came ashore with a cat and eleven boxes of \
books.

Since then the tower has been looked after by a trust of forty members. They paint it every \
fourth summer, keep a record of the birds that strike the lantern, and let the upper room to \
visitors who do not mind the stairs, of which there are one hundred and sixty-eight.
"""


def _quote() -> Workload:
    return Workload(
        name="quote",
        prompt=(
            f"A report:\n\n{REPORT}\nQuestion: What does the report say about the fog signal and "
            'the keepers? Quote it word for word.\n\nAnswer: The report says: "The fog signal was '
            "a bell until 1889,"
        ),
        max_tokens=240,
        shows="an answer that quotes a document",
    )


def _asked(question: str) -> str:
    """`question` as a turn of a chat, in the form that the bundled model was trained on."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _prose() -> Workload:
    question = (
        "Write a long story about a clockmaker's daughter who finds a door behind the oldest "
        "clock in the shop."
    )
    return Workload(
        name="prose",
        prompt=_asked(question),
        max_tokens=340,
        min_tokens=300,
        shows="a story, with nothing to copy",
        copies=False,
    )


def _short() -> Workload:
    return Workload(
        name="short",
        prompt=_asked("Why is the sky blue? Answer in two sentences."),
        max_tokens=80,
        shows="a short question",
        copies=False,
    )


WORKLOADS: MappingProxyType[str, Callable[[], Workload]] = MappingProxyType(
    {
        "list": _list,
        "copy": _copy,
        "rename": _rename,
        "json": _json,
        "quote": _quote,
        "prose": _prose,
        "short": _short,
    }
)
"""Every workload by name, in the order in which they are shown."""


def workload(name: str) -> Workload:
    """The workload called `name`; raises ConfigError where there is none."""
    make = WORKLOADS.get(name)
    if make is None:
        raise ConfigError(f"workload must be one of {', '.join(WORKLOADS)}, not {name!r}")
    return make()
