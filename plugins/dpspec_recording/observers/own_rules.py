"""All rules of dpspec, in the order of the table in ``docs/reference/rules.md``."""

from dpspec_recording.observers.constants import metric_scheduler
from dpspec_recording.observers.noise import guessable_seed
from dpspec_recording.observers.released_model import trained_before
from dpspec_recording.observers.sampling import run_counts
from dpspec_recording.observers.sensitivity import (
    class_weights_from_labels,
    duplicate_records,
    mixing_dataset,
    model_inputs,
    paired_records,
    records_in_model,
    standardized_features,
)
from dpspec_recording.observers.update_rule import second_optimizer

RULES = (
    guessable_seed.RULE,
    trained_before.RULE,
    second_optimizer.RULE,
    metric_scheduler.RULE,
    duplicate_records.RULE,
    paired_records.RULE,
    standardized_features.RULE,
    class_weights_from_labels.RULE,
    *model_inputs.RULES,
    mixing_dataset.RULE,
    records_in_model.RULE,
    *run_counts.RULES,
)
