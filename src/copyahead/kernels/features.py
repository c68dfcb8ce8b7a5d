"""What `priced` looks at in a candidate, and where its weights lie.

A *candidate* is a place in the history whose next token may come next. An *anchor* is the place
where a copy goes on or broke off: A the last one, B an older one. Weights are exponentials of
sums of small tables, fitted once (the prior); the tables' rows and columns are the buckets here.

All tables lie in one flat array, the *model*: a fitted part that never changes, and a learned
part that every settled round moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.kernels.compiled import compiled
from copyahead.kernels.index import SHARED, Longs

Floats = npt.NDArray[np.float64]
Tables = npt.NDArray[np.float32]

# Anchors of one request: the next source index, tokens emitted since the copy broke (0 while it
# runs), and tokens copied in a row. A next source index of -1: not set.
A_NEXT, A_GAP, A_RUN, B_NEXT, B_GAP, B_RUN = 0, 1, 2, 3, 4, 5
# Beside them: tokens in the path, the scope of the shared store, the tenant's statistics.
PATH_LENGTH, SCOPE, TENANT = 6, 7, 8
NUM_STATE = 9
UNSET_GAP = 1000
"""The gap of an anchor that is not set: as of a copy that broke long ago."""
ANCHOR_MAX_GAP = 64
"""So many tokens after a break its place is no longer searched."""
NEAR = 16
"""Places at most this far from where a copy broke are near it; 32 to 128 gained nothing."""
RUNNING = 2
"""A copy runs from so many tokens in a row on."""

# Columns of a candidate.
SOURCE, MATCH, RANK, ECHO, DISTANCE = 0, 1, 2, 3, 4
NUM_CANDIDATE_COLUMNS = 5
MAX_CANDIDATES = 48
"""Room for 8 places of each of 3 keys, 8 near each of 2 anchors, and 2 slots."""

# How many buckets the functions below know of each kind: the sizes of the tables.
NUM_MATCHES, NUM_GROUPS, NUM_FINE_GROUPS = 13, 4, 5
NUM_PLACES, NUM_RANKS, NUM_ECHOES, NUM_DISTANCES = 8, 6, 6, 8
NUM_ESCAPE_STATES, NUM_COPY_STATES, NUM_POSITIONS = 6, 8, 11
MOST_DIFFERENT = 5
"""More different tokens than this among the candidates count as this many."""

# Fitted part of the model: factors, that is exponentials of the prior's tables.
MATCH_PLACE = 0  # [match][place]
RANK_WEIGHT = MATCH_PLACE + NUM_MATCHES * NUM_PLACES  # [group][rank]
OLD_DOCUMENT = RANK_WEIGHT + NUM_GROUPS * NUM_RANKS  # [group], of places in the shared store
ECHO_WEIGHT = OLD_DOCUMENT + NUM_GROUPS  # [fine group][echo]
DISTANCE_WEIGHT = ECHO_WEIGHT + NUM_FINE_GROUPS * NUM_ECHOES  # [fine group][distance]
ESCAPE = DISTANCE_WEIGHT + NUM_FINE_GROUPS * NUM_DISTANCES  # [longest match][different tokens]
ESCAPE_STATE = ESCAPE + NUM_MATCHES * MOST_DIFFERENT  # [escape state]
# Learned part: it starts from fitted values.
SLOPE = ESCAPE_STATE + NUM_ESCAPE_STATES
RATE_TOKENS = SLOPE + 1
RATE_COST = SLOPE + 2
BREAKS_SEEN = SLOPE + 3
BREAKS_EXPECTED = SLOPE + 4
CONTEXT = SLOPE + 5  # [top vote, others][match][copy state]
OTHER_CONTEXT = CONTEXT + NUM_MATCHES * NUM_COPY_STATES
POSITION = OTHER_CONTEXT + NUM_MATCHES * NUM_COPY_STATES  # [group][position]
MODEL_SIZE = POSITION + NUM_GROUPS * NUM_POSITIONS

# Token statistics: hashed tables, each entry of which holds what it adds to the log odds of a
# token, and how often it was seen.
NUM_TABLES = 6
TABLE_BITS = 14
"""2^14 entries a table: 0.8 MiB a tenant."""
BIAS, SEEN = 0, 1
ENTRY_SIZE = 2
_TABLE_SHIFT = 64 - TABLE_BITS
_MIX_A = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio (Knuth's multiplicative hashing)."""
_MIX_B = np.uint64(0xC2B2AE3D27D4EB4F)
"""The second prime of xxHash."""


@compiled("int64(int64)")
def match_bucket(match: int) -> Any:
    """0..6, 7-8, 9-12, 13-20, 21-32, 33-63, 64."""
    if match <= 6:
        return match
    if match <= 12:
        return 7 if match <= 8 else 8
    if match <= 32:
        return 9 if match <= 20 else 10
    return 11 if match <= 63 else 12


@compiled("int64(int64)")
def match_group(match: int) -> Any:
    """0-1, 2-3, 4-12, 13 and more."""
    if match <= 3:
        return match >> 1
    return 2 if match <= 12 else 3


@compiled("int64(int64)")
def fine_match_group(match: int) -> Any:
    """0-1, 2, 3-4, 5-12, 13 and more."""
    if match <= 2:
        return match >> 1
    if match <= 4:
        return 2
    return 3 if match <= 12 else 4


@compiled("int64(int64)")
def rank_bucket(rank: int) -> Any:
    """0, 1, 2-3, 4-7, 8-15, 16 and more."""
    if rank <= 1:
        return rank
    if rank <= 3:
        return 2
    if rank <= 7:
        return 3
    return 4 if rank <= 15 else 5


@compiled("int64(int64)")
def echo_bucket(echo: int) -> Any:
    """0-1, 2, 3-4, 5-8, 9-15, 16."""
    if echo <= 2:
        return echo >> 1
    if echo <= 4:
        return 2
    if echo <= 8:
        return 3
    return 4 if echo <= 15 else 5


@compiled("int64(int64)")
def distance_bucket(distance: int) -> Any:
    """Below 32, 128, 512, 2048, 8192, 32768, 131072, more."""
    bucket = 0
    edge = 32
    while bucket < 7 and distance >= edge:
        bucket += 1
        edge *= 4
    return bucket


@compiled("int64(int64)")
def position_bucket(position: int) -> Any:
    """0, 1, 2, 3-4, 5-7, 8-11, 12-16, 17-23, 24-32, 33-47, 48 and more."""
    if position <= 2:
        return position
    if position <= 11:
        return 3 if position <= 4 else (4 if position <= 7 else 5)
    if position <= 23:
        return 6 if position <= 16 else 7
    if position <= 32:
        return 8
    return 9 if position <= 47 else 10


@compiled("int64(int64, int64)")
def escape_at(longest: int, different: int) -> Any:
    """Where the weight of "none of them" lies, by the longest match and the different tokens."""
    return ESCAPE + MOST_DIFFERENT * match_bucket(longest) + min(different, MOST_DIFFERENT) - 1


@compiled("int64(int64[::1])")
def escape_state(state: Longs) -> Any:
    """Run of 16 and more, 4-15, 1-3; 1, 2-4 tokens after a break; 5 and more, or no anchor."""
    if state[A_NEXT] < 0 or state[A_GAP] >= 5:
        return 5
    if state[A_GAP] > 0:
        return 3 if state[A_GAP] == 1 else 4
    if state[A_RUN] >= 16:
        return 0
    return 1 if state[A_RUN] >= 4 else 2


@compiled("int64(int64[::1])")
def copy_state(state: Longs) -> Any:
    """No anchor; run of 32 and more, 8-31, 3-7, 1-2; 1, 2-4, 5 and more tokens after a break."""
    if state[A_NEXT] < 0:
        return 0
    gap, run = state[A_GAP], state[A_RUN]
    if gap > 0:
        return 5 if gap == 1 else (6 if gap <= 4 else 7)
    if run >= 8:
        return 1 if run >= 32 else 2
    return 3 if run >= 3 else 4


@compiled("int64(int64, int64, int64)")
def nearness(source: int, after: int, gap: int) -> Any:
    """Distance of a source from where a broken copy goes on, by insertion or by substitution."""
    return min(abs(source - after - gap), abs(source - after))


@compiled("int64(int64[::1], int64)")
def place(state: Longs, source: int) -> Any:
    """Where a source lies from the anchors.

    0, 1, 2: goes on the running copy (run of 16 and more, 4-15, less); 3: the substitution slot
    of a broken one; 4, 5: within 4, within 16 of it; 6: within 16 of the older anchor; 7: else.
    """
    after, gap = state[A_NEXT], state[A_GAP]
    if after >= 0 and gap == 0:
        if source == after:
            return 0 if state[A_RUN] >= 16 else (1 if state[A_RUN] >= 4 else 2)
        if abs(source - after) <= NEAR:
            return 5
    elif after >= 0:
        if source == after + gap:
            return 3
        near = nearness(source, after, gap)
        if near <= NEAR:
            return 4 if near <= 4 else 5
    if state[B_NEXT] >= 0 and nearness(source, state[B_NEXT], state[B_GAP]) <= NEAR:
        return 6
    return 7


@compiled("boolean(int64[::1], int64)")
def goes_on(state: Longs, source: int) -> Any:
    """Whether a source is the next one of a copy that runs."""
    return state[A_NEXT] == source and state[A_GAP] == 0 and state[A_RUN] >= RUNNING


@compiled("float64(float64[::1], int64[::1], int32[:, ::1], int64)")
def weight(model: Floats, state: Longs, candidates: Any, c: int) -> Any:
    """Candidate c's weight in the vote."""
    source, match = candidates[SOURCE, c], candidates[MATCH, c]
    group, fine = match_group(match), fine_match_group(match)
    product = model[MATCH_PLACE + NUM_PLACES * match_bucket(match) + place(state, source)]
    product *= model[RANK_WEIGHT + NUM_RANKS * group + candidates[RANK, c]]
    product *= model[ECHO_WEIGHT + NUM_ECHOES * fine + candidates[ECHO, c]]
    product *= model[DISTANCE_WEIGHT + NUM_DISTANCES * fine + candidates[DISTANCE, c]]
    if source >= SHARED:
        product *= model[OLD_DOCUMENT + group]
    return product


@compiled("uint64(uint64, int64)")
def mixed(key: Any, token: int) -> Any:
    """A hash of a key and one more token."""
    word = (key ^ np.uint64(token + 1)) * _MIX_A
    return (word ^ (word >> np.uint64(32))) * _MIX_B


@compiled("int64(uint64)")
def slot_of(key: Any) -> Any:
    """Slot of a token statistic."""
    return np.int64(key >> np.uint64(_TABLE_SHIFT))


@compiled("void(int64[::1], int64)")
def hit(state: Longs, source: int) -> None:
    """Move the anchors: the token at `source` was copied."""
    if state[A_NEXT] == source and state[A_GAP] == 0:
        state[A_NEXT] += 1
        state[A_RUN] += 1
    else:
        older = state[A_RUN] >= state[B_RUN] and state[B_GAP] > ANCHOR_MAX_GAP
        if state[A_RUN] >= 4 or older:
            state[B_NEXT], state[B_GAP], state[B_RUN] = state[A_NEXT], state[A_GAP], state[A_RUN]
        state[A_NEXT], state[A_GAP], state[A_RUN] = source + 1, 0, 1
    state[B_GAP] += 1


@compiled("void(int64[::1])")
def miss(state: Longs) -> None:
    """Move the anchors: the token was not the one expected."""
    state[A_GAP] += 1
    state[B_GAP] += 1
