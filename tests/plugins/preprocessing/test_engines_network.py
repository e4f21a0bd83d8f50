"""Networks behind a pre-processing: trained by a backend as declared, bounded by group privacy, which is said."""

import math
from pathlib import Path

import numpy as np
import pytest
from support import specs

from dpspec.accounting import gaussian
from dpspec.contract import FrozenMap
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec_preprocessing import bounds
from dpspec_preprocessing.engines import NetworkEngine, NoiseTally
from dpspec_preprocessing.private import PrivateMechanism, rdp_slope

BASE = """\
dpspec: 1
name: network
mechanism:
  kind: preprocessing
  pipeline: [{deduplicate: 0.01}]
  private: {kind: dp-gd, eps_noise: 0.5, steps: 6, loss: cross-entropy, lipschitz: 0.8}
  collection: {max_ball: 20, max_cluster: 3}
  clip_rows: true
data: {kind: synthetic, pattern: blobs, records: 200, features: 6, classes: 3, seed: 4, split: {test: 60}}
model: {kind: mlp, hidden: [5]}
training: {learning_rate: 0.7}
threat_model: {adjacency: replace-one}
claims:
  - {id: one, kind: approx-dp, epsilon: 1e4, delta: 1e-5, over: collection}
audit: {method: many-run, runs: 2, repeats: 20, seed: 3}
"""


def audited(tmp_path: Path, *overrides: str) -> AuditResult:
    return specs.audited(tmp_path, BASE, *overrides)


def network(tmp_path: Path, kind: str) -> NetworkEngine:
    catalog, spec = load_catalog(), specs.spec_of(tmp_path, BASE)
    context = RunContext(prepare(spec, catalog), catalog, FrozenMap({}), device="cpu")
    m = PrivateMechanism(kind=kind, noise=0.5, records=200, lipschitz=0.8, steps=6, factor=4.0)
    return NetworkEngine(private=m, training=spec.training.options, context=context)


@pytest.mark.ci
@pytest.mark.usefixtures("claimed_deltas_alone")
@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("dp-gd", "{kind: dp-gd, eps_noise: 0.5, steps: 6, loss: cross-entropy, lipschitz: 0.8}"),
        ("sgd-sampled", "{kind: sgd-sampled, eps_noise: 0.5, steps: 40, loss: cross-entropy, lipschitz: 0.8}"),
    ],
)
def test_a_network_is_trained_and_has_the_group_bound(tmp_path: Path, kind: str, block: str) -> None:
    audit = audited(tmp_path, f"mechanism.private={block}")
    assert [v.verdict for v in audit.verdicts] == ["proved"]
    over = [f for f in audit.findings if f.bound == "upper" and f.scope.data == "collection"]
    assert {f.method for f in over} == {"group of 41"}
    assert {f.source for f in over} == {f"{bounds.GROUP}: {bounds.NOT_SMOOTH}"}
    if kind == "dp-gd":
        one = rdp_slope(PrivateMechanism(kind=kind, noise=0.5, records=200, lipschitz=0.8, steps=6))
        group = gaussian.epsilon_interval(math.log(1e-5), 41.0 * (2.0 * one) ** 0.5).upper
        assert next(f.value for f in over if f.at["delta"] == 1e-5) == pytest.approx(group, rel=1e-9)
    assert {f.at["split"] for f in audit.findings if f.quantity == "accuracy"} == {"train", "test"}
    released = [("steps", "measured")]
    assert [(c.assumption, c.observed) for c in audit.checks] == [*released, ("noise-scale", "reported")]
    assert audit.conformance.status == "no-deviation-found"
    spec = specs.spec_of(tmp_path, BASE, f"mechanism.private={block}")
    foreseen = prepare(spec, load_catalog()).plan().checks
    assert foreseen[-1].detectable == pytest.approx(audit.checks[-1].detectable, rel=0.02)
    assert [(c.assumption, c.observed, c.note) for c in foreseen] == [
        (c.assumption, c.observed, c.note) for c in audit.checks
    ]
    assert all(f.value <= over[0].value for f in audit.findings if f.bound == "lower")


def test_declared_smoothness_brings_the_smooth_bound_back(tmp_path: Path) -> None:
    audit = audited(tmp_path, "mechanism.private.smooth=0.001", "audit=null")
    assert "smooth Renyi" in {f.method for f in audit.findings if f.scope.data == "collection"}


@pytest.mark.family
@pytest.mark.parametrize("kind", ["dp-gd", "sgd-sampled"])
def test_the_backend_adds_the_noise_that_is_declared(tmp_path: Path, kind: str) -> None:
    found = network(tmp_path, kind)
    x, y, tally = np.zeros((200, 6)), np.zeros(200, dtype=np.int64), NoiseTally()
    quiet = found.execute_without_noise(x, y)
    outputs = np.array(list(found.execute([x], y, [0] * 200, np.random.default_rng(1), tally)))
    assert tally.count == 200 * 6 * len(quiet)
    assert tally.squares / tally.count == pytest.approx(1.0, rel=0.02)
    # The first layer's 30 weights see nothing but zeros: noise alone moves them, by 0.7 sigma in each of six steps.
    spread = float(np.sqrt(outputs[:, :30].var(axis=0).mean()))
    assert spread == pytest.approx(0.7 * found.private.sigma * np.sqrt(6.0), rel=0.05)


def test_parameters_out_of_range_are_kept_finite(tmp_path: Path) -> None:
    found = network(tmp_path, "dp-gd")
    wild = NetworkEngine(
        private=found.private, training=FrozenMap({**found.training, "learning_rate": 1e38}), context=found.context
    )
    outputs = list(
        wild.execute([np.ones((200, 6))], np.zeros(200, dtype=np.int64), [0], np.random.default_rng(1), NoiseTally())
    )
    assert np.isfinite(outputs).all()
