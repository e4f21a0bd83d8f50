"""What the words of a report mean: verdicts, rigor, conformance, and the field's terms."""

from __future__ import annotations

#: When a claim gets which verdict; the first that applies.
VERDICTS = {
    "contradicted": "The attack rejects the best upper bound itself, at 1e-6: theory, code or attack is wrong.",
    "refuted": "The attack rejects the claim, at the stated confidence over all claims and attacks of the run.",
    "proved": "An upper bound in scope is within the claim, for the mechanism as declared. If the executed run "
    "deviates, the label is: proved as declared, run deviates.",
    "supported": "Only statistical or approximate evidence is within the claim.",
    "open": "Undecided; the report says what this run could have decided.",
}

CONFORMANCE = {
    "conforms-within": "No test saw that what ran differs from what was declared; each says what it would have seen.",
    "deviates": "A test saw that what ran is not what was declared.",
    "checks-missing": "Tests that were planned were not made.",
    "not-run": "Nothing that ran was held against what was declared.",
}

RIGOR = {
    "certified": "A proved formula, and an interval that holds all numerical error.",
    "theorem": "A proved formula, evaluated in float64.",
    "statistical": "True with the stated confidence.",
    "approximate": "An estimate that promises nothing.",
}

#: What the mechanisms that dpspec ships do, in words of nobody's field. Of others a page says the name alone.
MECHANISMS = {
    "group": "training with noise (DP-SGD), which limits at each step what every record adds, and adds noise to the "
    "sum",
    "modelmix": "training with noise (DP-SGD), which goes on from a random mixture of its last two models",
    "per-instance": "training with noise (DP-SGD), looked at for every single record",
    "preprocessing": "preparing the records without noise (such as filling gaps or dropping copies), and a private "
    "computation on what comes of it",
    "rero": "training with noise (DP-SGD), looked at for how well a record could be rebuilt",
    "selection": "choosing the best of several trainings",
}

#: What tests of conformance look at, by the names of the assumptions.
CHECKED = {
    "noise-scale": "how much noise is added",
    "noise-isotropy": "as much noise everywhere",
    "fresh-noise": "new noise at each step",
    "clipping": "the limit of each record",
    "sampling": "who is drawn",
    "steps": "how many steps",
    "update": "nothing else is added",
    "contribution": "what one record adds",
    "public-constants": "fixed constants",
    "gap": "the gap to mix over",
    "mixing-weights": "how it is mixed",
    "hidden-weights": "what stays secret",
    "one-hot-worst": "the worst case is known",
    "constants": "the constants of the proof",
    "collection": "within the declared limits",
    "released": "what is published",
    "public-count": "how many records there are",
    "radius": "how large records are",
}

TERMS = {
    "epsilon, delta": "Whatever is computed of the training, adding or removing one record (or what else a claim is "
    "for) changes its probability by a factor of at most e^epsilon, but for a probability of delta. Smaller is more "
    "private; 0 is perfect.",
    "mu": "The same for all delta at once: as hard as telling two normal distributions apart whose means are mu apart.",
    "neighbours": "Two data sets that differ by what is protected: one record, a group of them, or a user "
    "with all records.",
    "adversary": "Who tries to find out. A proof against a strong one holds against all that are weaker.",
    "false alarms": "How often it is said that somebody was in the training who was not.",
    "lower bound": "What an attack, or a proof, shows to be lost at least.",
    "upper bound": "What is proved to be lost at most.",
    "canary": "A record, or a gradient, that is planted by the toss of a coin, for an attack to find.",
    "interval": "From the best lower to the best upper bound: the true number lies in it, if the bounds hold.",
    "direction": "Whether a bound is on what a record's being there makes likelier (remove), or its being away (add).",
    "gamma, kappa": "How likely an adversary rebuilds or names a record from what was released (gamma), who would have "
    "been right with probability kappa by guessing.",
    "Renyi divergence, order": "How far two probability laws are apart; large orders look at what is rare.",
    "p": "How likely a measurement at least so strange is, were all as declared or claimed. Small speaks against it.",
    "noise_multiplier, clip_norm": "What one record may add to a step at most (clip_norm), and the noise that is "
    "added, as a multiple of that. More noise is more private.",
    "control": "A claim that is made to be false, to show that the audit would see it.",
}
