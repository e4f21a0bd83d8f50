"""Small DP-SGD mechanisms of the group plugin, and explicit datasets inside a finding's scope."""

from typing import Any

from hypothesis import strategies as st

from dpspec.contract import Finding

#: In clip norms: zero, below, at and above the clip norm, near the limits of float32, and not finite.
GRADIENTS = (0.0, 1e-20, 0.3, -0.7, 1.0, -1.0, 3.0, -10.0, 1e30, -1e30, float("inf"), float("nan"))


@st.composite
def mechanisms(draw: st.DrawFn, schemes: tuple[str, ...] = ("poisson", "fixed", "full")) -> dict[str, Any]:
    """Draw phases of at most three steps in total, the declared number of records, and the group size."""
    scheme = draw(st.sampled_from(schemes))
    size, records = draw(st.integers(1, 3)), draw(st.integers(4, 5))
    sampling: dict[str, Any] = {"scheme": scheme}
    if scheme == "poisson":
        sampling["rate"] = draw(st.sampled_from((0.01, 0.1, 0.3, 0.5, 0.9, 1.0)))
    if scheme == "fixed":
        sampling["batch_size"] = draw(st.integers(1, records - size))
    steps = draw(st.lists(st.integers(1, 2), min_size=1, max_size=2).filter(lambda some: sum(some) <= 3))
    phases = [
        {
            "noise_multiplier": draw(st.sampled_from((0.4, 0.7, 1.0, 2.0, 5.0))),
            "clip_norm": draw(st.sampled_from((1e-3, 0.5, 1.0, 20.0))),
            "sampling": sampling,
            "steps": count,
        }
        for count in steps
    ]
    return {"phases": phases, "records": records, "size": size}


def sizes_within(finding: Finding, case: dict[str, Any], draw: st.DrawFn) -> tuple[int, int]:
    """Draw the sizes of the smaller dataset and of the group, inside a finding's scope."""
    need = max((int(p["sampling"].get("batch_size", 0)) for p in case["phases"]), default=0)
    members = draw(st.integers(1, case["size"]))
    if finding.scope.data == "this":  # the declared data, with members removed or added
        return case["records"] - members * draw(st.integers(0, 1)), members
    return draw(st.integers(max(need, finding.scope.min_records), case["records"])), members


def gradients_within(finding: Finding, case: dict[str, Any], draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Draw the gradients of the common records and of the group, inside a finding's scope."""
    others, members = sizes_within(finding, case, draw)
    clip = max(float(phase["clip_norm"]) for phase in case["phases"])
    common = [clip * g for g in draw(st.lists(st.sampled_from(GRADIENTS), min_size=others, max_size=others))]
    group = [clip * g for g in draw(st.lists(st.sampled_from(GRADIENTS), min_size=members, max_size=members))]
    if draw(st.booleans()):  # towards the worst case
        common, group = [-2.0 * clip] * others, [2.0 * clip] * members
    return common, group
