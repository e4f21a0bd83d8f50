"""The assumption that certified intervals carry."""

from __future__ import annotations

import pytest

from dpspec.accounting import rigor


def test_this_machine_is_accurate_enough() -> None:
    assumption = rigor.library_accuracy()
    assert (assumption.name, assumption.status) == ("library-accuracy", "not-rejected")


def test_a_library_that_is_worse_makes_the_assumption_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rigor, "failures", lambda: ("exp", "fft"))
    assumption = rigor.library_accuracy()
    assert assumption.status == "false"
    assert assumption.text.endswith("on this machine these are not: exp, fft")
