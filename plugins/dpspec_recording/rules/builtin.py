"""All rules of dpspec, in the order of the table in ``docs/reference/rules.md``."""

from dpspec_recording.rules import (
    class_weights_from_labels,
    duplicate_records,
    guessable_seed,
    metric_scheduler,
    mixing_dataset,
    model_inputs,
    paired_records,
    records_in_model,
    run_counts,
    second_optimizer,
    standardized_features,
    trained_before,
)

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
