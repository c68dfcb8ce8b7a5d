"""Pictures of the server's page, of answers that the bundled model writes while they are drawn.

    python -m benchmarks.pictures docs/pictures

Needs the extras `demo` and `browser`, and Chromium with its driver on the PATH.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.server.page.browser import Browser, chromium, why_not
from tests.server.toys import serving_model

from copyahead import load
from copyahead.backends.llama_cpp.gguf import bundled_model
from copyahead.config import LookupOptions, ModelOptions

MAX_BYTES = 200_000
WIDE, PHONE = (940, 860), (360, 740)

NOTE = """Repeat this note exactly, twice:
Buy apples, pears, plums and quinces. Call Mira Valdés about the boat on Tuesday."""

LIST = """Repeat this list of files exactly:

- src/server/routes/users.py
- src/server/routes/users_test.py
- src/server/routes/orders.py
- src/server/routes/orders_test.py
- src/server/routes/invoices.py
- src/server/routes/invoices_test.py"""


def draw(browser: Browser, url: str, folder: Path) -> None:
    """All pictures."""
    browser.size(*WIDE)
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    _fresh(browser, url)
    browser.ask(LIST)
    _point(browser)
    _write(browser, folder / "light.png")

    browser.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    _fresh(browser, url)
    browser.one("#compare").click()
    browser.say(LIST)
    browser.one(".verdict")
    browser.one(".retry")
    _write(browser, folder / "dark.png")

    browser.size(*PHONE, scale=1.5)
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    _fresh(browser, url)
    browser.ask(NOTE)
    _write(browser, folder / "phone.png")


def _fresh(browser: Browser, url: str) -> None:
    browser.open(url)
    for name, value in (("temperature", "0"), ("max_tokens", "160")):
        browser.set(name, value)
    browser.run("document.getElementById('settings').open = false")


def _point(browser: Browser) -> None:
    """The note of the longest copy."""
    browser.run(
        """
        const runs = [...document.querySelectorAll(".answer .run:not([data-source=none])")];
        const longest = runs.sort((a, b) => b.textContent.length - a.textContent.length)[0];
        longest?.focus({ preventScroll: true });
        """
    )


def _write(browser: Browser, path: Path) -> None:
    browser.picture(path)
    size = path.stat().st_size
    print(f"{path} {size} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"{path} has {size} bytes, and at most {MAX_BYTES} are allowed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the pictures are written")
    folder: Path = parser.parse_args().folder
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    folder.mkdir(parents=True, exist_ok=True)
    # A policy that knows no prices: what is drawn is then the same on every machine.
    lookup = LookupOptions(policy="hysteresis")
    engine = load(bundled_model(), model=ModelOptions(ctx=2048, parallel=4), lookup=lookup)
    engine.warm_up()
    with serving_model(engine) as url, chromium() as browser:
        draw(browser, url, folder)
        browser.leave()


if __name__ == "__main__":
    main()
