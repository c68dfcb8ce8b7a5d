"""Prompts that show what copying does for text of different kinds.

Five copy much (`list`, `copy`, `rename`, `json`, `quote`) and two hardly at all (`prose`,
`short`). All texts are the project's own, or source files of the standard library, which are
on every machine. They are written to be continued, not answered: a small model copies
reliably when the copy has already begun.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterable
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
    copies: bool = True
    """Whether most of the answer stands in the prompt."""


COMMANDS = """\
git fetch origin --prune
git switch --create tide-tables
python -m venv .venv --clear
pip install --editable '.[dev]'
pytest tests/test_harbour.py -x -q
ruff check src tests --fix
mypy --strict src/harbour
make clean && make docs
tar -czf logs-march.tar.gz var/log/harbour
rsync -av --delete build/ pier3:/srv/www/
ssh pier3 'systemctl restart harbour'
curl -s localhost:8420/health | jq .status
docker build -t harbour:0.9.2 .
docker run --rm -p 8420:8420 harbour:0.9.2
psql -d tides -c 'select count(*) from gauges'
pg_dump --format=custom tides > tides.dump
createdb tides_copy --template tides
redis-cli --scan --pattern 'ship:*'
find . -name '*.orig' -mtime +30 -delete
grep -rn 'TODO(mooring)' src/
sed -i 's/knots/kn/g' data/units.csv
awk -F, '{ sum += $4 } END { print sum }' data/cargo.csv
sort -t, -k2,2 -u data/berths.csv -o data/berths.csv
cut -d: -f1 /etc/passwd | sort > users.txt
du -sh var/cache/* | sort -h | tail -5
df -h / /home /srv
lsof -i :8420 -sTCP:LISTEN
kill -HUP $(cat var/run/harbour.pid)
crontab -l > cron-backup.txt
journalctl -u harbour --since '2 hours ago'
openssl x509 -in certs/pier.pem -noout -dates
gpg --verify harbour-0.9.2.tar.gz.asc
chmod 640 etc/harbour.toml
chown harbour:dock var/spool
ln -sfn releases/0.9.2 current
git tag -s v0.9.2 -m 'tide tables'
git push origin v0.9.2
gh release create v0.9.2 --notes-file NOTES.md
ffmpeg -i buoy.mov -vf scale=640:-1 buoy.mp4
convert chart.png -resize 50% chart-small.png
pandoc manual.md -o manual.pdf --toc
wc -l src/harbour/*.py
nice -n 10 python tools/reindex.py --all
timeout 90 python tools/ping_buoys.py
watch -n 5 'ls -l var/spool | wc -l'
export HARBOUR_ZONE=north-quay
unset HARBOUR_DEBUG
exit
""".splitlines()


def _list() -> Workload:
    """A numbered list of 48 commands, and the same list again."""
    lines = [f"{number:02d}. {command}" for number, command in enumerate(COMMANDS, start=1)]
    body = "\n".join(lines)
    prompt = f"The 48 commands of the release:\n\n{body}\n\nThe same 48 commands again:\n\n"
    return Workload(
        name="list",
        prompt=prompt + "\n".join(lines[:3]) + "\n",
        max_tokens=400,
        shows="a list of 48 commands, reproduced",
    )


def standard_library(module: str, max_chars: int) -> str:
    """The first whole lines of a standard library module's source, up to `max_chars` characters.

    Raises ConfigError where the interpreter was installed without the source files.
    """
    spec = importlib.util.find_spec(module)
    try:
        text = Path(spec.origin if spec and spec.origin else "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"this Python has no source file of its module {module!r}: "
            "leave out the workloads copy and rename"
        ) from None
    return text[: text.rfind("\n", 0, max_chars) + 1] if len(text) > max_chars else text


def _again(text: str, title: str, again: str, changed: Callable[[str], str], start: int) -> str:
    """A file, and the beginning of the same file again with each line `changed`."""
    begun = "".join(changed(line) for line in text.splitlines(keepends=True)[:start])
    return f"{title}\n\n```python\n{text}```\n\n{again}\n\n```python\n{begun}"


def _copy() -> Workload:
    text = standard_library("bisect", 3200)
    return Workload(
        name="copy",
        prompt=_again(text, "The file bisect.py:", "The same file again:", lambda line: line, 4),
        max_tokens=400,
        shows="a source file, again",
    )


def _rename() -> Workload:
    text = standard_library("colorsys", 4100)
    return Workload(
        name="rename",
        prompt=_again(
            text,
            "The file colorsys.py:",
            "The same file with the name `maxc` changed to `highest` everywhere:",
            lambda line: re.sub(r"\bmaxc\b", "highest", line),
            84,
        ),
        max_tokens=360,
        shows="a source file with one identifier changed",
    )


def _branches() -> list[dict[str, object]]:
    """Nine made-up records."""
    rows: Iterable[tuple[str, str, int, int, bool]] = [
        ("Harbour Street", "Ostwick", 1903, 41250, True),
        ("Mill Pond", "Ostwick", 1961, 18730, False),
        ("Saint Brannock", "Venlow", 1887, 63400, True),
        ("Old Tannery", "Venlow", 1994, 9120, False),
        ("Larkfield", "Dunmarsh", 1932, 27865, True),
        ("Station Road", "Dunmarsh", 1978, 15040, True),
        ("Upper Quarry", "Kelham", 2006, 7310, False),
        ("Weaver's Hall", "Kelham", 1851, 80975, True),
        ("Cinder Lane", "Thorney", 1949, 22160, False),
    ]
    return [
        {
            "id": f"branch-{number}",
            "name": name,
            "town": town,
            "opened": opened,
            "books": books,
            "reading_room": reading_room,
        }
        for number, (name, town, opened, books, reading_room) in enumerate(rows, start=1)
    ]


def _json() -> Workload:
    branches = _branches()
    before = json.dumps({"library": "Five Towns", "open": False, "branches": branches}, indent=2)
    after = json.dumps({"library": "Five Towns", "open": True, "branches": branches}, indent=2)
    begun = "\n".join(after.splitlines()[:5])
    return Workload(
        name="json",
        prompt=(
            f'A JSON document:\n\n```json\n{before}\n```\n\nThe same document with "open" changed '
            f"to true:\n\n```json\n{begun}\n"
        ),
        max_tokens=400,
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
automatic and the last keeper, Edith Marrable, came ashore with a cat and eleven boxes of \
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


def _prose() -> Workload:
    return Workload(
        name="prose",
        prompt=(
            "A story about a clockmaker's daughter who finds a door behind the oldest clock in "
            "the shop.\n\nChapter One\n\nOn the last evening of November, when the shop was "
            "already dark,"
        ),
        max_tokens=340,
        shows="a story, with nothing to copy",
        copies=False,
    )


def _short() -> Workload:
    return Workload(
        name="short",
        prompt="Question: Why is the sky blue?\nAnswer in two sentences:",
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
