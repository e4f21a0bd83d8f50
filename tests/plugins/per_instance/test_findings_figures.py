"""The substitute for the paper's experiment, as it ships, against another program's run of it."""

from pathlib import Path

import numpy as np
import pytest
from support import specs

from dpspec.contract.results import AuditResult

SPEC = Path(__file__).parents[3] / "specs" / "papers" / "thudi-digits.yaml"

#: Mean ratios before steps 1, 101, 201, 301 and 391 of the reference run, by order.
RATIOS = {2.0: (1.295, 0.535, 0.367, 0.308, 0.304), 8.0: (2.028, 0.830, 0.515, 0.384, 0.352)}
STEPS = (1, 101, 201, 301, 391)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """As it ships, except that the mean rule is estimated from 6 batches instead of 20."""
    store = tmp_path_factory.mktemp("shipped") / "store"
    return specs.audit_of(SPEC, store, "mechanism.step_bound=theorem", "audit.mean_rule.outer=6")


@pytest.mark.ci
def test_the_reference_run_is_met(shipped: AuditResult) -> None:
    tables = {series.name: series.columns for series in shipped.series}
    ratio = tables["ratio-over-training"]
    found = {
        (alpha, step): mean for step, alpha, mean in zip(ratio["step"], ratio["order"], ratio["mean"], strict=True)
    }
    for alpha, values in RATIOS.items():
        for step, value in zip(STEPS, values, strict=True):
            assert found[alpha, step] == pytest.approx(value, rel=0.15)
    shipped_values = {(f.quantity, f.at.get("fraction")): f.value for f in shipped.findings if f.rigor == "approximate"}
    rdp = next(f.value for f in shipped.findings if f.method.startswith("rdp"))
    assert rdp == pytest.approx(10.039, rel=1e-3)
    assert shipped_values["epsilon_by_rdp", 0.5] == pytest.approx(7.401, rel=0.075)
    assert shipped_values["epsilon_by_rdp", 0.5] < rdp
    assert shipped_values["share_below_data_independent", None] == pytest.approx(0.70, abs=0.08)
    records = tables["records"]
    assert float(np.median(records["estimate_add"])) == pytest.approx(7.401, rel=0.15)
    assert float(np.quantile(records["estimate_add"], 0.1)) == pytest.approx(5.520, rel=0.15)


@pytest.mark.ci
def test_what_counts_as_reproduced_for_sums(shipped: AuditResult) -> None:
    """All records saturated at first, ratios falling, right records below half of wrong ones."""
    tables = {series.name: series.columns for series in shipped.series}
    stages = tables["right-against-wrong"]
    for order, values in RATIOS.items():
        places = [i for i, o in enumerate(stages["order"]) if o == order]
        added = [stages["added"][i] for i in places]
        assert added == pytest.approx(values, rel=0.15)
        assert added == sorted(added, reverse=True)
        assert stages["median"][places[0]] == 1.0
        assert all(stages["right"][i] < 0.5 * stages["wrong"][i] for i in places[1:])
