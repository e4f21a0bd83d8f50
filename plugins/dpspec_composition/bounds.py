"""Findings: epsilon, rates, advantage, divergences and rho of the composition, with lower ends of known pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec import decimals, kit
from dpspec.accounting import Interval, certified_lower, certified_upper
from dpspec_composition.options import Release, adjacencies, group_sizes, releases_of
from dpspec_composition.theory import Composition

SOURCE = "Zhu, Dong and Wang 2022, Theorem 10, with the pairs of docs/explanation/proofs/composition.md"

#: A zCDP guarantee and divergences add up.
_RENYI = "Mironov 2017, Proposition 1; Bun and Steinke 2016, Lemma 1.7"

#: With more releases the table of their costs would be long, and its compositions would take seconds.
_MOST_SHARES = 20

ASSUMPTIONS = (
    dps.Assumption(
        name="declared-releases",
        status="declared",
        text="every release is of the declared kind, with at most the declared sensitivity and number of runs, and a "
        "sample is drawn from the declared number of records",
    ),
    dps.Assumption(
        name="independent-randomness", status="declared", text="the runs of all releases draw independent randomness"
    ),
)

OWN_SAMPLES = dps.Assumption(
    name="own-samples",
    status="declared",
    text="each run of a release with rate or batch_size draws its own secret sample; releases that read one drawn "
    "sample need the same `sample`",
)

SAMPLED_GUARANTEES = dps.Assumption(
    name="sampled-guarantees",
    status="declared",
    text="a guarantee with rate holds on the drawn sample for added and removed records, one with batch_size for "
    "replaced records; the sample stays secret",
)

BOUNDED_RANGE = dps.Assumption(
    name="bounded-range",
    status="declared",
    text="releases of kind exponential are exponential mechanisms, or noisy max with Gumbel noise; permute-and-flip "
    "and noisy max with other noise are of kind approx-dp with delta 0",
)

ROUNDED_DELTA = dps.Assumption(
    name="rounded-delta",
    status="declared",
    text="the sum of the declared deltas counts as the delta of the claim, which it exceeds by at most the rounding of "
    f"declared numbers ({decimals.ROUNDING:.0e} relative)",
)

#: Assumptions about the meaning of a kind or key, which every report states.
_NOTED = (ROUNDED_DELTA, OWN_SAMPLES, SAMPLED_GUARANTEES, BOUNDED_RANGE)

ATTAINED = dps.Assumption(
    name="attained-sensitivity",
    status="declared",
    text="one pair of neighbors attains the declared sensitivity of all queries with noise",
)


def outcomes(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
    releases, sizes = releases_of(spec), group_sizes(spec)
    rows: list[tuple[str, int, float, float]] = []
    for done, size in enumerate(sizes):
        context.progress(done, len(sizes), "accounting")
        composition = Composition(releases, size)
        for quantity, arguments, interval in _intervals(spec, composition, size):
            located = {**arguments, "group_size": size}
            assumptions = [*_assumed(releases)]
            if quantity == "epsilon" and composition.exceeds_by_rounding(float(arguments.get("delta", 0.0))):
                assumptions.append(ROUNDED_DELTA)
            yield from _findings(spec, releases, context.facts.records, quantity, located, interval, assumptions)
        curve = composition.curve(kit.PROFILE_DELTAS)
        for adjacency in adjacencies(spec):
            points = zip(curve, kit.PROFILE_DELTAS, strict=True)
            rows += [(adjacency, size, epsilon, delta) for epsilon, delta in points]
    context.progress(len(sizes), len(sizes), "accounting")
    yield kit.profile(rows, rigor="certified", source=SOURCE)
    if 1 < len(releases) <= _MOST_SHARES:
        yield _shares(spec, releases, sizes[0], kit.claimed_deltas(spec, sizes[0], default=spec.mechanism["delta"])[0])


def noted(bounds: Sequence[dps.Finding | dps.Series]) -> Iterator[str]:
    """Sentences for every report: the assumptions that the names of kinds and keys do not say."""
    assumed = {assumption for bound in bounds if isinstance(bound, dps.Finding) for assumption in bound.assumptions}
    for assumption in _NOTED:
        if assumption in assumed:
            yield f"{assumption.text[:1].upper()}{assumption.text[1:]}."


def _assumed(releases: Sequence[Release]) -> Iterator[dps.Assumption]:
    yield from ASSUMPTIONS
    drawn = [release for release in releases if release.is_sampled and release.kind != "gaussian-mixture"]
    if sum(release.times for release in drawn if not release.sample) > 1:
        yield OWN_SAMPLES
    if any(release.is_guarantee for release in drawn):
        yield SAMPLED_GUARANTEES
    if any(release.kind == "exponential" for release in releases):
        yield BOUNDED_RANGE


def _shares(spec: dps.Spec, releases: Sequence[Release], size: int, delta: float) -> dps.Series:
    """Epsilon of each release alone and of all others, and its delta: the cost of one depends on the order."""

    def epsilon(part: Sequence[Release]) -> float:
        return Composition(part, size).epsilons([delta])[0].upper

    blocks = spec.mechanism["releases"]
    names = [
        f"{block.get('name', number)}: {release.kind}" + (f", {release.times} times" if release.times > 1 else "")
        for number, (block, release) in enumerate(zip(blocks, releases, strict=True))
    ]
    columns: dict[str, tuple[dps.Json, ...]] = {
        "release": tuple(names),
        "epsilon": tuple(epsilon([release]) for release in releases),
        "epsilon_of_the_others": tuple(epsilon([*releases[:i], *releases[i + 1 :]]) for i in range(len(releases))),
        "delta": tuple(Composition([release], size).delta for release in releases),
    }
    subject = "record" if size == 1 else f"group of {size} records"
    return dps.Series(
        name="epsilon-by-release",
        title=f"Epsilon of each release alone, and of all others together, for a {subject} at delta {delta:g}",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="certified",
        source=SOURCE,
        plot=dps.FrozenMap({"kind": "constants", "x": "release", "y": ("epsilon",)}),
        bounds=dps.FrozenMap(dict.fromkeys(("epsilon", "epsilon_of_the_others", "delta"), "upper")),
    )


def _intervals(
    spec: dps.Spec, composition: Composition, size: int
) -> Iterator[tuple[str, dict[str, dps.Json], Interval]]:
    claims = [claim for claim in spec.claims if claim.group_size == size]
    deltas = kit.claimed_deltas(spec, size, default=spec.mechanism["delta"])
    for delta, epsilon in zip(deltas, composition.epsilons(deltas), strict=True):
        yield "epsilon", {"delta": delta}, epsilon
    for fpr in kit.claimed_fprs(claims):
        yield "tpr", {"fpr": fpr}, composition.tpr(fpr)
    for alpha in sorted({float(claim["alpha"]) for claim in claims if claim.kind == "renyi-dp"}):
        yield "epsilon", {"alpha": alpha}, composition.rdp(alpha)
    kinds = {claim.kind for claim in claims}
    if "pure-dp" in kinds or composition.is_pure:
        yield "epsilon", {"delta": 0.0}, composition.pure()
    if any("advantage" in claim.options for claim in claims):
        yield "advantage", {}, composition.advantage()
    if "zcdp" in kinds:
        yield "rho", {}, composition.rho()


def _findings(
    spec: dps.Spec,
    releases: Sequence[Release],
    records: int,
    quantity: str,
    arguments: dict[str, dps.Json],
    interval: Interval,
    assumptions: Sequence[dps.Assumption],
) -> Iterator[dps.Finding]:
    source = _RENYI if quantity == "rho" or "alpha" in arguments else SOURCE
    size = int(arguments["group_size"])
    fewest = min((release.records - size for release in releases if release.records), default=0)
    for adjacency in adjacencies(spec):
        everywhere = dps.Scope(adjacency=adjacency, unit=spec.unit)
        upper = certified_upper(
            quantity, interval, at=arguments, scope=everywhere, source=source, assumptions=assumptions
        )
        yield from (replace(upper, scope=scope) for scope in _scopes(everywhere, releases, size, records))
        source_below = f"{source}; the releases whose pair is known, alone"
        lower = certified_lower(upper, interval, source=source_below, min_records=max(0, fewest))
        if lower is not None:
            yield replace(lower, assumptions=(*lower.assumptions, ATTAINED))


def _scopes(everywhere: dps.Scope, releases: Sequence[Release], size: int, records: int) -> Iterator[dps.Scope]:
    """All datasets, or datasets of a minimum size and separately the declared one, if every release covers them.

    A sample of fixed size has a larger rate in fewer records. A cap binds more often with more records, and with fewer
    ones it hides a member less: its bound is about the declared dataset.
    """
    common = _common_scope(everywhere, releases, size)
    if common is None:
        return
    is_capped = any(release.max_batch for release in releases)
    changed = 0 if everywhere.adjacency == "replace-one" else size  # in the number of records
    fewest = max((release.records - changed for release in releases if release.batch_size), default=0)
    narrowed = is_capped or fewest > 0 or common.min_records > 0
    if not is_capped and common.data != "this":
        yield replace(common, min_records=max(0, fewest, common.min_records))
    if common.data == "this" or (common.data == "all" and narrowed and records - size >= common.min_records):
        yield replace(common, data="this", min_records=0)


def _common_scope(everywhere: dps.Scope, releases: Sequence[Release], size: int) -> dps.Scope | None:
    """The datasets and adversaries that the declared guarantees of all releases cover; None without common ones.

    Groups change one record after another. A guarantee for this dataset, or for a collection, does not cover the
    datasets between, whose neighbors are others.
    """
    scopes = [release.scope for release in releases]
    data = {scope.data for scope in scopes} - {"all"}
    if len(data) > 1 or (data and size > 1):
        return None
    return replace(
        everywhere,
        data=next(iter(data), "all"),
        min_records=max(scope.min_records for scope in scopes),
        access=min((scope.access for scope in scopes), key=("final-model", "all-iterates").index),
        adversary=min((scope.adversary for scope in scopes), key=("none", "record", "gradient").index),
        neighbours=next((scope.neighbours for scope in scopes if scope.neighbours != "all"), "all"),
    )
