"""Trials of a chunk have the same bits, whichever of them the store lacks."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.record_files import unbundle

from dpspec.contract import Plan, Spec
from dpspec.contract.frozen import canonical_json
from dpspec.contract.results import Result
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

SPECS = Path(__file__).parents[2] / "specs"

#: A spec of every mechanism whose chunks hold several trials, made short.
CASES = {
    "group": ("attacks/many-runs.yaml", "audit.runs=17"),
    "group, input canaries": (
        "attacks/many-runs.yaml",
        "audit.runs=16",
        "audit.canary={space: input, kind: mislabelled}",
        "threat_model.access=final-model",
    ),
    "per-instance": (
        "per-instance/attack.yaml",
        "audit.attack.runs=3",
        "data.size=60",
        "mechanism.steps=6",
        "mechanism.sampling={scheme: poisson, rate: 0.3}",
    ),
    "rero": ("rero/digits.yaml", "audit.runs=7", "mechanism.steps=3", "data.size=100"),
    "preprocessing": ("preprocessing/dedup-side-channel.yaml", "audit.repeats=20"),
    "preprocessing, network": (
        "preprocessing/network.yaml",
        "audit.runs=3",
        "audit.repeats=6",
        "mechanism.private.steps=5",
    ),
}


@pytest.fixture(params=sorted(CASES))
def spec(request: pytest.FixtureRequest) -> Spec:
    file, *overrides = CASES[request.param]
    loaded = load_specs([SPECS / file], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    return loaded.specs[0]


def plan(spec: Spec) -> Plan:
    return prepare(spec, load_catalog()).plan()


def files(store: Store) -> Iterator[tuple[str, bytes]]:
    unbundle(Path(store.location))
    for record in sorted(Path(store.location).glob("trials/*/*")):
        key = record.name
        stored = store.get(key)
        assert stored is not None
        yield key, canonical_json({"evidence": stored.record.evidence, "arrays": stored.record.arrays}).encode()


@pytest.mark.ci
def test_whatever_is_missing_of_a_chunk(spec: Spec, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def audited() -> Result:
        return run([spec], load_catalog(), store=store, device="cpu")

    whole = audited()
    chunks = plan(spec).chunks
    assert max(map(len, chunks)) > 1
    first = dict(files(store))
    keys = {trial.index: trial.key for trial in whole.audits[0].trials}
    draw = random.Random(5)
    for number in (1, len(keys) // 2):
        for index in draw.sample(sorted(keys), number):
            shutil.rmtree(Path(store.location) / "trials" / keys[index][:2] / keys[index])
        resumed = audited()
        assert dict(files(store)) == first
        assert [trial.key for trial in resumed.audits[0].trials] == [keys[index] for index in sorted(keys)]
    assert verify(whole, load_catalog(), store=store) == ()
