"""Audit the claimed privacy of a training pipeline from a declarative spec.

    >>> import dpspec
    >>> result = dpspec.run("specs/quickstart.yaml")  # doctest: +SKIP
    >>> result.to_frame()  # doctest: +SKIP
    >>> bounds = dpspec.epsilon(noise_multiplier=1.1, rate=0.01, steps=1000)
    >>> 1.514 < bounds.lower <= bounds.upper < 1.516
    True

The public API is this package, :mod:`dpspec.contract`, :mod:`dpspec.kit`, :mod:`dpspec.testing` and the names in
``dpspec.accounting.__all__``. All other modules may change with any version. Names are imported on first use:
``import dpspec`` alone imports neither numpy, scipy nor torch.
"""

from __future__ import annotations

from dpspec.lazy_names import lazy_names
from dpspec.version import VERSION

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from dpspec.api import calibrate, check_history, load, run
    from dpspec.contract import (
        Claim,
        Diagnostic,
        Finding,
        Result,
        Spec,
        Verdict,
        backend,
        canary,
        dataset,
        loss,
        model,
        reporter,
        score,
    )
    from dpspec.engine.schedule_privacy import EpsilonBounds, epsilon
    from dpspec.engine.storage.trial_store import Store
    from dpspec.engine.verify import verify
    from dpspec.integrations.trackers import log_to_mlflow, log_to_wandb
    from dpspec.language.load import load_specs
    from dpspec.registry.loader import load_catalog
    from dpspec.results.codec import dump
    from dpspec.results.diff import diff
    from dpspec_recording.checking import check
    from dpspec_recording.planting.planted import plant
    from dpspec_recording.recorder import Recorder, record
    from dpspec_recording.replay import replay

__version__ = VERSION

_HOME = {
    "Claim": "dpspec.contract",
    "Diagnostic": "dpspec.contract",
    "EpsilonBounds": "dpspec.engine.schedule_privacy",
    "Finding": "dpspec.contract",
    "Recorder": "dpspec_recording.recorder",
    "Result": "dpspec.contract",
    "Spec": "dpspec.contract",
    "Store": "dpspec.engine.storage.trial_store",
    "Verdict": "dpspec.contract",
    "backend": "dpspec.contract",
    "calibrate": "dpspec.api",
    "canary": "dpspec.contract",
    "check": "dpspec_recording.checking",
    "check_history": "dpspec.api",
    "dataset": "dpspec.contract",
    "diff": "dpspec.results.diff",
    "dump": "dpspec.results.codec",
    "epsilon": "dpspec.engine.schedule_privacy",
    "load": "dpspec.api",
    "load_catalog": "dpspec.registry.loader",
    "load_specs": "dpspec.language.load",
    "log_to_mlflow": "dpspec.integrations.trackers",
    "log_to_wandb": "dpspec.integrations.trackers",
    "loss": "dpspec.contract",
    "model": "dpspec.contract",
    "plant": "dpspec_recording.planting.planted",
    "record": "dpspec_recording.recorder",
    "replay": "dpspec_recording.replay",
    "reporter": "dpspec.contract",
    "run": "dpspec.api",
    "score": "dpspec.contract",
    "verify": "dpspec.engine.verify",
}

__all__ = [
    "Claim",
    "Diagnostic",
    "EpsilonBounds",
    "Finding",
    "Recorder",
    "Result",
    "Spec",
    "Store",
    "Verdict",
    "__version__",
    "backend",
    "calibrate",
    "canary",
    "check",
    "check_history",
    "dataset",
    "diff",
    "dump",
    "epsilon",
    "load",
    "load_catalog",
    "load_specs",
    "log_to_mlflow",
    "log_to_wandb",
    "loss",
    "model",
    "plant",
    "record",
    "replay",
    "reporter",
    "run",
    "score",
    "verify",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME, __all__)
