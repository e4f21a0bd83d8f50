"""The meanings of checks and terms in reports."""

from dataclasses import dataclass

#: The property that each conformance test checks, by the name of its assumption.
CHECKED = {
    "noise-scale": "scale of the noise",
    "per-layer-noise": "equal noise in all layers",
    "independent-noise": "new noise at each step",
    "clipping": "limit on each record",
    "sampling": "sampling of records",
    "steps": "number of steps",
    "update": "no other term in the update",
    "sensitivity": "contribution of one record",
    "data-independent-hyperparameters": "fixed constants",
    "accounting": "steps and noise that the accountant counted",
    "canaries": "scores of all inserted canaries",
    "nothing-unseen": "canaries within the certified bound",
    "gap": "gap between the mixed models",
    "mixing-weights": "weights of the mixture",
    "hidden-weights": "weights that stay secret",
    "one-hot-worst": "no test can check this assumption",
    "constants": "constants of the proof",
    "collection": "data within the declared limits",
    "released": "published values",
    "public-count": "number of records",
    "radius": "size of the records",
}


@dataclass(frozen=True)
class Term:
    """The meaning of a word in reports, and an example. ``on_page``: whether each page explains it."""

    text: str
    example: str
    on_page: bool = True


#: Terms of reports.
TERMS = {
    "epsilon": Term(
        "With one record more or less (or the unit that a claim names), the probability of any outcome of the "
        "training changes by a factor of at most e^epsilon, up to a probability of delta. Smaller is more "
        "private; 0 is perfect.",
        "At epsilon 0.1 and delta 0 no outcome is more than 1.11 times as likely with your record; at epsilon "
        "3, 20.1 times.",
    ),
    "delta": Term(
        "The probability up to which epsilon holds. It must be far below 1 over the number of records.",
        "With 10,000 records, delta = 1e-6 is small; delta = 1e-4 would allow publishing one random record.",
    ),
    "mu": Term(
        "The same for all deltas together: as hard as distinguishing two normal distributions of variance 1 "
        "whose means differ by mu.",
        "At mu 0.5 an attacker with 1% false accusations identifies at most 3.4% of the members; at mu 3, 75%.",
    ),
    "neighbors": Term(
        "Two datasets that differ by the protected unit: one record, a group of records, or a user with all records.",
        "Adjacency add-remove: the data with your record, and the data without it.",
    ),
    "adversary": Term(
        "The party that tries to learn about a record. A proof against a strong adversary holds against all "
        "weaker ones.",
        "Access all-iterates: the adversary sees the model after each step.",
    ),
    "false-positive rate": Term(
        "The share of records outside the training that an attacker names as members.",
        "Of 100 outsiders, an attacker at 1% accuses one.",
    ),
    "lower bound": Term(
        "The loss is at least this large: found by an attack, or certified by theory.",
        "attack shows at least 0.61: with confidence 0.95 the true epsilon is 0.61 or more.",
    ),
    "upper bound": Term(
        "The loss is at most this large, by proof.",
        "at most 2.349 (certified): a claim of epsilon 3 is proved, a claim of 2 is not.",
    ),
    "canary": Term(
        "A record or a gradient that a coin flip inserts into the training, for an attack to detect.",
        "2,000 canaries, half inserted: guesses that are right more often than chance bound epsilon from below.",
    ),
    "bounds": Term(
        "The attack shows a loss that occurred, at the stated confidence. The upper bound limits the loss on "
        "all data in its scope. Worst-case data lose at least the lower bound of theory.",
        "attack shows at least 0.61 of at most 2.349 (certified); at least 2.348 on worst-case data.",
    ),
    "direction": Term(
        "The ordered pair of neighbors: a bound limits the evidence for the presence of a record (remove), or "
        "for its absence (add).",
        "A claim with direction remove is only about showing that a record was in the data.",
    ),
    "gamma, kappa": Term(
        "The probability that an adversary reconstructs or names a record from the release (gamma), if a "
        "guess without the release is right with probability kappa.",
        "kappa 0.1, gamma 0.3: without the model 1 of 10 guesses is right, with it at most 3.",
    ),
    "Renyi divergence, order": Term(
        "A distance between two probability distributions; large orders weigh rare outcomes.",
        "renyi-dp with alpha 8 and epsilon 0.4 bounds the divergence of order 8 by 0.4.",
    ),
    "p": Term(
        "The probability of a measurement at least this extreme if the run is as declared or claimed. A small "
        "p is evidence against it.",
        "p = 1e-9 for noise-scale: noise of the declared scale would almost never look like this.",
    ),
    "noise multiplier, clip norm": Term(
        "The largest contribution of one record to a step (clip norm), and the standard deviation of the "
        "added noise relative to it. More noise is more private.",
        "Clip norm 2 and noise multiplier 1.5: noise of standard deviation 3 on the sum.",
    ),
    "control": Term(
        "A claim that is false on purpose: if the audit refutes it, the audit can detect such a violation.",
        "epsilon <= 0.5 for a training that costs 29: refuted, as it should be.",
    ),
    "rigor": Term(
        "The strength of a number: certified (true, including rounding errors), theorem (a proved formula in "
        "float64), statistical (true at the stated confidence), or approximate (no guarantee).",
        "certified 2.349 can prove a claim; about 2.3 cannot.",
        on_page=False,
    ),
    "conformance": Term(
        "The comparison of the executed run with its declaration: no deviation found, deviates, checks "
        "missing, or not tested if no code was trained.",
        "A run with half of the declared noise deviates, so that its proof is for another mechanism.",
        on_page=False,
    ),
    "deviates": Term(
        "A check of the executed run rejects its declaration, so a proof for the declared mechanism does not cover it.",
        "deviates (noise-scale): declared 1.5, measured 0.75.",
        on_page=False,
    ),
    "certified": Term(
        "The rigor of an inequality that is true including rounding errors.",
        "epsilon <= 2.349 (certified).",
        on_page=False,
    ),
    "finding": Term(
        "A number with quantity, conditions, rigor, scope, method, source and assumptions.",
        "epsilon <= 2.349 at delta 1e-5, group size 1; certified; pld; for any dataset.",
        on_page=False,
    ),
    "interval": Term(
        "Two ends that enclose a number: no smaller value than the lower end can be proved, because a pair of "
        "neighboring datasets attains it; the upper end is proved. A claim above the upper end is proved, one "
        "below the lower end is refuted.",
        "2.348 to 2.349: a claim of 2.35 is proved, one of 2.34 is refuted.",
        on_page=False,
    ),
    "scope": Term(
        "The neighbors, group, access, adversary and datasets for which a number holds.",
        "A bound for this dataset decides no claim about all datasets.",
        on_page=False,
    ),
}
