"""Members who are put to nothing: the bounds of those who leave, where a sum has the same law, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpspec
from dpspec.contract import Diagnostic
from dpspec.engine.preparing.prepare import check
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

SPEC = """\
dpspec: 1
name: zeroed
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: SCHEME}
  steps: 10
data: {kind: declared, records: 100, features: 4, classes: 2}
threat_model: {adjacency: zero-out, group_size: [1, 4]}
claims:
  - {id: zeroed, kind: approx-dp, epsilon: EPSILON, delta: 1e-5}
  - {id: gone, kind: approx-dp, epsilon: EPSILON, delta: 1e-5, adjacency: add-remove}
"""


def written(tmp_path: Path, scheme: str, more: str = "", epsilon: str = "9.0") -> Path:
    path = tmp_path / "zeroed.yaml"
    path.write_text(SPEC.replace("SCHEME", scheme).replace("EPSILON", epsilon) + more)
    return path


def refused(path: Path) -> list[Diagnostic]:
    loaded = load_specs([path], load_catalog())
    assert loaded.ok, loaded.diagnostics
    return [d for spec in loaded.specs for d in check(spec, load_catalog()) if "adjacency" in d.message]


@pytest.mark.parametrize("scheme", ["poisson, rate: 0.1", "full"])
def test_both_have_the_same_bounds(scheme: str, tmp_path: Path) -> None:
    (audit,) = dpspec.run(written(tmp_path, scheme, epsilon="50.0")).audits
    zeroed, gone = audit.verdicts
    assert (zeroed.verdict, gone.verdict) == ("proved", "proved")
    assert zeroed.upper == gone.upper
    assert {f.scope.adjacency for f in audit.findings} == {"zero-out", "add-remove"}


def test_batches_of_a_fixed_size_and_attacks_are_not_covered(tmp_path: Path) -> None:
    assert refused(written(tmp_path, "poisson, rate: 0.1")) == []
    assert refused(written(tmp_path, "fixed, batch_size: 10"))
    attacked = "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 40}}\n"
    assert refused(written(tmp_path, "poisson, rate: 0.1", attacked))


def test_the_sum_of_a_poisson_batch_has_the_same_law_either_way() -> None:
    """The oracle: a record that stays and adds nothing, and one that is not there, by exact enumeration."""
    rate, values = 0.3, np.array([1.0, -0.5, 0.25])

    def law(kept: np.ndarray) -> dict[float, float]:
        found: dict[float, float] = {}
        for drawn in range(2 ** len(kept)):
            chosen = np.array([(drawn >> i) & 1 for i in range(len(kept))])
            total = round(float((chosen * kept).sum()), 12)
            found[total] = found.get(total, 0.0) + float(np.prod(np.where(chosen == 1, rate, 1.0 - rate)))
        return found

    stays, gone = law(np.append(values, 0.0)), law(values)
    assert stays.keys() == gone.keys()
    assert all(stays[total] == pytest.approx(gone[total], rel=1e-12) for total in gone)
