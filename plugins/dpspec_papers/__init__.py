"""Printed formulas and baselines of the five papers, alongside the bounds of their mechanisms.

None supports a verdict. Formulas that are wrong as printed are listed in ``docs/explanation/papers.md``.
"""

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec import kit

DPSPEC_API = 1

_UTILITY: dict[str, dps.Json] = kit.block(
    "Properties of the loss for the paper's utility theorems, which are then reported with the bounds.",
    ["smoothness"],
    smoothness=kit.number("beta: Lipschitz constant of the gradient.", above=0),
    distance=kit.number("Maximum distance of an iterate from the optimum (Theorem 3.1, convex losses).", above=0),
    span=kit.number(
        "Maximum difference between losses (Theorems B.1 and 3.2, losses that need not be convex).", above=0
    ),
    tail=kit.number(
        "kappa: the distance of a record's gradient from the mean exceeds u with probability at most e^(-u / kappa) "
        "(Lemma B.1).",
        above=0,
    ),
)

_TABLE: dict[str, dps.Json] = kit.block(
    "Also show Table 2 of the paper, with every mechanism and every pre-processing, for these parameters and the "
    "declared eps_noise.",
    ["order", "changed", "eta", "ball", "eigengap", "steps"],
    order=kit.number("The Renyi order.", above=1),
    changed=kit.integer(
        "p: Delta_inf of deduplication and quantization, and the number of records with missing values.", least=1
    ),
    eta=kit.number("The radius of quantization.", least=0),
    ball=kit.integer("Maximum number of records within 8 eta, for the repaired columns.", least=1),
    eigengap=kit.number("The eigengap.", above=0),
    steps=kit.integer("T, the number of steps of sampled gradients.", least=1),
)

GROUP = dps.Comparison(
    name="ganesh-baselines",
    mechanism="group",
    summary="Epsilon of groups by conversions of the guarantee of one record",
    compare="dpspec_papers.group:compare",
    check="dpspec_papers.refusals:check_group",
    schema=kit.block(
        None,
        baselines=kit.array(
            "Conversions shown for comparison in the table of epsilon by group size. They change no bound and no "
            "verdict.",
            kit.choice(
                "linear: k times the epsilon of one record, not a bound. vadhan-literal and vadhan-sharp: black-box "
                "conversions.",
                "linear",
                "vadhan-literal",
                "vadhan-sharp",
            ),
            default=["linear"],
        ),
    ),
)

RERO = dps.Comparison(
    name="kaissis-baselines",
    mechanism="rero",
    summary="Reconstruction robustness by approximations, Renyi divergences, one epsilon and Monte Carlo",
    compare="dpspec_papers.rero:compare",
    check="dpspec_papers.refusals:check_rero",
    schema=kit.block(
        None,
        baselines=kit.array(
            "Methods to compare with the certified bound. They change neither the bound nor a trial.",
            kit.choice(
                "clt and edgeworth: approximations, neither upper nor lower bounds; clt-printed: with the exponent in "
                "the paper's main text. rdp and epsilon-delta: bounds from Renyi divergences and from one epsilon. "
                "absent-first: the other direction, not a bound.",
                *("clt", "clt-printed", "edgeworth", "rdp", "epsilon-delta", "absent-first"),
            ),
            unique=True,
            default=["clt", "edgeworth", "rdp"],
        ),
        monte_carlo=kit.block(
            "Also estimate by Monte Carlo, with intervals at a joint confidence of 95 %.",
            samples=kit.integer(
                "Number of sampled outputs of the whole composition.", least=100, most=100000000, default=1000000
            ),
        ),
    ),
)

MODELMIX = dps.Comparison(
    name="modelmix-printed",
    mechanism="modelmix",
    summary="ModelMix: formulas as printed, amplification, and the utility theorems",
    compare="dpspec_papers.modelmix:compare",
    check="dpspec_papers.refusals:check_modelmix",
    schema=kit.block(None, utility=_UTILITY),
    assumptions=("dpspec_papers.modelmix",),
)

PER_INSTANCE = dps.Comparison(
    name="thudi-statements",
    mechanism="per-instance",
    summary="Per-instance loss: one step as (epsilon, delta), numbers of runs, and unlearning",
    compare="dpspec_papers.per_instance:compare",
)

PREPROCESSING = dps.Comparison(
    name="hu-tables",
    mechanism="preprocessing",
    summary="Pre-processing: Tables 1 and 2 and Theorem 2 as printed, alongside the repaired bounds",
    compare="dpspec_papers.preprocessing:compare",
    schema=kit.block(None, table=_TABLE),
)


@dps.hookimpl
def dpspec_comparisons() -> Iterable[dps.Comparison]:
    return (GROUP, RERO, MODELMIX, PER_INSTANCE, PREPROCESSING)
