"""All probes, in the order in which their tests are listed and advice is given."""

from typing import Any

from dpspec_recording.probes.accountant import Accountant
from dpspec_recording.probes.adaptive_count import AdaptiveCount
from dpspec_recording.probes.batches import Batches
from dpspec_recording.probes.clip_limits import ClipLimits
from dpspec_recording.probes.contributions import Contributions
from dpspec_recording.probes.divisor import Divisor
from dpspec_recording.probes.ghost import Ghost
from dpspec_recording.probes.gradient_map import GradientMap
from dpspec_recording.probes.loss_scaler import LossScaler
from dpspec_recording.probes.model_state import ModelState
from dpspec_recording.probes.noise import Noise
from dpspec_recording.probes.noisy_gradients import NoisyGradients
from dpspec_recording.probes.optimizer_state import OptimizerState
from dpspec_recording.probes.options import Options
from dpspec_recording.probes.other_engines import OtherEngines
from dpspec_recording.probes.parameters import Parameters
from dpspec_recording.probes.passes import Passes
from dpspec_recording.probes.probe import Probe
from dpspec_recording.probes.public_steps import PublicSteps
from dpspec_recording.probes.replays import Replays
from dpspec_recording.probes.reported_gradients import ReportedGradients
from dpspec_recording.probes.rules import Rules
from dpspec_recording.probes.sums import Sums
from dpspec_recording.probes.updates import Updates

PROBES: tuple[type[Probe[Any]], ...] = (
    Options,
    Noise,
    Parameters,
    ModelState,
    NoisyGradients,
    ReportedGradients,
    Contributions,
    Sums,
    ClipLimits,
    Ghost,
    AdaptiveCount,
    Replays,
    GradientMap,
    PublicSteps,
    Passes,
    OptimizerState,
    LossScaler,
    Updates,
    OtherEngines,
    Batches,
    Accountant,
    Divisor,
    Rules,
)
