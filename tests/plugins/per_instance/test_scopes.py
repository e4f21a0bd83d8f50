"""The scope oracle: no per-instance bound is exceeded by explicit neighbours in its scope."""

from typing import Any

import pytest
from hypothesis import strategies as st
from support import scope_oracle as oracle

from dpspec import kit
from dpspec.contract import FrozenMap
from dpspec_per_instance import PerInstanceAudit

#: In clip norms.
GRADIENTS = (0.0, 1e-20, 0.3, -0.7, 1.0, -10.0, 1e30, float("inf"), float("nan"))


@pytest.fixture(autouse=True, scope="module")
def claimed_deltas_alone() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kit, "CURVE_DELTAS", ())
        yield


def check(data: st.DataObject) -> None:
    rate = data.draw(st.sampled_from((0.05, 0.3, 0.7, 1.0)))
    clip, steps = data.draw(st.sampled_from((1e-3, 1.0, 20.0))), data.draw(st.integers(1, 2))
    sampling = {"scheme": "full"} if rate == 1.0 else {"scheme": "poisson", "rate": rate}
    phase = {
        "noise_multiplier": data.draw(st.sampled_from((0.5, 1.0, 3.0))),
        "clip_norm": clip,
        "sampling": sampling,
        "steps": steps,
    }
    delta, direction = data.draw(st.sampled_from((0.1, 1e-3))), data.draw(st.sampled_from(("add", "remove", "both")))
    mechanism = {**phase, "orders": (1.5, 2.0, 4.0, 8.0, 32.0)}
    claim = oracle.claim_of("approx-dp", direction, epsilon=1.0, delta=delta)
    spec = oracle.spec_of("per-instance", mechanism, [claim])
    others = data.draw(st.lists(st.sampled_from(GRADIENTS), min_size=0, max_size=4))
    record, worst = data.draw(st.sampled_from(GRADIENTS)), data.draw(st.booleans())
    if worst:
        others, record = [0.0] * len(others), 10.0
    absent, present = (
        oracle.laws_of(oracle.run_of([FrozenMap(phase)], [], [], [clip * g for g in rows]))
        for rows in (others, [*others, record])
    )
    seen = set()
    for quantity in ("epsilon", "step_epsilon"):
        for finding in oracle.proofs(oracle.remembered_findings_of(PerInstanceAudit(), spec, 6), quantity):
            assert finding.scope.min_records <= len(others)
            laws = (absent[:1], present[:1]) if quantity == "step_epsilon" else (absent, present)
            found = oracle.worst_delta(finding, *laws)
            seen.add(finding.bound)
            if finding.bound == "upper":
                assert found <= finding.at["delta"] * (1.0 + oracle.ROOM) + 1e-12, finding
            elif worst:
                least = finding.at["delta"] * (1.0 - {1: 1e-3, 2: 0.03}[steps])
                if found < least:  # a rare large loss that shares a cell with common ones
                    found = oracle.worst_delta(finding, *laws, finer=3)
                assert found >= least, finding
    assert "upper" in seen


test_no_record_loses_more = oracle.few(check)
test_ten_thousand_records = oracle.many(check)
