"""Requests added up by band, policy and day."""

from __future__ import annotations

import pytest

from copyahead.traces.logs import bands
from copyahead.traces.logs.bands import Groups, Key, Seen


def seen(context: float, **more: object) -> Seen:
    return Seen(context=context, read=int(context), written=0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("context", "band"),
    [(0, "0-8k"), (8191, "0-8k"), (8192, "8-16k"), (16383.5, "8-16k"), (16384, "16-32k"),
     (32767, "16-32k"), (32768, "32k+"), (10**7, "32k+")],
)  # fmt: skip
def test_a_band_begins_with_its_first_number(context: float, band: str) -> None:
    groups = Groups()
    groups.add(seen(context))
    assert [name for _, name, _ in groups] == [band, "all"]


def test_all_is_the_sum_of_the_bands() -> None:
    groups = Groups(["policy", "day"])
    for number in range(40):
        groups.add(
            seen(
                number * 1000,
                cached=number if number % 2 else None,
                drafted=5,
                accepted=3,
                rounds=4,
                speed=number,
                first_token=0.5,
                failed=number == 3,
                policy="priced",
                day="2026-11-30",
            )
        )
    *parts, (key, name, whole) = list(groups)
    assert (key, name) == (Key("priced", "2026-11-30"), "all")
    for field in ("requests", "failed", "read", "cached", "read_known", "drafted", "accepted"):
        assert getattr(whole, field) == sum(getattr(group, field) for *_, group in parts)
    assert (whole.requests, whole.failed, whole.drafted) == (40, 1, 200)
    assert whole.read_known == sum(1000 * n for n in range(1, 40, 2))
    # A request of less than two tokens has no speed.
    assert whole.speed.count == 39


def test_names_in_a_log_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "MAX_KEYS", 3)
    groups = Groups(["policy"])
    for number in range(50):
        groups.add(seen(1, policy=f"p{number}"))
    assert groups.num_keys == 4
    counts = {key.policy: group.requests for key, name, group in groups if name == "all"}
    assert counts == {"p0": 1, "p1": 1, "p2": 1, bands.OTHERS: 47}


def test_what_is_not_asked_for_is_not_kept_apart() -> None:
    groups = Groups()
    for number in range(5):
        groups.add(seen(1, policy=f"p{number}", day=f"2026-11-0{number}"))
    assert groups.num_keys == 1
