"""All observers, in the order in which their tests are listed and advice is given."""

from typing import Any

from dpspec_recording.observers.constants.accountant import Accountant
from dpspec_recording.observers.constants.divisor import Divisor
from dpspec_recording.observers.constants.options import Options
from dpspec_recording.observers.gradient_parameters.passes import Passes
from dpspec_recording.observers.model_state.model_state import ModelState
from dpspec_recording.observers.noise.adaptive_count import AdaptiveCount
from dpspec_recording.observers.noise.noise import Noise
from dpspec_recording.observers.observer import Observer
from dpspec_recording.observers.released_model.other_engines import OtherEngines
from dpspec_recording.observers.rules import Rules
from dpspec_recording.observers.sampling.batches import Batches
from dpspec_recording.observers.sensitivity.clip_limits import ClipLimits
from dpspec_recording.observers.sensitivity.contributions import Contributions
from dpspec_recording.observers.sensitivity.ghost import Ghost
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.observers.sensitivity.sums import Sums
from dpspec_recording.observers.update_rule.gradient_map import GradientMap
from dpspec_recording.observers.update_rule.loss_scaler import LossScaler
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradients
from dpspec_recording.observers.update_rule.optimizer_state import OptimizerState
from dpspec_recording.observers.update_rule.parameters import Parameters
from dpspec_recording.observers.update_rule.public_steps import PublicSteps
from dpspec_recording.observers.update_rule.reported_gradients import ReportedGradients
from dpspec_recording.observers.update_rule.updates import Updates

OBSERVERS: tuple[type[Observer[Any]], ...] = (
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
