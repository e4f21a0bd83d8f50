"""A run, its end in the middle, and its resume, whatever the store is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import counting

from dpspec.contract import Spec
from dpspec.contract.events import Event, Noticed
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verification.verify import verify
from dpspec.language.load import load_specs


@pytest.fixture
def specs(tmp_path: Path) -> tuple[Spec, ...]:
    (tmp_path / "coin.yaml").write_text(counting.EXAMPLE, encoding="utf-8")
    return load_specs([tmp_path / "coin.yaml"], counting.catalog()).specs


@pytest.fixture
def audited(specs: tuple[Spec, ...], location: str) -> Callable[..., Result]:
    def audit(*listeners: Callable[[Event], None]) -> Result:
        return run(specs, counting.catalog(), store=Store(location), listeners=listeners)

    return audit


def test_a_run_that_was_killed_goes_on(audited: Callable[..., Result], location: str) -> None:
    def die(index: int) -> None:
        if index == 3:
            raise KeyboardInterrupt

    counting.HOOKS.append(die)
    with pytest.raises(KeyboardInterrupt):
        audited()
    counting.HOOKS.clear()
    result = audited()
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert verify(result, counting.catalog(), store=Store(location)) == ()
    again = audited()
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert again.audits[0].trials == result.audits[0].trials
    assert {entry.spec for entry in Store(location).entries()} == {"coin"}
    assert {entry.kind for entry in Store(location).entries()} == {"counting"}


def test_what_was_damaged_meanwhile_is_told_and_made_again(audited: Callable[..., Result], location: str) -> None:
    import fsspec

    first = audited()
    files, root = fsspec.core.url_to_fs(location, use_listings_cache=False)
    key = first.audits[0].trials[2].key
    record = f"{root}/trials/{key[:2]}/{key}/record.json"
    files.pipe_file(record, files.cat_file(record).replace(b'"hits":', b'"hits":1'))
    counting.RAN.clear()
    told: list[Event] = []
    again = audited(told.append)
    assert counting.RAN == [2]
    assert sum(isinstance(event, Noticed) and "damaged" in event.message for event in told) == 1
    assert again.audits[0].verdicts == first.audits[0].verdicts
    assert [t.evidence for t in again.audits[0].trials] == [t.evidence for t in first.audits[0].trials]
