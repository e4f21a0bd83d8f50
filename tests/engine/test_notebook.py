"""Results in notebooks."""

from __future__ import annotations

import html
import sys
from typing import Any

import pytest
from support import results as factory

from dpspec.reporters.html.embed import extract, is_page


def test_a_notebook_shows_the_report_in_a_frame_of_its_own() -> None:
    shown = factory.result()._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    assert "<!doctype" not in shown
    page = html.unescape(shown.split('srcdoc="', 1)[1].rsplit('"', 1)[0])
    assert is_page(page)
    assert '"name": "demo"' in extract(page) or '"name":"demo"' in extract(page)


def test_claims_as_a_data_frame() -> None:
    pytest.importorskip("pandas")
    two = (factory.verdict(), factory.verdict("two", verdict="open", upper=None))
    frame = factory.result(factory.audit(verdicts=two)).to_frame()
    assert list(frame["claim"]) == ["one", "two"]
    assert frame["upper"][0] == 2.5
    assert frame["upper"].isna()[1]


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        factory.result().to_frame()


def test_neither_is_loaded_before_it_is_asked_for() -> None:
    import subprocess

    code = "import dpspec, sys; dpspec.Result; print(sorted({'pandas', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    ended: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
