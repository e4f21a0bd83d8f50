"""The meanings of checks and terms in reports."""

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

#: Terms of reports.
TERMS = {
    "certified": "the rigor of an inequality that is true including rounding errors",
    "conformance": "the comparison of the executed run with its declaration: no-deviation-found, deviates, "
    "checks-missing, or not-run if no code was trained",
    "deviates": "a check of the executed run rejects its declaration, so a proof for the declared mechanism does not "
    "cover this run",
    "direction": "the ordered pair of neighbors: a dataset with the record against the one without (remove), or the "
    "reverse (add)",
    "finding": "a number with quantity, conditions, rigor, scope, method, source and assumptions",
    "interval": "two ends that enclose a number: no smaller value than the lower end can be proved, because a pair of "
    "neighboring datasets attains it; the upper end is proved. A claim above the upper end is proved, one below the "
    "lower end is refuted",
    "rigor": "the strength of a number: certified (true, including rounding errors), theorem (a proved formula in "
    "float64), statistical (true at the stated confidence), or approximate (no guarantee)",
    "scope": "the neighbors, group, access, adversary and datasets for which a number holds",
}
