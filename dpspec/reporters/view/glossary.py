"""Definitions of the terms in a report: verdicts, rigor, conformance, and the field's vocabulary."""

from __future__ import annotations

#: The condition of each verdict; the first that applies.
VERDICTS = {
    "contradicted": "The attack rejects the best upper bound itself, at 1e-6: theory, code or attack is wrong.",
    "refuted": "The attack rejects the claim, at the stated confidence over all claims and attacks of the run, or a "
    "certified lower bound exceeds the claim. With refuted_by: attack, only the attack counts.",
    "proved": "An upper bound in scope is within the claim, for the mechanism as declared. If the executed run "
    "deviates, the label is: proved as declared, run deviates.",
    "supported": "Only statistical, approximate or conditional evidence is within the claim.",
    "open": "Neither proved nor refuted. The reason names the bound that exceeds the claim.",
}

CONFORMANCE = {
    "no-deviation-found": "No test found a deviation of the executed run from its declaration. Each test states the "
    "smallest deviation that it detects.",
    "deviates": "A test found that the executed run deviates from its declaration.",
    "checks-missing": "Planned tests of the executed run were not made.",
    "not-run": "No executed run was tested.",
}

RIGOR = {
    "certified": "A proved formula, with an interval that includes all numerical error.",
    "theorem": "A proved formula, evaluated in float64.",
    "statistical": "True with the stated confidence.",
    "approximate": "An estimate without a guarantee.",
}

#: The mechanisms that ship with dpspec, for readers outside the field.
MECHANISMS = {
    "group": "training with noise (DP-SGD), which limits the contribution of every record at each step and adds noise "
    "to the sum",
    "modelmix": "training with noise (DP-SGD), which continues from a random mixture of its last two models",
    "per-instance": "training with noise (DP-SGD), with a bound for every single record",
    "preprocessing": "preparing the records without noise (such as filling gaps or removing copies), then a private "
    "computation",
    "recorded": "training as it was recorded",
    "rero": "training with noise (DP-SGD), with a bound on how well a record can be reconstructed",
    "selection": "choosing the best of several trainings",
}

#: The property that each conformance test checks, by the name of its assumption.
CHECKED = {
    "noise-scale": "scale of the noise",
    "per-layer-noise": "equal noise in all layers",
    "independent-noise": "new noise at each step",
    "clipping": "limit on each record",
    "sampling": "drawing of records",
    "steps": "number of steps",
    "update": "nothing else is added",
    "sensitivity": "contribution of one record",
    "data-independent-hyperparameters": "fixed constants",
    "gap": "gap between the mixed models",
    "mixing-weights": "weights of the mixture",
    "hidden-weights": "weights that stay secret",
    "one-hot-worst": "the worst case is known",
    "constants": "constants of the proof",
    "collection": "data within the declared limits",
    "released": "published values",
    "public-count": "number of records",
    "radius": "size of the records",
}

TERMS = {
    "epsilon, delta": "Adding or removing one record (or the unit that a claim names) changes the probability of any "
    "outcome of the training by a factor of at most e^epsilon, up to a probability of delta. Smaller is more private; "
    "0 is perfect.",
    "mu": "The same for all delta at once: as hard as distinguishing two normal distributions of variance 1 whose "
    "means differ by mu.",
    "neighbours": "Two datasets that differ by the protected unit: one record, a group of records, or a user with all "
    "records.",
    "adversary": "The party that tries to learn about a record. A proof against a strong adversary holds against all "
    "weaker ones.",
    "false-positive rate": "The share of records outside the training that an attacker names as members.",
    "lower bound": "The loss is at least this large: found by an attack, or certified by theory.",
    "upper bound": "The loss is at most this large, by proof.",
    "canary": "A record or a gradient that a coin flip inserts into the training, for an attack to detect.",
    "interval": "From the best lower to the best upper bound: it contains the true value if the bounds hold.",
    "direction": "Whether a bound limits what the presence of a record makes likelier (remove), or its absence (add).",
    "gamma, kappa": "The probability that an adversary reconstructs or names a record from the release (gamma), if a "
    "guess without it is right with probability kappa.",
    "Renyi divergence, order": "A distance between two probability distributions; large orders weigh rare outcomes.",
    "p": "The probability of a measurement at least this extreme if the run is as declared or claimed. A small p is "
    "evidence against it.",
    "noise_multiplier, clip_norm": "The largest contribution of one record to a step (clip_norm), and the standard "
    "deviation of the added noise relative to it. More noise is more private.",
    "control": "A claim that is false on purpose: if the audit refutes it, the audit can detect such a violation.",
}
