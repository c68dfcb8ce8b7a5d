"""Large arrays that take what is used."""

from __future__ import annotations

import sys

import pytest

from copyahead.history.pages import untouched


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in other ways")
def test_more_than_the_machine_has_may_be_reserved() -> None:
    """Hundreds of long rows, of which few are ever filled."""
    cells = untouched((256, 2**20, 4, 256))
    cells[200, 5, 3, 7] = 9
    assert cells.nbytes == 2**40
    assert cells[200, 5, 3].sum() == 9
