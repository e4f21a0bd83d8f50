"""The generator and the number type of the noise that an audit executed."""

from collections.abc import Mapping

from dpspec.contract import Json, Phase
from dpspec.contract.executed import ExecutedNoise
from dpspec.contract.phase import DISCRETE
from dpspec.contract.results import AuditResult, TrialRecord

#: The mechanism and the backend whose noise is known.
_MECHANISM, _BACKEND = "group", "native"


def executed_noise(audit: AuditResult) -> ExecutedNoise | None:
    """The noise of a recording, or of the trials of DP-SGD in dpspec's own loop; None if it is unknown."""
    if audit.recording is not None:
        origin = audit.recording.origin
        return None if origin is None else origin.noise
    mechanism, training = (audit.document.get(key) for key in ("mechanism", "training"))
    if not audit.trials or not isinstance(mechanism, Mapping) or not isinstance(training, Mapping):
        return None
    devices = {str(trial.recorded.get("device")) for trial in audit.trials}
    if (mechanism.get("kind"), training.get("backend")) != (_MECHANISM, _BACKEND) or not all(
        map(by_own_loop, audit.trials)
    ):
        return None
    on_cpu = devices == {"cpu"}
    phases = Phase.all_of(mechanism)
    is_discrete = any(phase.noise == DISCRETE for phase in phases)
    return ExecutedNoise(
        generator="torch's CPU generator" if on_cpu else f"torch's generator on {', '.join(sorted(devices))}",
        seed_bits=0,  # a digest of the spec, which is public
        integers=is_discrete,
        revealed=_revealed(phases, audit.facts.parameters or 0) if on_cpu and not is_discrete else 0.0,
    )


def by_own_loop(trial: TrialRecord) -> bool:
    """Whether one of dpspec's loops made a trial: they train in full float32."""
    by = trial.recorded.get("by")
    backend: Json = by.get("backend") if isinstance(by, Mapping) else None
    return isinstance(backend, Mapping) and backend.get("distribution") == "dpspec"


def _revealed(phases: tuple[Phase, ...], parameters: int) -> float:
    """The probability of Theorem F1 for independent batches; 0 if another scheme or clipping is among them."""
    from dpspec.accounting import SMALLEST_TENSOR, revealed_by_schedule  # loads numpy

    values = parameters // SMALLEST_TENSOR * SMALLEST_TENSOR
    covered = all(
        phase.sampling.scheme in ("poisson", "full") and phase.clipping_scheme == "flat" and not phase.noiseless
        for phase in phases
    )
    if not covered or not values:
        return 0.0
    return revealed_by_schedule(((phase.noise_multiplier, phase.rate(), phase.steps) for phase in phases), values)
