"""Kinds of canaries and scores of plugins that do what they should not: told as theirs, and no coin reaches them."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.attack_spec import SCORED, SPEC

from dpspec.contract import Check, Evidence, FrozenMap
from dpspec.contract.attacks import Records
from dpspec.contract.catalog import Catalog
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.errors import PluginError
from dpspec.language.load import load_specs
from dpspec.registry.loader import Candidate, build, discover

HEAD = """\
import numpy as np
import dpspec.contract as dps
from dpspec.contract.attacks import Canary, Records, Score
DPSPEC_API = 1
@dps.hookimpl
def dpspec_attacks():
    yield Canary(kind="odd", summary="Odd.", space={space!r}, make=__name__ + ":make", reads_data={reads})
    yield Score(kind="odd", summary="Odd.", score=__name__ + ":score", learns={learns})
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunContext]]:
    """What an audit with a plugin of this text hands to its mechanism."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def context(body: str, *, space: str = "input", reads: bool = True, learns: bool = False) -> RunContext:
        head = HEAD.format(space=space, reads=reads, learns=learns)
        (tmp_path / "odd_attack.py").write_text(head + body, encoding="utf-8")
        candidates, _ = discover()
        mine = Candidate(distribution="dpspec-odd", version="2.0", plugin="odd", value="odd_attack")
        catalog: Catalog = build([*(c for c in candidates if c.distribution == "dpspec"), mine]).catalog
        assert not catalog.broken
        changes = {
            "canary: {space: input, kind: upside-down, share: 0.8,": f"canary: {{space: {space}, kind: odd,",
            SCORED: "score: odd" if space == "input" else "runs: 1",
        }
        text = SPEC
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / "odd.yaml").write_text(text, encoding="utf-8")
        loaded = load_specs([tmp_path / "odd.yaml"], catalog)
        assert loaded.ok, loaded.diagnostics
        prepared = prepare(loaded.specs[0], catalog)
        assert not [d for d in prepared.diagnostics if d.severity == "error"], prepared.diagnostics
        return RunContext(prepared, catalog, prepared.trial_inputs(), device="cpu")

    yield context
    sys.modules.pop("odd_attack", None)


GOOD = "Records(np.zeros((asked.count, 40), dtype=np.float32), np.zeros(asked.count, dtype=np.int64))"


@pytest.mark.parametrize(
    "made",
    [
        "None",
        GOOD.replace("40", "41"),
        GOOD.replace("np.zeros((", "np.nan * np.ones(("),
        GOOD.replace("np.zeros(asked.count, d", "7 + np.zeros(asked.count, d"),
    ],
)
def test_records_that_are_not_what_was_asked_for_are_told_as_theirs(odd, made: str) -> None:
    says = r"canary 'odd' of dpspec-odd 2\.0: make\(\) does not return 4 finite records of shape \(40,\) with labels 0"
    with pytest.raises(PluginError, match=says):
        odd(f"def make(asked):\n    return {made}\n").attack.records(4, 1)


def test_rows_are_not_given_to_kinds_that_do_not_ask(odd) -> None:
    body = "def make(asked):\n    assert asked.x is None and asked.y is None\n    return " + GOOD + "\n"
    assert isinstance(odd(body, reads=False).attack.records(4, 1), Records)


def test_rows_cannot_be_written_to(odd) -> None:
    with pytest.raises(ValueError, match="read-only"):
        odd("def make(asked):\n    asked.x[0] = 1\n").attack.records(4, 1)


@pytest.mark.family
@pytest.mark.parametrize("scored", ["np.full(len(observed.copies), np.nan)", "np.zeros(3)", "'high'"])
def test_scores_that_are_no_numbers_are_told_as_theirs(odd, scored: str) -> None:
    context = odd(f"def make(asked):\n    return {GOOD}\ndef score(observed):\n    return {scored}\n")
    (indices,) = [context.prepared.plan().chunks[0]]
    with pytest.raises(PluginError, match=r"score 'odd' of dpspec-odd 2\.0: score\(\) does not return 60 finite"):
        list(context.prepared.audit.trials(context.inputs, context, indices))


@pytest.mark.ci
def test_a_score_is_given_its_own_options_and_only_one_that_has_some_has_a_block(odd) -> None:
    """What is left out is filled in, and is part of a trial; scores without keys leave trials' inputs as they were."""
    context = odd(KEEPING)
    assert "scoring" not in context.inputs["audit"]
    place = Path(context.directory) / "refused.yaml"
    text = (place.parent / "odd.yaml").read_text(encoding="utf-8")
    place.write_text(text.replace("score: odd", "score: odd\n  scoring: {points: 3}"), encoding="utf-8")
    (reported,) = load_specs([place], context._catalog).diagnostics
    assert (reported.code, reported.path) == ("unknown-key", ("audit", "scoring"))
    catalog = context._catalog
    points = {"type": "integer", "default": 8, "description": "How many."}
    schema = {"type": "object", "properties": {"points": points}, "additionalProperties": False}
    offered = catalog.scores["odd"]
    keyed = replace(offered, provider=replace(offered.provider, schema=schema))
    changed = replace(catalog, scores={**catalog.scores, "odd": keyed})
    for where, asked in ((place, 3), (place.parent / "odd.yaml", 8)):
        prepared = prepare(load_specs([where], changed).specs[0], changed)
        inputs = prepared.trial_inputs()
        assert inputs["audit"]["scoring"] == {"points": asked}
        context = RunContext(prepared, changed, inputs, device="cpu")
        list(context.prepared.audit.trials(context.inputs, context, context.prepared.plan().chunks[0]))
        assert sys.modules["odd_attack"].SEEN[-1].options == {"points": asked}


KEEPING = f"""\
SEEN = []
def make(asked):
    return {GOOD}
def score(observed):
    SEEN.append(observed)
    return observed.after
"""


@pytest.mark.family
@pytest.mark.parametrize("learns", [False, True])
def test_no_coin_that_is_guessed_reaches_a_score(odd, learns: bool) -> None:
    """Half of the canaries are taught where a score learns, and none otherwise; the job holds the real rows alone."""
    context = odd(KEEPING, learns=learns)
    (trial,) = context.prepared.audit.trials(context.inputs, context, context.prepared.plan().chunks[0])
    (seen,) = sys.modules["odd_attack"].SEEN
    known = seen.coins >= 0
    assert int(known.sum()) == (30 if learns else 0)
    assert np.array_equal(seen.coins[known], trial.arrays["coins"][known])
    assert [len(coins) for _, coins in trial.evidence["outcomes"]] == [30 if learns else 60]
    assert len(seen.job.x) == 60
    assert (seen.job.seed, seen.job.observers, seen.job.cancelled, seen.job.resumable) == (0, (), None, None)
    assert not seen.before.flags.writeable


def test_keys_follow_the_plugin_and_seeds_do_not(odd) -> None:
    """What was installed made the trials; canaries of dpspec's own leave keys as they were."""
    context = odd(KEEPING)
    assert set(context.prepared.revisions) == {"mechanism", "data", "backend", "model", "canary", "score"}
    own = SPEC.replace("kind: upside-down, share: 0.8,", "kind: noise,").replace(SCORED, "score: loss")
    place = Path(context.directory) / "own.yaml"
    place.write_text(own, encoding="utf-8")
    catalog = context._catalog
    prepared = prepare(load_specs([place], catalog).specs[0], catalog)
    assert set(prepared.revisions) == {"mechanism", "data", "backend", "model"}


DENSE = """\
def make(asked):
    rows = np.random.default_rng(asked.seed).normal(size=(asked.facts.parameters, asked.count))
    return np.linalg.qr(rows)[0].T.astype(np.float32)
"""


@pytest.mark.ci
def test_directions_of_others_are_planted_found_and_conform(odd) -> None:
    """With noise 0.05 a step, every canary that was planted is told from those that were not."""
    context = odd(DENSE, space="gradient")
    (trial,) = context.prepared.audit.trials(context.inputs, context, context.prepared.plan().chunks[0])
    ((_, ordered),) = trial.evidence["outcomes"]
    assert ordered == "".join(sorted(ordered))
    outcomes = list(context.prepared.audit.conclude(context.prepared.spec, [trial]))
    assert [o for o in outcomes if isinstance(o, Evidence)]
    checks = [o for o in outcomes if isinstance(o, Check)]
    assert len(checks) > 10
    assert min(check.p_value for check in checks) > 1e-6


COUNTING = """\
import torch
class Counting:
    block = 4
    def __init__(self, asked):
        self.parameters, self.count, self.times = asked.facts.parameters, asked.count, torch.zeros(asked.count)
    def supports(self, indices):
        self.times[indices] += 1.0
        return indices[:, None] * 4 + torch.arange(4), torch.full((len(indices), 4), 0.5)
    def directions(self, indices):
        return torch.zeros(len(indices), self.parameters).scatter_(1, *self.supports(indices))
    def project(self, vector):
        return 1e6 * self.times
def make(asked):
    return Counting(asked)
"""


@pytest.mark.ci
def test_directions_that_hold_themselves_learn_no_coin(odd) -> None:
    """Canaries that are planted are looked up while a model is trained: an object that counts how often would
    guess every coin, through noise that hides them all."""
    context = odd(COUNTING, space="gradient")
    inputs = FrozenMap({**context.inputs, "mechanism": {**context.inputs["mechanism"], "noise_multiplier": 1e3}})
    (trial,) = context.prepared.audit.trials(inputs, context, context.prepared.plan().chunks[0])
    ((_, ordered),) = trial.evidence["outcomes"]
    assert len(ordered) == 60
    assert ordered != "".join(sorted(ordered))


def rows(text: str) -> str:
    return f"def make(asked):\n    return {text}\n"


LENGTHS, DIRECTIONS = "not of length one, or not orthogonal", "make() does not return 4 directions among"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (rows("np.ones((asked.count, 3), dtype=np.float32)"), "returns float32 of shape (4, 3), not float32 of"),
        (rows("2 * np.eye(asked.count, asked.facts.parameters)"), LENGTHS),
        (rows("np.nan * np.eye(asked.count, asked.facts.parameters)"), LENGTHS),
        *(
            (COUNTING.replace(before, after, 1), says)
            for before, after, says in (
                ("0.5)", "0.6)", LENGTHS),
                ("[:, None] * 4", "[:, None] * 3", LENGTHS),
                ("torch.arange(4),", "torch.zeros(4, dtype=torch.int64),", LENGTHS),
                ("[:, None] * 4", "[:, None] * 4000", DIRECTIONS),
                ("asked.count, torch.zeros", "3, torch.zeros", DIRECTIONS),
                ("0.5)", "float('nan'))", DIRECTIONS),
            )
        ),
    ],
)
def test_directions_that_are_not_orthonormal_are_refused(odd, body: str, says: str) -> None:
    context = odd(body, space="gradient")
    with pytest.raises(PluginError, match=r"canary 'odd' of dpspec-odd 2\.0: ") as raised:
        context.attack.directions(4, 1)
    assert says in str(raised.value)


def errors(path: Path, catalog: Catalog) -> list[tuple[tuple[object, ...], str]]:
    found = prepare(load_specs([path], catalog).specs[0], catalog).diagnostics
    return [(error.path, error.message) for error in found if error.severity == "error"]


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ("spread: 0.1, count: 60", "spread", "spread applies to orthogonal gradient canaries"),
        ("count: 600000", "count", "count must be at most 690"),
    ],
)
def test_what_dense_directions_cannot_do_is_refused(odd, change: str, key: str, says: str) -> None:
    context = odd(DENSE, space="gradient")
    place = Path(context.directory) / "refused.yaml"
    place.write_text((place.parent / "odd.yaml").read_text().replace("count: 60", change), encoding="utf-8")
    ((path, message),) = errors(place, context._catalog)
    assert path == ("audit", "canary", key)
    assert says in message


@pytest.mark.parametrize(
    ("limit", "says"), [("(7, 'there are seven')", ["count must be at most 7, got 60: there are seven"]), ("None", [])]
)
def test_a_limit_is_told_before_anything_is_made(odd, limit: str, says: list[str]) -> None:
    context = odd(f"def make(asked):\n    return None\ndef limit(facts, options):\n    return {limit}\n")
    offered = context._catalog.canaries["odd"]
    limited = replace(offered, provider=replace(offered.provider, limit="odd_attack:limit"))
    changed = replace(context._catalog, canaries={**context._catalog.canaries, "odd": limited})
    assert [message for _, message in errors(Path(context.directory) / "odd.yaml", changed)] == says
