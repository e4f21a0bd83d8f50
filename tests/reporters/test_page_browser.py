"""The page in a real browser: it sorts, filters and opens tables. Skipped where there is no chromium to drive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support import results as factory

from dpspec.engine.results.joined import join
from dpspec.reporters import html

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
    head = page.find_element("xpath", "//table[@id='overview']//th[button[text()='Interval']]")
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


def test_the_keyboard_sorts_too(page: Any) -> None:
    button = page.find_element("xpath", "//table[@id='overview']//th/button[text()='Claim']")
    page.execute_script("arguments[0].focus()", button)
    assert page.switch_to.active_element == button
    button.send_keys("\ue007")
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    assert shown(page) == ["alpha", "beta", "gamma"]


def test_headings_follow_each_other_and_tables_are_named(page: Any) -> None:
    levels = [int(one.tag_name[1]) for one in page.find_elements("css selector", "h1, h2, h3, h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tables = page.find_elements("tag name", "table")
    assert tables
    assert all(table.find_elements("tag name", "caption") for table in tables)


def test_tables_are_printed_that_are_closed_on_the_screen(page: Any) -> None:
    closed = page.execute_script("return [...document.querySelectorAll('details:not([open])')].length")
    assert closed
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.execute_script("return document.querySelectorAll('details.print:not([open])').length") == 0
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert page.execute_script("return document.querySelectorAll('details:not([open])').length") == closed


def test_a_narrow_screen_scrolls_down_only(page: Any) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    width = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width == [400, 400]


def test_several_results_sort_and_filter_by_the_file_that_they_are_from(page: Any, tmp_path: Path) -> None:
    here = page.current_url
    parts = [
        (name, factory.result(factory.audit("same", verdicts=(factory.verdict(name[0]),))))
        for name in ("b.json", "a.json")
    ]
    path = tmp_path / "joined.html"
    path.write_text(html.render(join(parts)), encoding="utf-8")
    page.get(path.as_uri())
    assert page.find_element("tag name", "h1").text == "2 results"
    page.find_element("xpath", "//table[@id='overview']//th/button[text()='Result']").click()
    rows = page.find_elements("css selector", "#overview tbody tr")
    assert [row.find_element("css selector", "td.origin").text for row in rows] == ["a.json", "b.json"]
    page.find_element("id", "find").send_keys("b.json")
    assert [row.is_displayed() for row in rows] == [False, True]
    page.get(here)


def test_no_request_and_no_error(page: Any) -> None:
    requests = [
        entry["message"] for entry in page.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert all('"url":"file://' in message for message in requests if '"documentURL":"file://' in message)
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
