"""Each preset's rule as a table of rounds, and what its options refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from copyahead.contracts import LengthPolicy, Load, Query
from copyahead.errors import ConfigError
from copyahead.policies import describe, parse_policy, policy_names
from copyahead.policies.registry import PricedKnobs

Round = tuple[int, int, bool]
"""Drafted, accepted, continues."""

PLAIN: Round = (0, 0, False)
GOES_ON: Round = (0, 0, True)
EMPTY: Round = (10, 0, False)
PART: Round = (10, 3, False)
WHOLE: Round = (10, 10, False)
WHOLE_ON: Round = (10, 10, True)
PRESETS = ["hysteresis", "window", "single", "adaptive_k", "fixed"]


def policy(text: str, load: Load | None = None) -> LengthPolicy:
    return parse_policy(text)(load or Load())


def asked(machine: LengthPolicy, limit: int = 64) -> Query:
    query = machine.query(limit)
    assert query is not None
    return query


@pytest.mark.parametrize(
    ("rounds", "min_match"),
    [
        ([], 12),
        ([EMPTY], 12),
        ([EMPTY, EMPTY], 16),
        ([EMPTY, EMPTY, EMPTY], 16),
        ([EMPTY, PART, EMPTY], 12),
        ([EMPTY, PLAIN, EMPTY], 16),
        ([EMPTY, EMPTY, PLAIN, PLAIN], 16),
        ([EMPTY, EMPTY, PART], 12),
        ([PART], 12),
        ([WHOLE], 4),
        ([WHOLE_ON], 4),
        ([EMPTY, EMPTY, WHOLE], 4),
        ([WHOLE, PLAIN], 12),
        ([WHOLE_ON, GOES_ON, GOES_ON], 4),
        ([WHOLE_ON, GOES_ON, PLAIN], 12),
        ([WHOLE_ON, PART], 12),
        ([WHOLE_ON, EMPTY, EMPTY], 16),
        ([GOES_ON], 12),
        ([PART, GOES_ON], 12),
    ],
)
def test_hysteresis_gate(rounds: list[Round], min_match: int) -> None:
    machine = policy("hysteresis")
    for drafted in rounds:
        machine.settle(*drafted)
    assert asked(machine).min_match == min_match


def test_hysteresis_asks_for_the_longest_match_of_two_tokens_up_to_60() -> None:
    query = asked(policy("hysteresis"))
    assert (query.keys, query.winner, query.max_tokens) == ((2,), "longest", 60)
    assert asked(policy("hysteresis"), 5).max_tokens == 5


def test_hysteresis_options() -> None:
    machine = policy("hysteresis:min_match=5,min_match_running=5,empty_rounds=1,max_draft_tokens=7")
    assert (asked(machine).min_match, asked(machine).max_tokens) == (5, 7)
    machine.settle(*EMPTY)
    assert asked(machine).min_match == 16


@pytest.mark.parametrize(
    ("rounds", "windows"),
    [
        ([(2, 2, True)] * 4, [2, 4, 8, 8, 8]),
        ([(2, 2, True), (4, 3, False), (2, 1, False), (1, 0, False)], [2, 4, 2, 1, None]),
        ([(2, 2, True), PLAIN], [2, 4, 4]),
        # The draft was cut to 1 by a budget; all of it was accepted.
        ([(1, 1, True)], [2, 4]),
    ],
)
def test_window_doubles_and_halves(rounds: list[Round], windows: list[int | None]) -> None:
    machine = policy("window")
    seen = []
    for drafted in [*rounds, PLAIN]:
        query = machine.query(64)
        seen.append(query.max_tokens if query else None)
        machine.settle(*drafted)
    assert seen == windows


def skipped(machine: LengthPolicy) -> int:
    count = 0
    while machine.query(64) is None:
        machine.settle(*PLAIN)
        count += 1
        assert count < 1000
    return count


def test_window_skips_ever_more_rounds_until_something_is_accepted() -> None:
    machine = policy("window")
    skips = []
    for _ in range(7):
        machine.settle(2, 0, False)
        skips.append(skipped(machine))
    assert skips == [1, 2, 4, 8, 16, 16, 16]
    machine.settle(2, 1, False)
    assert skipped(machine) == 0
    machine.settle(2, 0, False)
    assert skipped(machine) == 1


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("active", [1, 2])
def test_a_policy_asks_for_as_much_as_another_drafter_has_or_for_nothing(
    name: str, active: int
) -> None:
    machine = policy(name, Load(active_requests=active))
    for drafted in (PLAIN, WHOLE_ON, WHOLE_ON, PART):
        assert machine.query(16, 0) == machine.query(16)
        for limit in (1, 4, 16):
            taken = [machine.query(limit, at_least) for at_least in range(20)]
            asked_for = [query.max_tokens if query else 0 for query in taken]
            assert all(n == 0 or at_least <= n <= limit for at_least, n in enumerate(asked_for))
            assert asked_for[1] >= 1, "a copy of one token is always asked for"
        machine.settle(*drafted)


def test_a_window_never_closes_and_opens_again() -> None:
    machine = policy("window:max_skip=0")
    for _ in range(3):
        machine.settle(2, 0, False)
        assert asked(machine).max_tokens == 1
    machine.settle(1, 1, True)
    assert asked(machine).max_tokens == 2


def test_window_without_skips() -> None:
    machine = policy("window:max_skip=0")
    machine.settle(2, 0, False)
    assert skipped(machine) == 0


@pytest.mark.parametrize(
    ("found", "kept"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (7, 4), (8, 8), (31, 16)]
)
def test_window_cuts_long_copies_to_a_power_of_two(found: int, kept: int) -> None:
    assert policy("window").trim(found) == kept


@pytest.mark.parametrize(("active", "longest"), [(1, 8), (2, 3), (8, 3), (9, None), (0, 8)])
def test_window_under_load(active: int, longest: int | None) -> None:
    load = Load()
    machine = policy("window:start=8", load)
    load.active_requests = active
    query = machine.query(64)
    assert (query.max_tokens if query else None) == longest


@pytest.mark.parametrize(
    ("active", "limit", "at_least", "longest"),
    [(1, 64, 5, 5), (1, 64, 1, 2), (1, 4, 5, None), (2, 64, 3, 3), (2, 64, 4, None)],
)
def test_window_is_not_asked_for_less_than_another_draft(
    active: int, limit: int, at_least: int, longest: int | None
) -> None:
    machine = policy("window", Load(active_requests=active))
    query = machine.query(limit, at_least)
    assert (query.max_tokens if query else None) == longest


def test_window_asks_for_the_newest_place_of_four_tokens_that_spans_eight() -> None:
    query = asked(policy("window"))
    assert (query.keys, query.winner, query.min_match) == ((4,), "newest", 8)


def test_single_asks_for_one_token_with_no_gate() -> None:
    machine = policy("single")
    for drafted in [PLAIN, EMPTY, (1, 1, True)]:
        query = asked(machine)
        assert (query.keys, query.winner, query.min_match) == ((3, 2), "newest", 1)
        assert (query.max_tokens, machine.trim(1)) == (1, 1)
        machine.settle(*drafted)


@pytest.mark.parametrize(
    ("rounds", "lengths"),
    [
        ([(1, 1, True), (2, 2, True), (4, 4, True), (8, 8, True)], [1, 2, 4, 8, 8]),
        ([(1, 1, True), (2, 1, False), (1, 1, True)], [1, 2, 1, 2]),
        ([(1, 1, True), PLAIN, (2, 2, True)], [1, 2, 2, 4]),
        ([(1, 0, False)], [1, 1]),
    ],
)
def test_adaptive_k(rounds: list[Round], lengths: list[int]) -> None:
    machine = policy("adaptive_k")
    seen = [asked(machine).max_tokens]
    for drafted in rounds:
        machine.settle(*drafted)
        seen.append(asked(machine).max_tokens)
    assert seen == lengths
    assert (asked(machine).keys, asked(machine).winner) == ((3, 2), "newest")


def test_fixed_is_always_ten() -> None:
    machine = policy("fixed")
    for drafted in [PLAIN, EMPTY, WHOLE]:
        query = asked(machine)
        assert (query.keys, query.winner, query.max_tokens) == ((3, 2), "newest", 10)
        assert machine.trim(10) == 10
        machine.settle(*drafted)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("limit", [1, 2, 64])
def test_no_policy_asks_for_more_than_the_limit(name: str, limit: int) -> None:
    machine = policy(name)
    for _ in range(6):
        assert asked(machine, limit).max_tokens <= limit
        machine.settle(limit, limit, True)


@pytest.mark.parametrize("name", PRESETS)
def test_asking_changes_nothing(name: str) -> None:
    machine = policy(name)
    for drafted in [WHOLE, EMPTY, EMPTY, PLAIN]:
        machine.settle(*drafted)
        assert machine.query(64) == machine.query(64)


@pytest.mark.parametrize("name", PRESETS)
def test_requests_do_not_share_state(name: str) -> None:
    choice = parse_policy(name)
    first = choice(Load())
    for _ in range(10):
        first.settle(*EMPTY)
    fresh = choice(Load())
    assert fresh.query(64) == choice(Load()).query(64) is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope", "policy 'nope' is unknown: take one of priced, hysteresis, window, single"),
        ("", "policy '' is unknown"),
        ("window:size=3", "window has no option 'size': its options are key, min_match, start"),
        ("window:start", "write start=2, not 'start'"),
        ("window:start=x", "start must be a whole number from 1 to 64, not 'x'"),
        ("window:start=2.5", "start must be a whole number"),
        ("window:start=0", "start must be from 1 to 64, not 0"),
        ("window:max_window=65", "max_window must be from 1 to 64, not 65"),
        ("window:start=4,start=5", "start is given twice"),
        ("window:start=16", "start=16 and max_window=8 exclude each other"),
        ("window:key=9", "key=9 and min_match=8 exclude each other"),
        ("hysteresis:min_match_running=13", "min_match_running=13 and min_match=12 exclude"),
        ("hysteresis:min_match=20", "min_match=20 and min_match_after_empty=16 exclude"),
        ("single:shortest_key=4", "shortest_key=4 and longest_key=3 exclude"),
        ("adaptive_k:longest_key=1", "shortest_key=2 and longest_key=1 exclude"),
        ("priced:credit=x", "credit must be a number from 1 to 1024, not 'x'"),
        ("priced:credit=nan", "credit must be from 1 to 1024, not nan"),
        ("fixed:num_draft_tokens=0", "num_draft_tokens must be from 1 to 64"),
    ],
)
def test_wrong_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_policy(text)


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("priced:max_draft=9", "priced:max_draft_tokens=9"),
        ("hysteresis:max_draft=9", "hysteresis:max_draft_tokens=9"),
        ("adaptive_k:max_draft=9", "adaptive_k:max_draft_tokens=9"),
        ("window:batch_max_draft=9", "window:batch_max_draft_tokens=9"),
    ],
)
def test_options_may_have_their_former_names(former: str, now: str) -> None:
    assert parse_policy(former) == parse_policy(now)
    assert str(parse_policy(former)) == now
    with pytest.raises(ConfigError, match=r"is its former name\) is given twice"):
        parse_policy(f"{now},{former.partition(':')[2]}")
    with pytest.raises(ConfigError, match="max_draft_tokens must be from 1 to 64, not 65"):
        parse_policy(former.replace("=9", "=65"))


def test_a_policy_without_the_option_has_no_former_name_of_it() -> None:
    for text in ("single:max_draft=3", "window:max_draft=3", "hysteresis:batch_max_draft=3"):
        with pytest.raises(ConfigError, match=r"has no option '(batch_)?max_draft'"):
            parse_policy(text)


def test_a_choice_reads_as_it_was_written() -> None:
    for text in ("window", "window:start=1,max_window=16", "hysteresis:min_match=13"):
        assert str(parse_policy(text)) == text
        assert parse_policy(str(parse_policy(text))) == parse_policy(text)
    assert str(parse_policy("fixed: num_draft_tokens = 10 ,")) == "fixed"


def test_every_default_and_edge_of_every_option_is_accepted_or_excluded() -> None:
    for description in describe():
        assert parse_policy(description.name).name == description.name
        for option in description.knobs:
            assert option.low <= option.default <= option.high
            assert option.about
            for value in (option.low, option.high):
                try:
                    parse_policy(f"{description.name}:{option.name}={value}")
                except ConfigError as error:
                    assert "exclude each other" in str(error)  # noqa: PT017


def test_priced_is_no_preset() -> None:
    choice = parse_policy("priced:credit=8,threshold=1.5")
    assert choice.knobs == PricedKnobs(credit=8.0, threshold=1.5)
    assert not choice.is_preset
    assert parse_policy("window").is_preset
    with pytest.raises(ConfigError, match="is no preset: take"):
        choice(Load())


def test_all_presets_are_named() -> None:
    assert set(PRESETS) <= set(policy_names())
    assert [description.name for description in describe()] == list(policy_names())


def test_the_documentation_has_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    for description in describe():
        for k in description.knobs:
            name = f"`{description.name}:{k.name}`"
            assert f"| {name} | {k.default:g} | {k.low:g} to {k.high:g} | {k.about} |" in page
