"""One browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.page.browser import Browser, chromium, need_browser


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    need_browser()
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """A browser as it starts; its console must be empty at the end."""
    _chromium.size(1000, 900)
    _chromium.media()
    _chromium.errors()
    yield _chromium
    _chromium.leave()
    assert _chromium.errors() == []
