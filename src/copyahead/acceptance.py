"""Which drafted tokens are kept: rules without loss.

`sample_and_compare` is the one that copyahead uses. The target chooses a token at each row in
its own way, one draw a row, and the draft goes on for as long as it proposed the same. The
drafted token d is accepted with probability `target_probs[d]`, and what comes out *is* the
target's own sample. So the distribution is the target's, and so is the sample, whatever the draft
depends on.

`rejection` is speculative sampling (Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding"; Chen et al. 2023): a token that was drawn from `draft_probs` is kept with
probability min(1, target_probs / draft_probs), else the target's excess over the draft is drawn
from. More is kept, and the distribution is the target's, but for one seed it is another sample. It
holds only where the drawn token's place in the draft does not hang on its value: a choice among
drafts that has looked at what was drawn makes it wrong. `tests/test_acceptance.py` has the case.

`point_mass_rejection` is what it becomes for a draft that is certain of its token: accept d with
probability `target_probs[d]`, else draw from the target with d taken out. It is here for hosts that
verify this way, and for the test that shows the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from copyahead.types import Token


def sample_and_compare(
    draft: Sequence[Token], choose: Callable[[int], Token], ended: Callable[[Token], bool]
) -> list[Token]:
    """The tokens that a round emits: at least one, at most `len(draft) + 1`.

    `choose(j)` is the target's token for row j, asked for in order, only for rows that the text
    reaches. `ended(token)` takes each as it is emitted and says whether the request ends there:
    nothing after it is asked for.
    """
    emitted: list[Token] = []
    for row in range(len(draft) + 1):
        token = choose(row)
        emitted.append(token)
        if ended(token) or row == len(draft) or token != draft[row]:
            break
    return emitted


def num_accepted(draft: Sequence[Token], emitted: Sequence[Token]) -> int:
    """How many drafted tokens were kept: the length of the common prefix."""
    count = 0
    for drafted, kept in zip(draft, emitted, strict=False):
        if drafted != kept:
            break
        count += 1
    return count


def rejection(
    drafted: Token,
    draft_probs: npt.NDArray[np.floating],
    target_probs: npt.NDArray[np.float64],
    draws: Callable[[], float],
) -> Token:
    """One row of rejection sampling: `drafted` was drawn from `draft_probs`.

    Both distributions sum to 1 and are not written to; the target's may have more entries, the
    draft's are then 0 there. `draws()` gives numbers in [0, 1): one when the draft is accepted, two
    when it is not.
    """
    if draws() * float(draft_probs[drafted]) < target_probs[drafted]:
        return drafted
    count = min(len(draft_probs), len(target_probs))
    rest = target_probs.copy()
    rest[:count] = np.maximum(rest[:count] - draft_probs[:count], 0.0)
    total = float(rest.sum())
    # Where rounding leaves no excess the two distributions are the same.
    return inverse_cdf(rest if total > 0.0 else target_probs, draws() * (total or 1.0))


def point_mass_rejection(
    drafted: Token, target_probs: npt.NDArray[np.float64], draws: Callable[[], float]
) -> Token:
    """One row of rejection sampling against a draft that puts all its probability on one token.

    `target_probs`, shape `[vocab_size]`, sums to 1 and is not written to. `draws()` gives numbers
    in [0, 1): one when the draft is accepted, two when it is not.
    """
    if draws() < target_probs[drafted]:
        return drafted
    rest = target_probs.copy()
    rest[drafted] = 0.0
    return inverse_cdf(rest, draws() * float(rest.sum()))


def inverse_cdf(weights: npt.NDArray[np.float64], point: float) -> Token:
    """The index whose share of the running sum of `weights` holds `point`."""
    index = int(np.searchsorted(np.cumsum(weights), point, side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))
