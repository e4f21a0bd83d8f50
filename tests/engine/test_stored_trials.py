"""Where trials were made, and what is said of those that were made in several ways."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import counting

from dpspec.contract import FrozenMap
from dpspec.contract.catalog import Catalog
from dpspec.contract.frozen import canonical_json, digest
from dpspec.engine.results.result import Result, TrialRecord
from dpspec.engine.running.runner import run
from dpspec.engine.running.tasks import gpu_name
from dpspec.engine.storage.stored_trials import mixture_notices
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import UsageError


def made(**recorded: str | None) -> TrialRecord:
    return TrialRecord(index=0, key="", evidence=FrozenMap(), recorded=FrozenMap(recorded))


def test_a_gpu_is_named_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda": "NVIDIA H200", "cuda:1": "NVIDIA L4"}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    assert [gpu_name(device) for device in ("cuda", "cuda:1", "cpu", None)] == ["NVIDIA H200", "NVIDIA L4", None, None]


def test_trials_of_different_gpus_are_told_of() -> None:
    h200 = made(device="cuda:0", gpu="NVIDIA H200", dpspec="0.2.0")
    assert mixture_notices([h200, made(device="cuda:1", gpu="NVIDIA H200", dpspec="0.2.0")]) == []
    assert mixture_notices([h200, made(device="cuda:0", gpu="NVIDIA L4", dpspec="0.2.0")]) == [
        "its trials have different gpu: NVIDIA H200, NVIDIA L4"
    ]
    assert mixture_notices([h200, made(device="cpu", dpspec="0.2.0")]) == [
        "its trials have different device: cpu, cuda"
    ]


def revised(**revisions: int) -> Catalog:
    """The catalog with other trial revisions, by the family of what offers them."""
    catalog = counting.catalog()
    for family, revision in revisions.items():
        offers = getattr(catalog, family)
        changed = {
            name: dataclasses.replace(one, provider=dataclasses.replace(one.provider, trial_revision=revision))
            for name, one in offers.items()
        }
        catalog = dataclasses.replace(catalog, **{family: FrozenMap(changed)})
    return catalog


@pytest.fixture
def made_1(tmp_path: Path) -> Callable[[Catalog], Result]:
    return lambda catalog: run(counting.load(tmp_path, known=catalog), catalog, store=Store(tmp_path / "store"))


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"mechanisms": 1}, {"mechanisms": 4}, [("mechanism", "revision 1", "revision 4")]),
        (
            {"mechanisms": 2, "backends": 3},
            {"mechanisms": 3, "backends": 1},
            [("mechanism", "revision 2", "revision 3"), ("backend", "revision 3", "revision 1")],
        ),
    ],
)
def test_a_line_for_every_plugin_that_was_revised(made_1, then, now, told) -> None:
    found = verify(made_1(revised(**then)), revised(**now))
    assert all(one.what.startswith("5 trials, ") and one.differs for one in found)
    said = {(one.what.split()[2], one.recorded, one.recomputed) for one in found}
    assert len(found) == len(told)
    for part, before, after in told:
        assert any(p == part and before in a and after in b for p, a, b in said)


@pytest.mark.parametrize(("now", "lines"), [(1, []), (2, ["5 trials, key"])])
def test_a_record_that_names_no_revision_is_compared_with_what_is_installed(made_1, now: int, lines: list[str]) -> None:
    """As those of version 0.1.0: which revision made_1 them is not said, only that it was another one."""
    result = made_1(counting.catalog())
    (audit,) = result.audits
    old = tuple(
        dataclasses.replace(trial, recorded=FrozenMap({k: v for k, v in trial.recorded.items() if k != "by"}))
        for trial in audit.trials
    )
    edited = dataclasses.replace(result, audits=(dataclasses.replace(audit, trials=old),))
    assert [one.what for one in verify(edited, revised(mechanisms=now)) if one.differs] == lines


def test_an_error_from_trials_of_the_store_names_the_command_that_removes_them(tmp_path: Path) -> None:
    """A record with a valid digest that the mechanism cannot evaluate."""
    specs, catalog, store = counting.load(tmp_path), counting.catalog(), tmp_path / "store"
    result = run(specs, catalog, store=Store(store))
    for file in store.rglob("record.json"):
        body = json.loads(file.read_text(encoding="utf-8"))
        del body["digest"]
        body["evidence"]["hits"] = "many"
        body["recorded"]["spec"] = "first use"
        file.write_text(canonical_json({**body, "digest": digest(body)}), encoding="utf-8")
    removes = r"5 of its trials are from the store: `dpspec cache rm 'first use'` removes them"
    with pytest.raises(UsageError, match=rf"^coin: nothing follows from its trials \(TypeError: .*\); {removes}$"):
        run(specs, catalog, store=Store(store))
    for key in list(Store(store).keys()):
        Store(store).remove(key)
    assert run(specs, catalog, store=Store(store)).audits[0].verdicts == result.audits[0].verdicts
