"""A browser that drives the page, and short words for what a user does with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

SECONDS = 120.0
"""The longest wait for anything; how long it takes is not judged."""

Found = TypeVar("Found")


def why_not() -> str | None:
    """Why there is no browser here; None where there is one."""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "selenium is not installed: pip install 'copyahead[browser]'"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH (Debian: chromium and chromium-driver)"
    return None


def need_browser() -> None:
    """Leave the test out where there is no browser, or fail it where there must be one."""
    reason = why_not()
    if reason is not None and os.environ.get("COPYAHEAD_NEEDS_BROWSER"):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)


@contextmanager
def chromium(width: int = 1000, height: int = 900) -> Iterator[Browser]:
    """A browser without a window, with a profile of its own."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        # Chromium's sandbox refuses to run as root.
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    program = shutil.which("chromedriver")
    service = webdriver.ChromeService(program, log_output=subprocess.DEVNULL)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        browser = Browser(driver)
        browser.size(width, height)
        yield browser
    finally:
        driver.quit()


class Browser:
    """One tab."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """Set the size of the page in pixels of its style."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, **features: str) -> None:
        """Say what the system prefers, as in `prefers_color_scheme="dark"`."""
        given = [{"name": n.replace("_", "-"), "value": value} for n, value in features.items()]
        self.command("Emulation.setEmulatedMedia", {"features": given})

    def command(self, name: str, arguments: dict[str, Any]) -> Any:
        """A command of Chromium's own."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def open(self, url: str) -> None:
        """Load a page with nothing kept from another."""
        self.driver.get(url)
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.driver.get(url)

    def leave(self) -> None:
        """Close the connections to the server."""
        self.driver.get("about:blank")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def run_module(self, script: str, *arguments: Any) -> Any:
        """What the body of an asynchronous function returns."""
        body = f"const done = arguments[arguments.length - 1]; const given = arguments;\n{script}"
        return self.driver.execute_async_script(body, *arguments)

    def picture(self, path: Path) -> None:
        """Write what is seen to a PNG file."""
        self.driver.save_screenshot(str(path))

    def all(self, selector: str) -> list[Any]:
        """Elements by their selector."""
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        """The first of them, once it is there."""
        return self.wait(lambda: self.all(selector), f"no {selector}")[0]

    def wait(self, until: Callable[[], Found], what: str = "") -> Found:
        """What `until` returns when it is true for the first time."""
        from selenium.webdriver.support.ui import WebDriverWait

        found: Found = WebDriverWait(self.driver, SECONDS, 0.05).until(lambda _: until(), what)
        return found

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def say(self, text: str) -> None:
        """Send a message, and wait for nothing."""
        field = self.one("#message")
        self.run("arguments[0].focus()", field)
        # As if it were pasted: whole, and with its newlines.
        self.command("Input.insertText", {"text": text})
        self.one("#send").click()

    def ask(self, text: str) -> str:
        """Send a message, and wait for the end of the answer: its text."""
        count = len(self.all(".turn"))
        self.say(text)
        self.wait(lambda: len(self.all(".turn")) > count and self.all(".retry"), "no answer")
        return self.answer()

    def answer(self) -> str:
        """The text of the last answer, as it is and not as it is laid out."""
        return str(self.run("return arguments[0].textContent", self.all(".answer .text")[-1]))

    def set(self, name: str, value: str) -> None:
        """Write into a setting."""
        self.run("document.getElementById('settings').open = true")
        field = self.one(f"#settings-form [name={name}]")
        field.clear()
        field.send_keys(value)

    def errors(self) -> list[str]:
        """What the console has said since it was last asked, beside notes."""
        log = self.driver.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] in {"SEVERE", "WARNING"}]
