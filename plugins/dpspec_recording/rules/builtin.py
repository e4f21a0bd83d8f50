"""All rules of dpspec, in the order of the table in ``docs/reference/rules.md``."""

from dpspec_recording.rules import (
    changing_dataset,
    class_weights_from_labels,
    duplicate_records,
    equal_norms,
    guessable_seed,
    loaded_weights,
    metric_scheduler,
    mixing_dataset,
    model_inputs,
    one_norm_at_the_bound,
    records_in_model,
    reseeded_generators,
    run_counts,
    second_optimizer,
    standardized_features,
    trained_before,
)

RULES = (
    guessable_seed.RULE,
    reseeded_generators.RULE,
    trained_before.RULE,
    second_optimizer.RULE,
    metric_scheduler.RULE,
    loaded_weights.RULE,
    duplicate_records.RULE,
    standardized_features.RULE,
    class_weights_from_labels.RULE,
    *model_inputs.RULES,
    mixing_dataset.RULE,
    changing_dataset.RULE,
    records_in_model.RULE,
    one_norm_at_the_bound.RULE,
    equal_norms.RULE,
    *run_counts.RULES,
)
