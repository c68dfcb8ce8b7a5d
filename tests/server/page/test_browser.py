"""The page in a browser, against a whole server over the toy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from copyahead.engine import Request
from copyahead.server.service import ServerOptions
from copyahead.types import Source
from tests.server.page.browser import Browser
from tests.server.page.wire import Wire
from tests.server.toys import TOKENIZER, Running, running, toy_backend

pytestmark = pytest.mark.browser

SAID = "the and the and ab the and the and ab the and the and ab"
ESCAPE, ENTER, SHIFT, RIGHT, TAB = "\ue00c", "\ue007", "\ue008", "\ue014", "\ue004"


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    with running(options=ServerOptions(policy="fixed"), policy="fixed") as server:
        yield server


@pytest.fixture
def page(browser: Browser, up: Running) -> Browser:
    browser.open(up.url)
    return browser


@pytest.fixture
def asked(up: Running, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What reaches the engine."""
    requests: list[Request] = []
    start = up.service.start

    def noted(given: Any, **options: Any) -> Any:
        requests.extend(given)
        return start(given, **options)

    monkeypatch.setattr(up.service, "start", noted)
    return requests


def runs(page: Browser) -> list[tuple[str, str]]:
    """Text and source of each run of the last answer."""
    script = """
    return [...arguments[0].querySelectorAll(".run")].map((r) => [r.textContent, r.dataset.source]);
    """
    return [tuple(each) for each in page.run(script, page.all(".answer")[-1])]


def test_a_copy_is_tinted_by_its_source(page: Browser) -> None:
    assert page.ask(f"say:{SAID}") == SAID
    found = runs(page)
    assert "".join(text for text, _ in found) == SAID
    sources = {source for _, source in found}
    assert {"none", "prompt"} <= sources <= {"none", *map(str, Source)}
    colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    assert page.run(colour, ".answer .run[data-source=prompt]") != page.run(
        colour, ".answer .run[data-source=none]"
    )
    assert "tokens a round" in page.one(".answer footer").text


def test_a_run_tells_its_match_under_the_pointer_and_at_the_focus(page: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page.ask(f"say:{SAID}")
    copied = page.all(".answer .run[data-source=prompt]")[0]
    ActionChains(page.driver).move_to_element(copied).perform()
    pointed = page.wait(lambda: page.one("#tip").text)
    assert "Copied from the prompt, after a match of" in pointed
    assert "kept in this round" in pointed
    ActionChains(page.driver).move_to_element(page.one("h1")).perform()
    page.wait(lambda: not page.one("#tip").is_displayed())

    first, *rest = page.all(".answer .run")
    # One stop of the Tab key; within it the arrow keys go on.
    assert [each.get_attribute("tabindex") for each in rest] == ["-1"] * len(rest)
    page.run("arguments[0].focus()", first)
    assert page.one("#tip").text.startswith("Chosen by the model")
    place = [each.get_attribute("data-source") for each in (first, *rest)].index("prompt")
    page.keys(RIGHT * place)
    assert page.one("#tip").text == pointed
    focused = page.driver.switch_to.active_element
    assert focused.get_attribute("aria-describedby") == "tip"
    page.keys(ESCAPE)
    assert not page.one("#tip").is_displayed()


def test_turns_follow_each_other(page: Browser, asked: list[Request], up: Running) -> None:
    page.set("system", "be brief")
    page.ask("say:first")
    page.ask("say:second")
    text = up.service.text(asked[-1].prompt)
    assert text == "be briefsay:firstfirstsay:second"
    page.one("#new-chat").click()
    assert page.all(".turn") == []
    page.ask("say:third")
    assert up.service.text(asked[-1].prompt) == "be briefsay:third"


def test_keys_send_and_break_lines(page: Browser) -> None:
    field = page.one("#message")
    field.send_keys("say:a", SHIFT, ENTER, SHIFT, "b")
    assert page.all(".turn") == []
    field.send_keys(ENTER)
    page.one(".retry")
    assert page.answer() == "a\nb"
    assert field.get_attribute("value") == ""


def test_settings_reach_the_engine(page: Browser, asked: list[Request]) -> None:
    for name, value in [
        ("temperature", "0,5"), ("seed", "7"), ("max_tokens", "5"), ("max_draft_tokens", "3"),
        ("prediction", "abc"),
    ]:  # fmt: skip
        page.set(name, value)
    page.wait(lambda: len(page.all("#settings-form option")) > 3)
    page.run("document.querySelector('[name=policy]').value = 'single'")
    page.ask(f"say:{SAID}")
    request = asked[-1]
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 7)
    assert (request.max_tokens, request.max_draft_tokens, request.policy) == (5, 3, "single")
    assert (request.lookup, list(request.prediction)) == (True, TOKENIZER.encode("abc"))
    assert "cut off" in page.one(".answer footer").text
    page.one("[name=lookup]").click()
    page.ask(f"say:{SAID}")
    assert not asked[-1].lookup
    # They are this tab's, and are there when it is loaded anew.
    page.driver.refresh()
    assert page.one("[name=seed]").get_attribute("value") == "7"
    page.wait(lambda: page.one("[name=policy]").get_attribute("value") in {"single", ""})


def test_plain_and_lookup_are_compared(page: Browser, asked: list[Request]) -> None:
    page.one("#compare").click()
    page.say("tell me of it")
    verdict = page.one(".verdict").text
    assert verdict.startswith("The texts are equal. Plain took"), verdict
    plain, lookup = asked[-2:]
    assert (plain.lookup, lookup.lookup) == (False, True)
    assert plain.sampling.seed == lookup.sampling.seed is not None
    assert list(plain.prompt) == list(lookup.prompt)
    titles = [each.text.lower() for each in page.all(".pair h3")]
    assert titles == ["plain", "lookup"]
    clocks = [each.text for each in page.all(".pair .clock")]
    assert all(clock.endswith(" s") for clock in clocks)
    texts = [page.run("return arguments[0].textContent", e) for e in page.all(".pair .text")]
    assert texts[0] == texts[1] != ""


def test_retry_asks_the_same_once_more(page: Browser, asked: list[Request]) -> None:
    page.ask("say:one")
    page.ask("tell me")
    page.one(".retry").click()
    page.wait(lambda: len(asked) == 3 and page.all(".retry"))
    assert list(asked[-1].prompt) == list(asked[-2].prompt)
    assert len(page.all(".turn")) == 2


def test_the_strip_tells_what_runs(page: Browser, up: Running) -> None:
    page.ask(f"say:{SAID}")
    status = up.service.status("")
    accepted = str(status["by_source"]["prompt"]["accepted"])
    page.wait(lambda: page.all(".legend .count")[0].text == accepted, "the count did not come")
    # The count may have come while the answer was still being written.
    page.wait(lambda: page.one("#now-slots").text == "0/4")
    assert float(page.one("#now-round").text) > 1
    assert page.one("#now-accepted").text.endswith("%")


def test_code_is_set_apart(page: Browser) -> None:
    text = "so:\n```py\nx = 1\n```\nand `more`"
    assert page.ask(f"say:{text}") == text
    blocks = [(each.get_attribute("class"), each.text) for each in page.all(".answer .text > *")]
    assert blocks == [("prose", "so:"), ("code", "```py\nx = 1\n```"), ("prose", "and `more`")]


def test_code_is_found_however_the_text_is_cut(page: Browser) -> None:
    script = """
    const { Fences } = await import("./page/fences.js");
    const blocks = (parts) => {
      const found = [];
      const fences = new Fences((text, isCode) => {
        if (found.length && found.at(-1)[1] === isCode) found.at(-1)[0] += text;
        else found.push([text, isCode]);
      });
      for (const part of parts) fences.push(part, {});
      fences.finish();
      return found;
    };
    const text = given[0];
    const cuts = [[text], [...text]];
    for (let i = 0; i <= text.length; i += 1) {
      for (let j = i; j <= text.length; j += 1) {
        cuts.push([text.slice(0, i), text.slice(i, j), text.slice(j)]);
      }
    }
    const all = cuts.map((cut) => JSON.stringify(blocks(cut)));
    done([all[0], all.length, new Set(all).size]);
    """
    for text, first in [
        (
            "a\n  ```\nb``` ```\n```\n``c",
            '[["a\\n",false],["  ```\\nb``` ```\\n```\\n",true],["``c",false]]',
        ),
        ("```x", '[["```x",true]]'),
        ("``\n\n`", '[["``\\n\\n`",false]]'),
    ]:
        found, num_cuts, num_different = page.run_module(f"(async () => {{{script}}})()", text)
        assert (found, num_different) == (first, 1)
        assert num_cuts > 10


def test_a_long_text_may_be_pasted(page: Browser) -> None:
    text = "the " * 1500
    assert page.ask(f"say:{text}").startswith("the the ")
    box = page.one(".question")
    height, whole = page.run("return [arguments[0].clientHeight, arguments[0].scrollHeight]", box)
    assert height < 300 < whole
    field = page.one("#message")
    page.run("arguments[0].focus()", field)
    page.command("Input.insertText", {"text": text})
    assert page.run("return arguments[0].clientHeight", field) < 400


@pytest.mark.parametrize("how", ["button", "escape"])
def test_an_answer_can_be_stopped(browser: Browser, how: str) -> None:
    with running(toy_backend(seconds=0.05), policy="fixed") as server:
        browser.open(server.url)
        browser.run("document.getElementById('settings').open = true")
        browser.one("[name=lookup]").click()
        browser.say("say:" + SAID * 8)
        browser.wait(lambda: len(browser.all(".answer .run")) > 3)
        assert browser.one("#now-slots").text
        if how == "button":
            browser.one("#stop").click()
        else:
            browser.keys(ESCAPE)
        browser.one(".retry")
        assert server.is_idle()
        text = browser.answer()
        assert (SAID * 8).startswith(text)
        assert 3 < len(text) < len(SAID * 8)
        assert "stopped" in browser.one(".answer footer").text
        assert not browser.one("#stop").is_displayed()
        assert browser.all(".failure") == []
        browser.leave()


def test_what_the_server_refuses_is_said_in_its_words(page: Browser) -> None:
    page.ask("the " * 3000)
    assert "maximum context length is 2048 tokens" in page.one(".failure").text
    assert "status of 400" in " ".join(page.errors())
    page.set("temperature", "-1")
    page.ask("say:x")
    assert "temperature must be" in page.all(".failure")[-1].text
    assert "status of 400" in " ".join(page.errors())
    page.set("temperature", "")
    assert page.ask("say:x") == "x"


def test_a_setting_that_is_no_number_is_named_and_nothing_is_lost(
    page: Browser, asked: list[Request]
) -> None:
    page.set("seed", "soon")
    page.say("say:x")
    assert page.one(".failure").text.startswith("Seed is not a number")
    assert page.one("#message").get_attribute("value") == "say:x"
    assert asked == []
    page.set("seed", "3")
    page.one("#send").click()
    page.one(".retry")
    assert page.answer() == "x"
    assert page.all(".failure") == []


def test_a_lost_connection_is_said(browser: Browser) -> None:
    with running(toy_backend(seconds=0.05)) as server, Wire(server.url) as wire:
        browser.open(wire.url)
        browser.say("say:" + SAID * 4)
        browser.wait(lambda: len(browser.all(".answer .run")) > 2)
        wire.cut()
        assert "connection was lost" in browser.one(".failure").text
        text = browser.answer()
        assert (SAID * 4).startswith(text)
        assert 0 < len(text) < len(SAID * 4)
        browser.ask("say:more")
        assert "cannot be reached" in browser.all(".failure")[-1].text
        browser.wait(lambda: "cannot be reached" in browser.one("#strip-note").text)
        wire.mend()
        browser.wait(lambda: not browser.one("#strip-note").is_displayed())
        browser.one(".retry").click()
        browser.wait(lambda: browser.all(".retry") and browser.answer() == "more")
        browser.leave()
    assert all("net::ERR_" in error for error in browser.errors())


def test_a_key_is_asked_for_and_kept_in_this_tab_only(browser: Browser) -> None:
    with running(options=ServerOptions(api_keys=("right",)), policy="fixed") as server:
        browser.open(server.url)
        browser.wait(lambda: "no valid API key" in browser.one("#key-reason").text)
        browser.one("#key").send_keys("wrong", ENTER)
        browser.wait(lambda: browser.run("return sessionStorage['copyahead-key'] === 'wrong'"))
        browser.wait(lambda: browser.one("#key").is_displayed())
        browser.one("#key").send_keys("right", ENTER)
        browser.wait(lambda: browser.one("#now-slots").text == "0/4")
        assert browser.ask(f"say:{SAID}") == SAID
        assert browser.run("return sessionStorage['copyahead-key']") == "right"
        assert browser.run("return JSON.stringify({...localStorage}) + document.cookie") == "{}"
        assert "right" not in browser.driver.current_url
        assert browser.one("#change-key").is_displayed()
        browser.leave()
    refused = browser.errors()
    assert refused
    assert all("401" in message for message in refused)


def test_who_gives_no_key_is_asked_once_and_told(browser: Browser) -> None:
    with running(options=ServerOptions(api_keys=("right",))) as server:
        browser.open(server.url)
        browser.wait(lambda: browser.one("#key").is_displayed())
        browser.keys(ESCAPE)
        browser.wait(lambda: "no valid API key" in browser.one("#strip-note").text)
        browser.say("say:x")
        browser.wait(lambda: browser.one("#key").is_displayed())
        browser.all("#key-dialog button")[0].click()
        assert "no valid API key" in browser.one(".failure").text
        browser.one(".retry").click()
        browser.wait(lambda: browser.one("#key").is_displayed())
        browser.one("#key").send_keys("right", ENTER)
        browser.wait(lambda: browser.all(".retry") and browser.answer() == "x")
        browser.leave()
    assert all("401" in message for message in browser.errors())


@pytest.mark.parametrize("width", [360, 768])
def test_no_width_scrolls_sideways(page: Browser, width: int) -> None:
    page.size(width, 640)
    page.run("document.getElementById('settings').open = true")
    page.ask("say:" + "a" * 300 + "\n```\n" + "b" * 300 + "\n```")
    page.one("#compare").click()
    page.say("say:" + "the and " * 40)
    page.one(".verdict")
    page.run("document.querySelector('.run[data-source=prompt]').focus()")
    widths = "const { scrollWidth, clientWidth } = document.documentElement;"
    scrolled, seen = page.run(f"{widths} return [scrollWidth, clientWidth]")
    assert scrolled == seen <= width
    outside = """
    return [...document.querySelectorAll("body *")].filter((one) => {
      const box = one.getBoundingClientRect();
      return box.width > 1 && (box.left < -0.5 || box.right > innerWidth + 0.5);
    }).map((one) => one.outerHTML.slice(0, 80))
    """
    assert page.run(outside) == []


def test_an_inline_script_does_not_run(page: Browser) -> None:
    script = """
    document.addEventListener("securitypolicyviolation", (event) => {
      window.barred = event.effectiveDirective;
    });
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    """
    page.run(script)
    assert page.wait(lambda: page.run("return window.barred")) == "script-src-elem"
    assert page.run("return window.ran === undefined")
    assert any("Content Security Policy" in message for message in page.errors())


def test_text_of_the_model_is_never_markup(page: Browser) -> None:
    text = "<img src=x onerror=alert(1)><b>bold</b>"
    assert page.ask(f"say:{text}") == text
    assert page.all("img, .turn b") == []
    assert text in page.one(".question").text


def test_light_and_dark(page: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    page.media(prefers_color_scheme="light")
    light = page.run(paper)
    page.media(prefers_color_scheme="dark")
    dark = page.run(paper)
    assert light != dark
    switch = page.one("#theme")
    seen = []
    for _ in range(3):
        switch.click()
        seen.append((switch.text, page.run(paper)))
    assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: system", dark)]
    switch.click()
    page.driver.refresh()
    assert page.run(paper) == light


def test_nothing_moves_for_those_who_ask_for_that(page: Browser) -> None:
    moves = """
    document.querySelector("#log").innerHTML =
      '<div class="answer" aria-busy="true"><div class="text"></div></div>';
    return getComputedStyle(document.querySelector(".answer .text"), "::after").animationName;
    """
    page.media(prefers_reduced_motion="reduce")
    assert page.run(moves) == "none"
    page.media(prefers_reduced_motion="no-preference")
    assert page.run(moves) == "blink"


def test_every_control_has_a_name(page: Browser) -> None:
    page.run("document.getElementById('settings').open = true")
    page.ask("say:x")
    tree = page.command("Accessibility.getFullAXTree", {})["nodes"]
    controls = {"button", "textbox", "checkbox", "combobox", "group", "log", "DisclosureTriangle"}
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"] and node["role"]["value"] in controls
    ]
    assert len(found) > 10
    assert [role for role, name in found if not name and role != "group"] == []
    assert {("textbox", "Message"), ("button", "Send"), ("log", "Conversation")} <= set(found)
