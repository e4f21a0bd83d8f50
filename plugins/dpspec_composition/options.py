"""The declared releases, and specs that no bound covers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec import kit

#: Per kind of release: required and optional keys.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gaussian": (("sigma",), ("sensitivity", "rate", "batch_size", "records", "max_batch", "sample")),
    "gaussian-mixture": (("sigma", "shifts", "probabilities"), ()),
    "laplace": (("scale",), ("sensitivity", "rate", "sample")),
    "discrete-gaussian": (("sigma",), ("sensitivity",)),
    "randomized-response": (("epsilon",), ("answers",)),
    "exponential": (("epsilon",), ("rate", "sample")),
    "approx-dp": (("epsilon",), ("delta", "rate", "batch_size", "records", "sample")),
    "zcdp": (("rho",), ("rate", "sample")),
    "gdp": (("mu",), ("rate", "sample")),
    "noise": (("noise", "scale"), ("sensitivity",)),
}

#: Kinds that declare a guarantee, without a known pair of outputs.
GUARANTEES = frozenset({"exponential", "approx-dp", "zcdp", "gdp"})

#: Kinds whose runs on one sample are one query with Gaussian noise.
ONE_QUERY = frozenset({"gaussian", "gdp"})

#: The parts of a scope that samples do not inherit from their datasets.
OF_DATASETS = ("data", "min_records", "neighbours")

#: The keys that all releases of one sample share.
SAMPLE_KEYS = ("rate", "batch_size", "records")


@dataclass(frozen=True, kw_only=True)
class Covered(kit.Options):
    """The block ``scope`` of a release, with keys of :class:`dpspec.contract.Scope`."""

    data: str = "all"
    min_records: int = 0
    access: str = "all-iterates"
    adversary: str = "gradient"
    neighbours: str = "all"


@dataclass(frozen=True, kw_only=True)
class Release(kit.Options):
    """One entry of ``releases``; keys of other kinds have no meaning."""

    kind: str
    times: int = 1
    noise: str = ""
    sigma: float = 0.0
    scale: float = 0.0
    sensitivity: float = 1.0
    rate: float = 1.0
    batch_size: int = 0
    records: int = 0
    max_batch: int = 0
    sample: str = ""
    shifts: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()
    epsilon: float = 0.0
    delta: float = 0.0
    answers: int = 2
    rho: float = 0.0
    mu: float = 0.0
    scope: Covered = Covered()

    @property
    def is_sampled(self) -> bool:
        """Whether the query reads a random sample of the records."""
        return self.rate < 1.0 or self.batch_size > 0 or self.max_batch > 0 or self.kind == "gaussian-mixture"

    @property
    def is_guarantee(self) -> bool:
        return self.kind in GUARANTEES


def releases_of(spec: dps.Spec) -> tuple[Release, ...]:
    return tuple(Release.of(block) for block in spec.mechanism["releases"])


def group_sizes(spec: dps.Spec) -> list[int]:
    return sorted({*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)})


def adjacencies(spec: dps.Spec) -> list[str]:
    return sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})


def samples_of(releases: Sequence[Release]) -> dict[str, list[Release]]:
    """The releases of each named sample."""
    samples: dict[str, list[Release]] = {}
    for release in releases:
        if release.sample:
            samples.setdefault(release.sample, []).append(release)
    return samples


def refusals(spec: dps.Spec, records: int) -> Iterator[dps.Diagnostic]:
    """Specs that no bound covers, for data of ``records``."""
    if spec.audit is not None:
        yield kit.unsupported("a composition has bounds only: it attacks nothing", ("audit",), "leave audit out")
    relations, largest = adjacencies(spec), group_sizes(spec)[-1]
    releases = releases_of(spec)
    samples = samples_of(releases)
    for i, release in enumerate(releases):
        release_path: dps.Path = ("mechanism", "releases", i)
        if release.is_guarantee and release.is_sampled:
            yield from _guarantee_refusals(release, relations, release_path)
        elif release.is_sampled and "replace-one" in relations:
            message = "a sample is covered for added, removed and zeroed-out records, not for replaced ones"
            key = {"gaussian-mixture": "kind"}.get(release.kind, "batch_size" if release.batch_size else "rate")
            yield kit.unsupported(message, (*release_path, key), f"set adjacency: add-remove, or leave {key} out")
        if release.batch_size and not release.is_guarantee and "zero-out" in relations:
            message = "a sample of fixed size is covered for added and removed records, not for null records"
            yield kit.unsupported(message, (*release_path, "batch_size"), "set threat_model.adjacency: add-remove")
        if release.records > records:  # a bound for more records would be smaller than the one for these
            message = f"records must be at most the {records} records of the data, got {release.records}"
            advice = "a sample is drawn from the data, or from a part: correct records, or data.records"
            yield kit.bad_value(message, (*release_path, "records"), advice)
        if release.max_batch:
            yield from _capped_refusals(spec, release, largest, release_path)
        elif release.batch_size or release.records:
            yield from _fixed_size_refusals(release, release_path)
        shared = samples.get(release.sample, [release])
        if release.sample:
            yield from _shared_refusals(release, shared[0], release_path)
        is_amplified = release.is_sampled and (release.is_guarantee or release.sample)
        if is_amplified and largest > 1 and not {member.kind for member in shared} <= ONE_QUERY:
            message = f"the guarantees of a sample are covered for single records, not for groups of {largest}"
            yield kit.unsupported(message, (*release_path, "kind"), "use gaussian or gdp, or leave group sizes out")
        if release.kind == "gaussian-mixture":
            yield from _mixture_refusals(release, largest, release_path)
        if release.kind == "randomized-response" and "add-remove" in relations:
            message = "randomized response hides an answer, not whether a person answers"
            yield kit.unsupported(message, (*release_path, "kind"), "set threat_model.adjacency: replace-one")
        if release.kind == "noise" and any(claim.kind in ("zcdp", "renyi-dp") for claim in spec.claims):
            message = "no Renyi divergences are known for a noise by name"
            yield kit.unsupported(message, (*release_path, "kind"), "claim approx-dp, membership or tradeoff")
        if release.kind == "laplace" and release.rate < 1.0 and largest > 1 and not release.sample:
            message = f"a Poisson sample with Laplace noise is covered for single records, not for groups of {largest}"
            yield kit.unsupported(message, (*release_path, "rate"), "leave rate out, or use gaussian")
        if release.kind == "discrete-gaussian" and release.sensitivity != round(release.sensitivity):
            message = f"sensitivity of an integer must be an integer, got {release.sensitivity:g}"
            yield kit.bad_value(message, (*release_path, "sensitivity"), "round it up")
        if release.kind == "discrete-gaussian" and release.sensitivity < 1.0:
            yield kit.bad_value("sensitivity must be at least 1 here", (*release_path, "sensitivity"))


def _guarantee_refusals(release: Release, relations: Sequence[str], location: dps.Path) -> Iterator[dps.Diagnostic]:
    """A guarantee holds for one relation of the records of the sample, and so does its amplification."""
    key, covered = ("batch_size", "replace-one") if release.batch_size else ("rate", "add-remove")
    message = "a guarantee on a Poisson sample is covered for added and removed records"
    if release.batch_size:
        message = "a guarantee on a sample of fixed size is covered for replaced records"
    if [*relations] != [covered]:
        yield kit.unsupported(message, (*location, key), f"set threat_model.adjacency: {covered}")
    for name in OF_DATASETS:
        if getattr(release.scope, name) != getattr(Covered(), name):
            message = "a sample of a covered dataset may be outside the scope: the guarantee must cover all samples"
            yield kit.unsupported(message, (*location, "scope", name), f"leave {name} out, or {key}")


def _shared_refusals(release: Release, first: Release, location: dps.Path) -> Iterator[dps.Diagnostic]:
    path = (*location, "sample")
    if not release.is_sampled:
        message = f"sample {release.sample} is not drawn"
        yield kit.unsupported(message, path, "add rate, the probability of each record, or leave sample out")
    if release.max_batch:
        yield kit.unsupported("a sample with a cap is one of a single release", path, "leave sample or max_batch out")
    for key in SAMPLE_KEYS:
        value, first_value = getattr(release, key), getattr(first, key)
        if value != first_value:
            message = f"the releases of sample {release.sample} have {key} {first_value:g} and {value:g}"
            yield kit.bad_value(message, path, "one drawn sample has one rate, and one size: give another name")


def _fixed_size_refusals(release: Release, location: dps.Path) -> Iterator[dps.Diagnostic]:
    for key, partner in (("batch_size", "records"), ("records", "batch_size")):
        if not getattr(release, key):
            yield kit.missing_key(key, location, f"a sample of fixed size has {partner} and {key}")
    if release.rate < 1.0:
        yield kit.unsupported(
            "rate belongs to Poisson samples", (*location, "rate"), "batch_size and records define it"
        )
    if release.records and release.batch_size > release.records:
        message = f"batch_size must be at most the {release.records} records, got {release.batch_size}"
        yield kit.bad_value(message, (*location, "batch_size"))


def _capped_refusals(spec: dps.Spec, release: Release, largest: int, location: dps.Path) -> Iterator[dps.Diagnostic]:
    if not release.records or release.batch_size:
        yield kit.unsupported("a Poisson sample with a cap has rate, records and max_batch", (*location, "max_batch"))
    elif release.records < largest:
        message = f"records must be at least the group of {largest}, got {release.records}"
        yield kit.bad_value(message, (*location, "records"))
    if "zero-out" in adjacencies(spec):
        message = "a sample with a cap is covered for added and removed records, not for null records"
        yield kit.unsupported(message, (*location, "max_batch"), "set threat_model.adjacency: add-remove")
    if any(claim.kind == "zcdp" for claim in spec.claims):
        message = "no rho is known for a sample with a cap"
        yield kit.unsupported(message, (*location, "max_batch"), "claim approx-dp")


def _mixture_refusals(release: Release, largest: int, location: dps.Path) -> Iterator[dps.Diagnostic]:
    if len(release.shifts) != len(release.probabilities):
        message = f"shifts has {len(release.shifts)} numbers, and probabilities {len(release.probabilities)}"
        yield kit.bad_value(message, (*location, "probabilities"))
    if abs(math.fsum(release.probabilities) - 1.0) > 1e-9:
        message = f"probabilities must sum to 1, got {math.fsum(release.probabilities):.12g}"
        yield kit.bad_value(message, (*location, "probabilities"))
    if largest > 1:
        message = f"a declared mixture covers one record, not a group of {largest}"
        yield kit.unsupported(message, (*location, "kind"), "use gaussian with rate")
