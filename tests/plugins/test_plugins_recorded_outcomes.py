"""Impossible outcomes of an attack are rejected, even with a valid digest."""

import copy
import functools
import json
import operator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpspec.contract import Evidence, Outcome, Spec, Trial, freeze, thaw
from dpspec.engine.preparing.prepare import prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec_per_instance.findings import lower_bounds

OLD = Path(__file__).parents[1] / "golden" / "results-0.1.0"

#: By mechanism, edits of the first trial's evidence: a path of keys, and the value.
EDITS: dict[str, list[tuple[tuple[str | int, ...], Any]]] = {
    "group": [
        (("outcomes",), []),
        (("outcomes",), "01"),
        (("outcomes", 0), [1, "01" * 500]),
        (("outcomes", 0), [2, "0110001001000101"]),
        (("outcomes", 0, 1), "2" * 16),
        (("outcomes", 1), [1, "0000000111111111"]),
        (("records",), -5),
        (("records",), "200"),
        (("records",), 10**30),
        (("records",), 10**5),  # more than batches were drawn from
        (("internal", "accuracy", "train"), {"right": 4000, "records": 40}),
        (("internal", "accuracy", "train"), {"right": 0, "records": 0}),
    ],
    "modelmix": [
        (("outcome",), ""),
        (("outcome",), "01" * 500),
        (("outcome",), "0" * 31 + "2"),
        (("internal", "gap"), {"least": 0.5, "below": 0}),
        (("internal", "gap"), {"least": 1.5, "below": 7}),
        (("internal", "gap", "below"), -7),
    ],
    "preprocessing": [
        (("coins",), "01"),
        (("coins",), "3" * 200),
        (("bins",), []),
        (("bins", 0), -1),
        (("bins", 0), 2048),
        (("records",), 0),
        (("noise", "count"), -200),
        (("noise", "squares"), -1.0),
        (("noise",), None),
        (("executed",), -1),
    ],
    "rero": [
        (("rank",), -1),
        (("rank",), 16),
        (("records",), 0),
        (("noise", "degrees"), 1),  # the other trials have all
        (("noise", "degrees"), -680),
        (("noise", "statistic"), -1e5),
        (("noise",), None),
        (("included",), [-5]),
        (("included",), [400, 5]),
        (("internal", "accuracy", "train"), {"right": 201, "records": 200}),
    ],
}


def spec_of(document: dict[str, Any], folder: Path) -> Spec:
    """Without the keys and choices of 0.1.0 that were removed since."""
    path = folder / "old.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    for found in load_specs([path], load_catalog()).diagnostics:
        if found.code in ("unknown-key", "bad-choice"):  # a choice that was renamed
            *blocks, key = found.path
            del functools.reduce(operator.getitem, blocks, document)[key]
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    (spec,) = load_specs([path], load_catalog()).specs
    return spec


def of_old(kind: str, folder: Path) -> tuple[Spec, list[Trial]]:
    (audit,) = json.loads((OLD / f"{kind}.json").read_text(encoding="utf-8"))["audits"]
    trials = [Trial(index=one["index"], evidence=freeze(one["evidence"])) for one in audit["trials"]]
    return spec_of(audit["document"], folder), trials


def concluded(spec: Spec, trials: list[Trial]) -> list[Outcome]:
    return list(prepare(spec, load_catalog()).audit.conclude(spec, trials))


def changed(evidence: Any, path: tuple[str | int, ...], value: Any) -> Any:
    copied = copy.deepcopy(evidence)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copied


@pytest.mark.parametrize("kind", EDITS)
def test_what_a_run_wrote_is_read(kind: str, tmp_path: Path) -> None:
    spec, trials = of_old(kind, tmp_path)
    assert any(isinstance(outcome, Evidence) for outcome in concluded(spec, trials))


@pytest.mark.family
@pytest.mark.parametrize(
    ("kind", "path", "value"), [(kind, path, value) for kind, edits in EDITS.items() for path, value in edits]
)
def test_what_no_run_writes_is_refused(kind: str, path: tuple[str | int, ...], value: Any, tmp_path: Path) -> None:
    spec, trials = of_old(kind, tmp_path)
    trials[0] = Trial(index=trials[0].index, evidence=freeze(changed(thaw(trials[0].evidence), path, value)))
    with pytest.raises((ValueError, TypeError)):
        concluded(spec, trials)


ATTACKED: dict[str, Any] = {
    "sizes": [60, 0],
    "outcomes": [["record 3", [[1, 2049], [0, 0], [1, 700]]], ["most exposed 1", [[0, 1], [1, 2], [0, 3]]]],
}


@pytest.mark.family
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sizes",), [0, 0]),
        (("sizes",), [-60, 0]),
        (("sizes",), [60]),
        (("sizes",), ["60", 0]),
        (("outcomes",), []),
        (("outcomes",), ATTACKED["outcomes"][:1]),
        (("outcomes",), ATTACKED["outcomes"][::-1]),
        (("outcomes", 0, 0), "record 4"),
        (("outcomes", 0, 1), []),
        (("outcomes", 0, 1), [[1, 5]] * 4),
        (("outcomes", 0, 1, 0), [2, 5]),
        (("outcomes", 0, 1, 0), [1, 2050]),
        (("outcomes", 0, 1, 0), [1, -1]),
        (("outcomes", 0, 1, 0), [1]),
        (("outcomes", 0, 1, 0), [True, 3]),
    ],
)
def test_so_it_is_of_records_that_were_attacked(path: tuple[str | int, ...], value: Any, tmp_path: Path) -> None:
    (audit,) = json.loads((OLD / "per-instance.json").read_text(encoding="utf-8"))["audits"]
    document = {**audit["document"], "audit": {**audit["document"]["audit"], "runs": 1}}
    document["audit"]["attack"] = {"most": 1, "least": 0, "records": [3], "runs": 3}
    spec = spec_of(document, tmp_path)
    found = list(lower_bounds(spec, [Trial(index=0, evidence=freeze(ATTACKED))]))
    assert sum(isinstance(outcome, Evidence) for outcome in found) == 2
    alike = changed(ATTACKED, ("outcomes", 0, 1), [[1, 5]] * 3)  # equal coins show nothing
    found = list(lower_bounds(spec, [Trial(index=0, evidence=freeze(alike))]))
    assert [outcome.id for outcome in found if isinstance(outcome, Evidence)] == ["many-run/most-exposed-1"]
    edited = Trial(index=0, evidence=freeze(changed(ATTACKED, path, value)))
    with pytest.raises(ValueError, match=r"sizes|outcomes|scores|coin|score|values"):
        list(lower_bounds(spec, [edited]))
