"""Values of the mechanism with which the failed claims of an audit are proved, found by calibration."""

import time
from collections.abc import Callable, Iterator, Sequence

from dpspec.contract import Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event
from dpspec.contract.results import AuditResult, Remedy, Verdict
from dpspec.engine.calibration import Evaluations, calibrate_spec
from dpspec.engine.storage.stored_trials import AuditState
from dpspec.errors import DpspecError
from dpspec.language.numeric_values import numeric_key

#: The default maximum of the processor time of the search of one run, in seconds.
_SECONDS = 8.0

#: An audit is searched if its bounds take less than this part of the maximum.
_BOUNDS = 0.5

#: The relative precision of values, before real ones are rounded to three digits.
_PRECISION = 5e-3

_VARIED = ("mechanism.noise_multiplier", "mechanism.clipping.count_std", "mechanism.steps")

#: The numbers of a composition of one release, such as an accountant's history of one phase.
_OF_ONE_RELEASE = ("mechanism.releases.0.sigma", "mechanism.releases.0.times")


class Search:
    """The argument ``remedies`` of ``run``. One search per run, so that a run with many failed claims is not slow."""

    def __init__(self, catalog: Catalog, seconds: float | None = None) -> None:
        """seconds: the maximum processor time; 0 searches nothing."""
        self._catalog = catalog
        self._left = _SECONDS if seconds is None else seconds
        self._most_bound_seconds = _BOUNDS * self._left

    def __call__(self, audit: AuditResult, state: AuditState) -> tuple[Remedy, ...]:
        """The remedies of an audit; none of an executed run, and none of a composition of audits."""
        prepared = state.prepared
        if prepared.recording is not None or prepared.components:
            return ()
        return self._remedies(prepared.spec, audit.verdicts, state.seconds)

    def _remedies(self, spec: Spec, verdicts: Sequence[Verdict], seconds: float) -> tuple[Remedy, ...]:
        """Search the noise, the steps and the group size that prove all claims with the expectation proved.

        Args:
            spec: The audited spec.
            verdicts: Its verdicts.
            seconds: The duration of its bounds.

        Returns:
            One remedy per number; empty if no claim failed, if the search takes too long, or if bounds depend on data.
        """
        failed = [v for v in verdicts if "proved" in v.expect and not v.expected and v.kind != "metric"]
        if not failed or any(v.provable is None for v in failed) or seconds > self._most_bound_seconds:
            return ()
        began = time.process_time()

        def stop_late(_: Event) -> None:
            if time.process_time() - began > self._left:
                raise TimeoutError

        proved_values: list[Remedy] = []
        sizes = {claim.id: claim.group_size for claim in spec.claims}
        groups = [f"claims.{v.claim}.group_size" for v in failed if len(failed) == 1 and sizes[v.claim] > 1]
        of_release = _OF_ONE_RELEASE if len(spec.mechanism.options.get("releases", ())) == 1 else ()
        for varied in (*groups, *_VARIED, *of_release):
            try:
                proved_values.extend(_calibrated(spec, self._catalog, varied, stop_late))
            except (TimeoutError, DpspecError):  # no such number, no valid neighbor, or no time
                continue
        self._left -= time.process_time() - began
        return tuple(proved_values)


def _calibrated(spec: Spec, catalog: Catalog, varied: str, emit: Callable[[Event], None]) -> Iterator[Remedy]:
    calibration = calibrate_spec(spec, catalog, vary=varied, relative=_PRECISION, emit=emit)
    key, point = calibration.key, calibration.proved
    if point is None or calibration.private:
        return
    value = point.value
    if not key.integer:  # three digits, away from the value that proves nothing
        away = 1.0 if calibration.more_helps else -1.0
        rounded = float(f"{value * (1.0 + 0.005 * away):.3g}")
        remedy = Remedy(place=varied, now=key.value, value=rounded)
        value = rounded if proves(spec, catalog, remedy) else value
    yield Remedy(place=varied, now=key.value, value=value)


def proves(spec: Spec, catalog: Catalog, remedy: Remedy) -> bool:
    """Whether all claims with the expectation proved are proved with the value of a remedy.

    Raises:
        DpspecError: The spec has no such number.
    """
    claims = tuple(c.id for c in spec.claims if "proved" in c.expect and c.kind != "metric")
    evaluations = Evaluations(spec, catalog, numeric_key(spec, catalog, remedy.place), claims)
    return evaluations.at(remedy.value).proved
