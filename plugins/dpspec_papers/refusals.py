"""Keys of comparisons that do not fit a spec. It imports nothing heavy, because specs are checked without scipy."""

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec import kit
from dpspec.sampling import scheme_of
from dpspec_modelmix.options import PhaseOptions, unmet_conditions

#: Conversions of ``group`` that need the privacy profile of one record.
CONVERSIONS = frozenset({"vadhan-literal", "vadhan-sharp"})

#: More draws than this would take hours.
_MOST_DRAWS = 4_000_000_000


def check_group(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    named = CONVERSIONS & set(spec.mechanism.get("baselines", ()))
    if not named:
        return
    is_replaced = spec.threat_model.adjacency == "replace-one"
    for name, scheme in sorted({phase.sampling.scheme: scheme_of(phase) for phase in spec.phases}.items()):
        of_scheme = scheme.replaced if is_replaced else scheme.theory
        if of_scheme is not None and of_scheme.no_profile:
            message = f"{' and '.join(sorted(named))} cannot be computed for {name} batches: {of_scheme.no_profile}"
            yield kit.unsupported(message, ("mechanism", "baselines"), "remove them; linear is supported")


def check_rero(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    baselines, monte_carlo = spec.mechanism.get("baselines", ()), spec.mechanism.get("monte_carlo")
    if "clt-printed" in baselines and any(phase.noise == "laplace" for phase in spec.phases):
        path: dps.Path = ("mechanism", "baselines", baselines.index("clt-printed"))
        yield kit.unsupported("clt-printed is for Gaussian noise only", path, "leave it out")
    if monte_carlo is not None and int(monte_carlo["samples"]) * spec.steps > _MOST_DRAWS:
        samples = monte_carlo["samples"]
        message = f"{samples} samples of {spec.steps} steps are above the limit of {_MOST_DRAWS:.0e} draws"
        help = "take fewer samples; the certified bound needs none"
        yield kit.bad_value(message, ("mechanism", "monte_carlo", "samples"), help)


def check_modelmix(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    if "utility" not in spec.mechanism.options:
        return
    path, phase = ("mechanism", "utility"), spec.phases[0]
    if facts.parameters is None:
        yield dps.Diagnostic(code="no-model", message="the utility theorems need a model", path=path)
    if not {"distance", "span", "tail"} & set(spec.mechanism["utility"]):
        message = "mechanism.utility needs distance (Theorem 3.1), span (B.1 and 3.2) or tail (Lemma B.1)"
        yield dps.Diagnostic(code="missing-key", message=message, path=path)
    schedule = (spec.training.get("schedule") or {}).get("kind", "constant")
    several = len(spec.phases) > 1 or schedule != "constant"
    clipped = phase.noise != "gaussian" or PhaseOptions.of(phase).embedding is not None
    if several or clipped or any(where[-1] != "threshold" for where, _ in unmet_conditions(spec)):
        message = "the utility theorems cover SGD with one learning rate and threshold, l2 clipping and full mixing"
        yield kit.unsupported(message, path)
