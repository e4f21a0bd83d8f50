"""Many runs shared out in blocks, ``audit.shard_runs``, of ``group`` and ``rero``; and two workers of three kinds."""

from pathlib import Path

import pytest
from support.specs import ON_CPU, spec_of

from dpspec import kit
from dpspec.contract.frozen import canonical_json
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.preparing.trial_keys import TrialKeys
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog

GROUP = """\
dpspec: 1
name: shared-group
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 0.5, sampling: {scheme: poisson, rate: 0.3}, steps: 4}
data: {kind: synthetic, records: 40, features: 6, classes: 3, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
claims: [{id: one, kind: approx-dp, epsilon: 90.0, delta: 1e-5}]
audit: {method: many-run, runs: 20, canary: {space: gradient, kind: orthogonal, count: 1}, seed: 3}
"""

RERO = f"""{GROUP.replace("group", "rero").partition("claims")[0]}\
threat_model: {{prior: {{candidates: 8}}}}
claims: [{{id: one-of-eight, kind: rero, kappa: 0.125, gamma: 0.9}}]
audit: {{method: many-run, runs: 20, seed: 3}}
"""

SHARED = "audit.shard_runs=8"


def prepared(folder: Path, text: str, *overrides: str) -> Prepared:
    return prepare(spec_of(folder, text, *overrides), load_catalog())


@pytest.mark.parametrize("text", [GROUP, RERO])
def test_blocks_are_tasks_of_their_own_and_draw_what_they_drew(tmp_path: Path, text: str) -> None:
    plain, shared = prepared(tmp_path, text), prepared(tmp_path, text, SHARED)
    chunks = [p.plan().chunks for p in (plain, shared)]
    assert chunks == [kit.chunks(20, 20), kit.chunks(20, 8)]
    assert prepared(tmp_path, text, "audit.shard_runs=1000").plan().chunks == chunks[0]
    inputs = [p.trial_inputs() for p in (plain, shared)]
    assert inputs[0] == inputs[1]
    one, two = (
        TrialKeys(i, p.facts, p.revisions).of(of_plan[0], 0)
        for i, p, of_plan in zip(inputs, (plain, shared), chunks, strict=True)
    )
    assert one != two  # runs of one batch share their rounding
    contexts = [RunContext(p, load_catalog(), i, device="cpu") for i, p in zip(inputs, (plain, shared), strict=True)]
    assert contexts[0].seed(9, "training") == contexts[1].seed(9, "training")


def results_of(folder: Path, *overrides: str, store: str, options: RunOptions | None = None) -> list[str]:
    specs = [spec_of(folder, text, *overrides) for text in (GROUP, RERO)]
    result = run(specs, load_catalog(), store=Store(folder / store), options=options or ON_CPU)
    return [
        canonical_json({"trials": [[t.key, t.evidence, t.arrays] for t in audit.trials]}) + repr(audit.findings)
        for audit in result.audits
    ]


@pytest.mark.ci
def test_two_workers_find_what_one_process_does(tmp_path: Path) -> None:
    two = RunOptions(executor="local", workers=2, threads=1, device="cpu")
    assert results_of(tmp_path, SHARED, store="two", options=two) == results_of(tmp_path, SHARED, store="one")


def test_plans_say_what_could_be_shared_out() -> None:
    assert kit.shard_notes(64, 1, 7200.0) == (
        "All 64 runs are trained together and take some 2.0 hours of one core: audit.shard_runs: 32 shares them out "
        "among 2 tasks.",
    )
    assert kit.shard_notes(64, 2, 7200.0) == kit.shard_notes(64, 1, 30.0) == kit.shard_notes(40, 1, 7200.0) == ()
