"""Adaptive clipping in specs: the count is charged, lower ends are claimed for attained data only, and refusals."""

from pathlib import Path

import pytest
import yaml
from support.attacks import audited, errors

import dpspec
from dpspec.accounting import PrivacyLoss, joint_noise_multiplier

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

TEXT = """\
dpspec: 1
name: adaptive
mechanism:
  kind: group
  noise_multiplier: 2.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 9
  clipping: {scheme: adaptive, count_std: 1.2}
data: {kind: declared, records: 100, features: 4, classes: 2}
claims:
  - {id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}
  - {id: low, kind: approx-dp, epsilon: 0.5, delta: 1e-5, expect: refuted}
"""
FIXED = "mechanism.sampling={scheme: fixed, batch_size: 10}"
FULL, FLAT = "mechanism.sampling={scheme: full}", "mechanism.clipping={scheme: flat}"
PLAIN, LEAST = "mechanism.clipping.centered=false", "threat_model.min_records=99"
REPLACED = "threat_model.adjacency=replace-one"


@pytest.mark.parametrize("centered", [True, False])
def test_the_count_is_charged(centered: bool, tmp_path: Path) -> None:
    audit = audited(tmp_path, f"mechanism.clipping.centered={str(centered).lower()}", text=TEXT)
    joint = joint_noise_multiplier(2.0, 1.2, centered=centered)
    exact = PrivacyLoss.gaussian(joint, rate=0.1).compose(9).epsilon(1e-5)
    assert audit.verdicts[0].upper == pytest.approx(exact.upper, rel=1e-4)
    constant = audited(tmp_path, FLAT, text=TEXT)
    assert constant.verdicts[0].upper is not None
    assert constant.verdicts[0].upper < exact.lower


@pytest.mark.parametrize(
    ("overrides", "refuted"),
    [
        ((), True),
        ((LEAST,), False),  # other records hide the count
        ((PLAIN,), False),
        ((FULL, LEAST), True),
        ((FIXED, LEAST), True),
        ((FIXED, LEAST, PLAIN), False),
        ((REPLACED,), True),
        ((REPLACED, FULL, LEAST), True),
        (("mechanism.sampling={scheme: random-allocation, epoch_steps: 3}",), True),
    ],
)
def test_lower_ends_need_data_that_attain_them(overrides: tuple[str, ...], refuted: bool, tmp_path: Path) -> None:
    one, low = audited(tmp_path, *overrides, text=TEXT).verdicts
    assert one.verdict == "proved"
    assert low.verdict == ("refuted" if refuted else "open")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), None),
        ((FLAT,), None),
        (("mechanism.clipping={scheme: adaptive}",), "missing key 'count_std'"),
        (("mechanism.clipping={scheme: flat, count_std: 2}",), "count_std applies to scheme: adaptive only"),
        (("mechanism.clipping.count_std=0",), "count_std"),
        (("threat_model.adjacency=zero-out",), "covers add-remove adjacency only, not zero-out"),
        ((FULL, "threat_model.adjacency=zero-out"), "covers add-remove adjacency only, not zero-out"),
        (("claims.0.adjacency=zero-out",), "covers add-remove adjacency only, not zero-out"),
        ((FLAT, "threat_model.adjacency=zero-out"), None),
        (("mechanism.clipping.scheme=automatic",), "automatic"),
        (
            (
                "audit={method: one-run, canary: {space: gradient, count: 16}}",
                "data={kind: synthetic, records: 60, features: 20}",
                "model={kind: linear}",
            ),
            "no backend here trains with adaptive clipping",
        ),
    ],
)
def test_what_is_not_covered_is_refused(overrides: tuple[str, ...], words: str | None, tmp_path: Path) -> None:
    found = errors(tmp_path, *overrides, text=TEXT)
    assert any(words in message for message in found) if words else found == []


LAYERS = {
    "dpspec": 1,
    "name": "layers",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "poisson", "rate": 0.2},
        "steps": 15,
        "clipping": {"scheme": "per-layer"},
    },
    "data": {"kind": "synthetic", "records": 80, "features": 6, "classes": 3},
    "model": {"kind": "mlp", "hidden": [8]},
    "claims": [{"id": "one", "kind": "approx-dp", "epsilon": 40.0, "delta": 1e-5}],
    "audit": {"method": "one-run", "canary": {"space": "input", "kind": "mislabelled", "count": 16}},
}


def test_runs_with_a_clip_norm_for_each_layer_conform_and_have_the_flat_bound() -> None:
    flat = {**LAYERS, "mechanism": {**LAYERS["mechanism"], "clipping": {"scheme": "flat"}}}
    layers, constant = (dpspec.run(spec).audits[0] for spec in (LAYERS, flat))
    assert layers.conformance.status == "no-deviation-found"
    assert layers.verdicts[0].upper == constant.verdicts[0].upper
    assert layers.trials[0].key != constant.trials[0].key


def test_clipping_per_layer_is_refused_where_it_is_not_executed_or_not_covered(tmp_path: Path) -> None:
    text = yaml.safe_dump(LAYERS)
    other = errors(tmp_path, "training.backend=opacus", text=text)
    assert any("does not clip each layer" in error for error in other)
    capped = errors(tmp_path, "mechanism.sampling={scheme: truncated-poisson, rate: 0.2, max_batch: 30}", text=text)
    assert any("no bound covers max_batch with clipping per layer" in error for error in capped)
