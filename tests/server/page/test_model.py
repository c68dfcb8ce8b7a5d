"""The page in a browser, with the bundled model behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from copyahead import load
from copyahead.config import LookupOptions, ModelOptions
from tests.machine import THREADS
from tests.server.page.browser import Browser
from tests.server.toys import serving_model

pytestmark = [pytest.mark.browser, pytest.mark.model]

NOTE = "Buy apples, pears, plums, cherries and quinces. Call Mira Valdés about the boat on Tuesday."


@pytest.fixture(scope="module")
def url(bundled: Path) -> Iterator[str]:
    options = ModelOptions(threads=THREADS, ctx=1024, parallel=2)
    with serving_model(load(bundled, model=options, lookup=LookupOptions())) as url:
        yield url


def test_a_real_model_copies_and_its_text_is_that_of_plain_decoding(
    browser: Browser, url: str
) -> None:
    browser.open(url)
    for name, value in (("temperature", "0"), ("max_tokens", "60")):
        browser.set(name, value)
    # What it is worth to draft is a matter of the machine.
    browser.wait(lambda: browser.all("option[value=fixed]"))
    browser.run("document.querySelector('[name=policy]').value = 'fixed'")
    browser.one("#compare").click()
    browser.say(f"Repeat this note exactly, twice:\n{NOTE}")
    assert browser.one(".verdict").text.startswith("The texts are equal."), browser.one(".log").text
    sources = """
    return [...arguments[0].querySelectorAll(".run")].map((run) => run.dataset.source);
    """
    plain, lookup = (set(browser.run(sources, answer)) for answer in browser.all(".pair .answer"))
    assert plain == {"none"}
    assert lookup & {"prompt", "output"}
    assert "Valdés" in browser.answer()


def test_an_answer_in_json(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.set("max_tokens", "40")
    browser.one("[name=json]").click()
    browser.ask("A person as JSON.")
    assert browser.answer().startswith("{")
    assert browser.all(".failure") == []
