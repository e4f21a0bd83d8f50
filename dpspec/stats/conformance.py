"""Every test of an executed DP-SGD run, from the evidence of its trials: one ``Check`` per property that is declared.

``dpspec.training.conformance`` writes the evidence. What was measured on released models comes first, what the backend
said of itself after. Where several trials tell the same, the most surprising one counts, for its number (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.contract import Check, FrozenMap
from dpspec.stats import batch_checks, checking, contributions, noise_checks

#: Float32 gradients clip to the norm within this relative error.
CLIP_TOLERANCE = 1e-4


def checks(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    """All checks of the trials' evidence against ``phases``; none for what is absent."""

    def told(key: str) -> list[FrozenMap]:
        return [e[key] for e in evidence if key in e]

    yield from _steps(phases, evidence)
    yield from noise_checks.noise_scale(told("noise"))
    yield from noise_checks.residuals(told("measured"))
    yield from contributions.checks(told("signal"))
    yield from noise_checks.noise_log(told("noise_log"))
    for number, phase in enumerate(phases):
        yield from batch_checks.sampling_log(phase, number, told("sampling_log"))
    yield from batch_checks.repeats(told("sampling_log"))
    yield from _norm_log(told("norm_log"))


def _steps(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    counts = {int(e["steps"]) for e in evidence if "steps" in e}
    if counts:
        declared = sum(int(phase["steps"]) for phase in phases)
        wrong = next((count for count in sorted(counts) if count != declared), declared)
        yield checking.exact("steps", "count of released states", "measured", wrong == declared, declared, wrong)


def _norm_log(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    if not logs:
        return
    worst = max(log["largest"] for log in logs)
    yield Check(
        assumption="clipping",
        test="largest clipped norm",
        p_value=1.0 if worst <= 1.0 + CLIP_TOLERANCE else 0.0,
        observed="reported",
        declared=1.0,
        measured=worst,
        detectable=CLIP_TOLERANCE,
        note="relative to the clip norm",
    )
    missing = [log["missing"] for log in logs if "missing" in log]
    if missing:
        wrong = next((m for m in missing if m), 0)
        test = "drawn records without a clipped norm of their own"
        yield checking.exact("clipping", test, "reported", wrong == 0, 0, wrong, detectable=None)
