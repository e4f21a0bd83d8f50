"""The page in a real browser: it sorts, filters and opens tables. Skipped where there is no chromium to drive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from support import results as factory

from dpspec.reporters import page as html

selenium = pytest.importorskip("selenium.webdriver")
if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("no chromium with its driver", allow_module_level=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path_factory.mktemp('p')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    from selenium.webdriver.chrome.service import Service

    driver = selenium.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    verdicts = (
        factory.verdict("alpha", upper=9.0, claimed=9.5),
        factory.verdict("beta", upper=2.0, verdict="refuted", expected=False),
        factory.verdict("gamma", upper=30.0, claimed=31.0),
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(factory.result(factory.audit(verdicts=verdicts))), encoding="utf-8")
    browser.get(path.as_uri())
    return browser


def shown(page: Any) -> list[str]:
    rows = page.find_elements("css selector", "#overview tbody tr")
    return [row.find_element("css selector", "td a").text for row in rows if row.is_displayed()]


def test_a_click_on_a_head_sorts_and_a_second_one_reverses(page: Any) -> None:
    head = page.find_element("xpath", "//table[@id='overview']//th[button[contains(., 'Interval')]]")
    head.find_element("tag name", "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown(page) == ["beta", "alpha", "gamma"]
    head.find_element("tag name", "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert shown(page) == ["gamma", "alpha", "beta"]


def test_the_filter_hides_rows_and_says_how_many(page: Any) -> None:
    page.find_element("id", "unexpected").click()
    assert shown(page) == ["beta"]
    assert page.find_element("id", "shown").text == "1 of 3"
    page.find_element("id", "unexpected").click()
    page.find_element("id", "find").send_keys("gam")
    assert shown(page) == ["gamma"]
    page.find_element("id", "find").clear()
    page.find_element("id", "find").send_keys(" ")
    assert len(shown(page)) == 3


def test_a_table_opens(page: Any) -> None:
    details = page.find_element("xpath", "//details[summary[contains(., 'numbers with their rigor')]]")
    table = details.find_element("tag name", "table")
    assert not table.is_displayed()
    details.find_element("tag name", "summary").click()
    assert table.is_displayed()


def test_no_request_and_no_error(page: Any) -> None:
    requests = [
        entry["message"] for entry in page.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert all('"url":"file://' in message for message in requests if '"documentURL":"file://' in message)
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
