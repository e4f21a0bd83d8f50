"""The keys of trials are frozen, so that stores of earlier versions are found.

To write ``keys.json`` again, run this file with DPSPEC_UPDATE_GOLDEN=1 set, and read the difference.
"""

import json
import os
from pathlib import Path

import pytest

from dpspec.contract.frozen import digest
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.preparing.trial_keys import TrialKeys
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

ROOT = Path(__file__).parents[2]
KEYS = Path(__file__).parent / "keys.json"
FROZEN = json.loads(KEYS.read_text(encoding="utf-8"))

#: Folders of specs that are parents, invalid, or need other data or plugins.
SKIPPED = {"invalid", "base", "mnist", "cifar", "controls", "opacus"}


def shipped() -> list[str]:
    """The specs of what dpspec itself ships."""
    names = sorted(path.relative_to(ROOT) for path in (ROOT / "specs").rglob("*.yaml"))
    return [str(path) for path in names if "mnist" not in path.name and not SKIPPED & set(path.parts)]


def trial_keys(path: str) -> dict[str, list[str]]:
    """The first trial's key and a digest of all keys, by audit. Trains nothing."""
    catalog = load_catalog()
    keys: dict[str, list[str]] = {}
    for spec in load_specs([ROOT / path], catalog).specs:
        prepared = prepare(spec, catalog)
        if spec.audit is None or any(d.severity == "error" for d in prepared.diagnostics):
            continue
        inputs = prepared.trial_inputs()
        found = [
            TrialKeys(inputs, prepared.facts, prepared.revisions).of(chunk, index)
            for chunk in prepared.plan().chunks
            for index in chunk
        ]
        keys[spec.name] = [found[0], digest(found)]
    return keys


@pytest.mark.family
@pytest.mark.parametrize("path", sorted(FROZEN))
def test_trials_keep_their_keys(path: str) -> None:
    why = "stores of earlier versions are lost: only a new trial_revision may do that, and the CHANGELOG says so"
    assert trial_keys(path) == FROZEN[path], why


def test_every_spec_that_trains_is_frozen() -> None:
    if os.environ.get("DPSPEC_UPDATE_GOLDEN"):
        keys = {path: found for path in shipped() if (found := trial_keys(path))}
        KEYS.write_text(json.dumps(keys, indent=1) + "\n", encoding="utf-8")
    assert {path for path in shipped() if "\naudit:" in (ROOT / path).read_text(encoding="utf-8")} <= set(FROZEN)
