"""Every test of an executed DP-SGD run, from the evidence of its trials: one ``Check`` per property that is declared.

``dpspec.training.conformance`` writes the evidence. What was measured on released models comes first, what the backend
said of itself after. Where several trials tell the same, the most surprising one counts, for its number (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dpspec.contract import Check, FrozenMap, Json
from dpspec.contract.findings import Privacy
from dpspec.stats import batch_checks, checking, contributions, noise_checks

#: Float32 gradients clip to the norm within this relative error.
CLIP_TOLERANCE = 1e-4


#: What was seen of gradients, and not only of noise and batches: it speaks of the rows.
_OF_ROWS = ("noise", "measured", "signal", "norm_log")


def arranged(found: Mapping[str, Json]) -> dict[str, Json]:
    """Evidence of a run as trials keep it: what speaks of the rows under ``internal``, which no report shows."""
    kept: dict[str, Json] = {key: value for key, value in found.items() if key not in _OF_ROWS}
    return kept | {"internal": {key: found[key] for key in _OF_ROWS if key in found}}


def joined(evidence: Mapping[str, Json], ran: Mapping[str, Json]) -> dict[str, Json]:
    """A trial's own evidence together with that of the run, both of which have an ``internal`` part."""
    return {**evidence, **ran, "internal": {**evidence.get("internal", {}), **ran.get("internal", {})}}


def checks(
    phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap], *, privacy: Privacy = "data-dependent"
) -> Iterator[Check]:
    """All checks of the trials' evidence against ``phases``; none for what is absent.

    privacy: of the checks of what speaks of the rows; of all others it is ``public``.
    """

    def told(key: str) -> list[FrozenMap]:
        return [e[key] for e in evidence if key in e]

    def seen(key: str) -> list[FrozenMap]:
        return [e["internal"][key] for e in evidence if key in e.get("internal", {})]

    yield from _steps(phases, evidence)
    for found in (
        noise_checks.noise_scale(seen("noise")),
        noise_checks.residuals(seen("measured")),
        contributions.checks(seen("signal")),
    ):
        yield from (replace(check, privacy=privacy) for check in found)
    yield from noise_checks.noise_log(told("noise_log"))
    for number, phase in enumerate(phases):
        yield from batch_checks.sampling_log(phase, number, told("sampling_log"))
    yield from batch_checks.repeats(told("sampling_log"))
    yield from (replace(check, privacy=privacy) for check in _norm_log(seen("norm_log")))


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
