"""The lines of a privacy statement, each checked, observed, declared, not met or not covered by an audit.

Text from specs and plugins is returned unescaped: each format escapes it. No line depends on a data-dependent value.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from dpspec import decimals
from dpspec.contract import Finding, Json
from dpspec.contract.executed import ExecutedNoise
from dpspec.contract.results import AuditResult, Result, Verdict, claim_block, open_cautions
from dpspec.language.blocks import SELECTION
from dpspec.reporters import words
from dpspec.reporters.provenance import (
    DATA_DIGEST,
    collection,
    data_name,
    deployment,
    judging_versions,
    of_audit,
    records,
    trained,
    training_versions,
)
from dpspec.reporters.risk import highest_rate
from dpspec.results.executed_noise import by_own_loop, executed_noise
from dpspec.results.status import is_control, narrowed_data
from dpspec.text import joined

#: ``checked``: a finding or a test carries it. ``observed``: the recording saw it. ``declared``: the spec or its author
#: states it. ``not met``: a check rejects it. ``not covered``: it is not stated, and no test is about it.
Coverage: TypeAlias = Literal["checked", "observed", "declared", "not met", "not covered"]

_UNITS = {"add-remove": "added or removed", "replace-one": "replaced by another", "zero-out": "replaced by nothing"}
_RELEASED = {
    "all-iterates": "every intermediate model",
    "final-model": "the final model",
    "transcript": "every intermediate model, and the other records of each batch",
}

#: The clauses that ask for each line. SP 800-226 and the Opinion by headings, "How to DP-fy ML" by the items of the
#: list in section 5.3, the registry by its keys, AISVS by its requirements.
CLAUSES: dict[str, dict[str, str]] = {
    "privacy-loss": {
        "NIST SP 800-226": "Privacy parameter epsilon",
        "How to DP-fy ML": "Formal DP statement",
        "Deployments registry": "dp_variant; privacy_loss.privacy_parameters",
        "EDPB Opinion 28/2024": "Methodological choices; documentation",
        "OWASP AISVS": "11.3.2",
    },
    "risk": {
        "NIST SP 800-226": "Privacy parameter epsilon",
        "Deployments registry": "privacy_loss.privacy_parameters_details",
        "EDPB Opinion 28/2024": "Likelihood of identification",
    },
    "unit": {
        "NIST SP 800-226": "Unit of privacy; bounding contributions",
        "How to DP-fy ML": "Unit of privacy",
        "Deployments registry": "privacy_loss.privacy_unit, privacy_unit_details, number_of_privacy_units",
    },
    "adjacency": {
        "NIST SP 800-226": "Unit of privacy",
        "How to DP-fy ML": "Adjacency definition",
        "Deployments registry": "privacy_loss.privacy_unit_details",
    },
    "trust-model": {
        "NIST SP 800-226": "Trust model",
        "How to DP-fy ML": "DP setting",
        "Deployments registry": "deployment_model.model_name, trust_assumptions",
    },
    "released-output": {
        "NIST SP 800-226": "Unit of privacy; query model",
        "How to DP-fy ML": "Final mechanism's output",
        "Deployments registry": "deployment_model.release_type_details",
        "EDPB Opinion 28/2024": "Measures regarding outputs",
    },
    "mechanism": {
        "NIST SP 800-226": "Algorithms and correctness",
        "How to DP-fy ML": "Accounting assumptions; verifiability",
        "Deployments registry": "implementation.mechanisms",
        "EDPB Opinion 28/2024": "Methodological choices; model analysis",
        "OWASP AISVS": "11.3.2",
    },
    "pre-processing": {
        "NIST SP 800-226": "Data collection exposure",
        "How to DP-fy ML": "Data accesses covered",
        "Deployments registry": "implementation.preprocessing_and_hyperparameter_tuning",
        "EDPB Opinion 28/2024": "Data preparation and minimization",
    },
    "accounting": {
        "NIST SP 800-226": "Algorithms and correctness",
        "How to DP-fy ML": "Type of accounting; accounting assumptions",
        "Deployments registry": "implementation.composition, justification",
    },
    "tuning": {
        "How to DP-fy ML": "Data accesses covered",
        "Deployments registry": "implementation.preprocessing_and_hyperparameter_tuning",
    },
    "earlier-releases": {
        "NIST SP 800-226": "Composition; mixing with other releases",
        "How to DP-fy ML": "Data accesses covered",
        "Deployments registry": "implementation.composition",
    },
    "data": {
        "NIST SP 800-226": "Data collection exposure",
        "Deployments registry": "basic; privacy_loss.number_of_privacy_units",
        "EDPB Opinion 28/2024": "Selection of sources; documentation",
    },
    "data-collection": {
        "NIST SP 800-226": "Data collection exposure",
        "EDPB Opinion 28/2024": "Selection of sources",
    },
    "security": {
        "NIST SP 800-226": "Security and access control",
        "EDPB Opinion 28/2024": "Documentation: technical and organizational measures",
    },
    "floating-point": {"NIST SP 800-226": "Side channels; mechanism implementation"},
    "side-channels": {"NIST SP 800-226": "Side channels"},
    "utility": {"NIST SP 800-226": "Utility", "Deployments registry": "implementation.utility"},
    "bias": {"NIST SP 800-226": "Bias", "Deployments registry": "implementation.utility"},
    "attacks": {
        "NIST SP 800-226": "Auditing and empirical measures",
        "How to DP-fy ML": "Transparency and verifiability",
        "EDPB Opinion 28/2024": "Testing and resistance to attacks",
        "OWASP AISVS": "11.3.3",
    },
    "verification": {
        "How to DP-fy ML": "Transparency and verifiability",
        "Deployments registry": "implementation.additional_information",
        "EDPB Opinion 28/2024": "Model analysis; documentation",
    },
    "versions": {"How to DP-fy ML": "Transparency and verifiability", "EDPB Opinion 28/2024": "Documentation"},
    "people": {
        "Deployments registry": "basic.data_curators, intended_use, data_product_region, publication_date",
        "EDPB Opinion 28/2024": "Documentation",
    },
}


#: The coverages, the weakest first.
_WEAKEST: tuple[Coverage, ...] = ("not met", "not covered", "declared", "observed", "checked")

#: A line of a sweep has at most this number of texts, and names at most this number of cells.
_MOST_TEXTS = 3
_MOST_NAMED = 3

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True)
class Line:
    """A line of a statement. ``key`` is one of :data:`CLAUSES`."""

    key: str
    name: str
    coverage: Coverage
    text: str


def lines(result: Result, audit: AuditResult) -> tuple[Line, ...]:
    """The lines for one audit of a result, in the order of :data:`CLAUSES`."""
    answers, facts = collection(audit.document), deployment(audit.document)
    return (
        _privacy_loss([audit]),
        _risk([audit], [audit.name]),
        *_unit(audit),
        _trust_model(audit),
        _released_output(audit),
        _mechanism(audit),
        _pre_processing(audit),
        _accounting(audit),
        _tuning(audit),
        _earlier_releases(audit),
        _data(audit),
        _answer("data-collection", "Data collection", answers.get("source"), "the collection of the data"),
        _answer("security", "Security and access control", facts.get("security"), "access to data, code, logs, seeds"),
        _floating_point(audit),
        _answer(
            "side-channels",
            "Side channels",
            facts.get("side_channels"),
            "timing is not covered",
        ),
        _utility(audit),
        _answer(
            "bias",
            "Bias and subgroups",
            answers.get("subgroups"),
            "differences of utility between subgroups were not measured",
        ),
        _attacks(audit),
        _verification(audit),
        _versions(result, audit),
        _people(audit),
    )


def lines_of_cells(result: Result, audits: Sequence[AuditResult], titles: Sequence[str]) -> tuple[Line, ...]:
    """The lines for all cells of a matrix.

    Claims are counted over all cells, and the risk is the highest one. Another line that differs between cells has the
    weakest coverage, and each text with its cells; of many texts, one with this coverage.
    """
    of_all = {line.key: line for line in (_privacy_loss(audits), _risk(audits, titles))}
    by_line = zip(*(lines(result, audit) for audit in audits), strict=True)
    return tuple(of_all.get(of_cells[0].key) or _weakest(of_cells, titles) for of_cells in by_line)


def _weakest(of_cells: Sequence[Line], titles: Sequence[str]) -> Line:
    cells_of = cells_by_value([line] for line in of_cells)
    weakest, *stronger = sorted(cells_of, key=lambda line: _WEAKEST.index(line.coverage))
    if not stronger:
        return weakest
    if len(cells_of) > _MOST_TEXTS:
        cells = words.count(len(of_cells) - len(cells_of[weakest]), "other cell")
        texts = [f"of {cells_in_words(cells_of[weakest], titles)}: {weakest.text}", f"The line of {cells} differs"]
    else:
        texts = [
            f"of {cells_in_words(cells_of[line], titles)}"
            f"{'' if line.coverage == weakest.coverage else f' ({line.coverage})'}: {line.text}"
            for line in (weakest, *stronger)
        ]
    return replace(
        weakest, text=". ".join([texts[0].rstrip("."), *(words.sentence(text.rstrip(".")) for text in texts[1:])])
    )


def cells_by_value(of_cells: Iterable[Iterable[_T]]) -> dict[_T, list[int]]:
    """Return the numbers of the cells that have each value. of_cells: the distinct values of each cell."""
    cells_of: dict[_T, list[int]] = {}
    for number, values in enumerate(of_cells):
        for value in values:
            cells_of.setdefault(value, []).append(number)
    return cells_of


def cells_in_words(numbers: Sequence[int], titles: Sequence[str]) -> str:
    """``the cells A; B``, ``all cells but A``, or ``5 of 9 cells, the first A``. titles: of all cells."""
    excluded = [title for number, title in enumerate(titles) if number not in numbers]
    if len(numbers) <= _MOST_NAMED:
        return f"the cell{'' if len(numbers) == 1 else 's'} {'; '.join(titles[number] for number in numbers)}"
    if len(excluded) <= _MOST_NAMED:
        return f"all cells but {'; '.join(excluded)}"
    return f"{len(numbers)} of {len(titles)} cells, the first {titles[numbers[0]]}"


def guarantees(audit: AuditResult) -> list[tuple[Verdict, Finding | None]]:
    """Privacy claims without controls, with the findings of their upper ends."""
    private = [v for v in audit.verdicts if v.kind != "metric" and not is_control(audit, v)]
    return [(v, None if v.upper_finding is None else audit.findings[v.upper_finding]) for v in private]


def threat_model(audit: AuditResult) -> Mapping[str, Json]:
    threat = audit.document.get("threat_model")
    return threat if isinstance(threat, Mapping) else {}


def unit(audit: AuditResult) -> str:
    """The unit of privacy; a client if the records of a recording are clients."""
    return "client" if audit.recording is not None and audit.recording.is_federated else words.unit(audit.document)


def has_public_data(audit: AuditResult) -> bool:
    """Whether the spec says that the records are public, so that their digest reveals nothing."""
    data = audit.document.get("data")
    return isinstance(data, Mapping) and bool(data.get("public"))


def seen_trust_model(audit: AuditResult) -> str:
    """``federated`` or ``central`` by the recording; empty without one."""
    if audit.recording is None:
        return ""
    return "federated" if audit.recording.is_federated else "central"


def is_trust_model_doubted(audit: AuditResult) -> bool:
    """Whether the declared trust model is another one than the recording saw."""
    declared, recorded = deployment(audit.document).get("trust_model"), seen_trust_model(audit)
    return bool(declared and recorded and declared != recorded)


def _answer(key: str, name: str, declared: Json, subject: str) -> Line:
    """A line that only a declaration can fill."""
    if declared:
        return Line(key, name, "declared", str(declared))
    return Line(key, name, "not covered", f"nothing is declared; {subject}")


def _privacy_loss(audits: Sequence[AuditResult]) -> Line:
    stated = [(audit, verdict) for audit in audits for verdict, _ in guarantees(audit)]
    verdicts = [words.verdict_label(audit, verdict) for audit, verdict in stated]
    decided = bool(verdicts) and set(verdicts) <= {"proved", "supported"}
    count = f"{verdicts.count('proved')} of {words.count(len(verdicts), 'claim')} proved, by the bounds of the claims"
    narrow = {narrowed_data(audit, verdict) for audit, verdict in stated} - {""}
    if narrow:
        datasets = {"collection": "datasets of the declared collection", "this": "this dataset and its neighbors"}
        count += f"; some for {joined([datasets[data] for data in sorted(narrow)])} only"
    if decided:
        return Line("privacy-loss", "Epsilon and delta", "checked", count)
    statement = f"{count}; the others are not established by this audit" if verdicts else "no claim is made"
    return Line("privacy-loss", "Epsilon and delta", "declared", statement)


def _risk(audits: Sequence[AuditResult], titles: Sequence[str]) -> Line:
    highest = highest_rate(audits, titles)
    caveats = " ".join(highest.caveats)
    if highest.rate is None:
        return Line("risk", "Risk in plain words", "not covered", caveats)
    is_tested = not highest.condition and all(
        audit.complete and audit.conformance.status == "no-deviation-found" for audit in audits
    )
    of_cell = f"The cell {highest.title} has the highest risk." if highest.title else ""
    assumed = "It holds under the assumptions below." if any(audit.recording for audit in audits) else ""
    larger = " ".join(rate.short for rate in highest.larger)
    several = highest.rate.of_many("people with one record each" if highest.rate.targets == "records" else "")
    text = " ".join(filter(None, (of_cell, highest.rate.of_hundred(), several, larger, assumed, caveats)))
    return Line("risk", "Risk in plain words", "checked" if is_tested else "declared", text)


def _unit(audit: AuditResult) -> tuple[Line, Line]:
    threat, protected = threat_model(audit), unit(audit)
    group_size = threat.get("group_size") or 1
    sizes = " and ".join(map(words.value, group_size if isinstance(group_size, list | tuple) else [group_size]))
    limits = (a.text for finding in audit.findings for a in finding.assumptions if a.name == "records-per-user")
    contribution = "the number of records per person is not checked"
    if protected == "client":
        contribution = "a client is protected with all its records"
    elif protected != "record":
        contribution = next(limits, "the number of records of a user is not checked")
    if stated := collection(audit.document).get("records_per_person"):
        contribution += f"; declared: {stated}"
    adjacency = str(threat.get("adjacency", "add-remove"))
    text = f"one {protected}; groups of {sizes} were accounted for. {words.sentence(contribution)}"
    pair = f"{adjacency}: two datasets that differ in one {protected}, {_UNITS.get(adjacency, adjacency)}"
    return (
        Line("unit", "Unit of privacy", "declared", text),
        Line("adjacency", "Adjacency", "declared", pair),
    )


def _trust_model(audit: AuditResult) -> Line:
    facts, recorded_model = deployment(audit.document), seen_trust_model(audit)
    declared, trust = facts.get("trust_model"), facts.get("trust")
    texts = [f"{declared}, declared"] if declared else []
    if recorded_model == "federated":
        texts.append(
            "the recording saw rounds of a server that summed the updates of clients and added the noise: it is trusted"
        )
    elif recorded_model:
        texts.append("the recording saw one party that held the records and added the noise: it is trusted")
    if trust:
        texts.append(str(trust))
    if declared in ("local", "shuffle", "varies"):
        texts.append("no number here covers a party that sees the message of one person")
    if not texts:
        return Line(
            "trust-model",
            "Trust model",
            "not covered",
            "nothing is declared; the bounds assume a trusted party that holds the records and adds the noise",
        )
    if is_trust_model_doubted(audit):
        texts.append(
            f"the declaration does not agree with the recording, which is {recorded_model}: correct the wrong one"
        )
        return Line("trust-model", "Trust model", "not met", "; ".join(texts))
    return Line("trust-model", "Trust model", "observed" if recorded_model else "declared", "; ".join(texts))


def _released_output(audit: AuditResult) -> Line:
    access = str(threat_model(audit).get("access", "all-iterates"))
    return Line("released-output", "Released output", "declared", f"the adversary sees {_RELEASED.get(access, access)}")


#: The audited training has canaries and a known seed.
_OTHER_MODEL = "The released model is another run of this mechanism than the audited one, and was not tested itself."


def _mechanism(audit: AuditResult) -> Line:
    mechanism = audit.document.get("mechanism", {})
    values = {
        key: value for key, value in mechanism.items() if value is not None and not (key == "pipeline" and not value)
    }
    declared = words.conditions(values)
    if audit.recording is not None:
        executed = "; ".join(words.phases(audit.recording))
        declared = f"{words.sentence(audit.recording.ran)}. Executed: {executed}" if executed else audit.recording.ran
        declared += ". A record is a client" if unit(audit) == "client" else ""
    compared = {
        "no-deviation-found": "was compared with this",
        "deviates": "deviates from this",
        "checks-missing": "was not tested as planned",
    }
    if audit.recording is not None:
        compared["no-deviation-found"] = "was tested at each recorded step"
        compared["deviates"] = "is not what its accounting assumes"
    status, reason = audit.conformance.status, audit.conformance.reason
    if status not in compared:
        text = f"{declared}. The executed run was not compared with this"
        return Line("mechanism", "Mechanism", "declared", text)
    coverages: dict[str, Coverage] = {"checks-missing": "declared", "deviates": "not met"}
    coverage = coverages.get(status, "declared" if open_cautions(audit) else "checked")
    if cautions := words.name_list([rule.name for rule in open_cautions(audit)]):
        reason = f"{reason} Open cautions: {cautions}."
    other_model = f" {_OTHER_MODEL}" if audit.planned_trials else ""
    text = f"{declared}. The executed run {compared[status]}: {reason}{other_model}"
    return Line("mechanism", "Mechanism", coverage, text)


#: Keys of a data block that do not change its rows.
_NOT_STEPS = ("kind", "path", "public", "collection", "records", "features", "classes", "test", "split", "seed")


def _pre_processing(audit: AuditResult) -> Line:
    data, mechanism = audit.document.get("data"), audit.document.get("mechanism")
    pipeline = mechanism.get("pipeline") if isinstance(mechanism, Mapping) else None
    texts = [f"part of the mechanism and of its bounds: {words.value(pipeline)}"] if pipeline else []
    options = data if audit.recording is None and isinstance(data, Mapping) else {}
    steps = {key: value for key, value in options.items() if key not in _NOT_STEPS and value not in (None, False)}
    if steps:
        texts.append(f"of the loader: {words.conditions(steps)}")
    if stated := collection(audit.document).get("preparation"):
        texts.append(f"before that, declared: {stated}")
    if not texts:
        return Line(
            "pre-processing", "Pre-processing", "not covered", "nothing is declared about steps before the rows"
        )
    ending = "" if stated else "; steps before these rows are not covered"
    return Line("pre-processing", "Pre-processing", "declared", f"{'; '.join(texts)}{ending}")


def _accounting(audit: AuditResult) -> Line:
    by = dict.fromkeys(
        f"{upper.method}, after {upper.source} ({words.rigor(upper)})" for _, upper in guarantees(audit) if upper
    )
    if not by:
        return Line("accounting", "Accounting", "not covered", "no upper bound decides a claim")
    uppers = [upper for _, upper in guarantees(audit) if upper]
    proved = all(upper.rigor in ("certified", "theorem") for upper in uppers)
    accountant = ""
    if audit.recording is not None:
        accountant = f". {audit.recording.answers.get('accounting', '')}".rstrip(". ")
    coverage: Coverage = "checked" if proved and audit.conformance.status != "deviates" else "declared"
    return Line("accounting", "Accounting", coverage, f"{'; '.join(by)}{accountant.rstrip('.')}")


def _tuning(audit: AuditResult) -> Line:
    over = [v.claim for v, _ in guarantees(audit) if claim_block(audit, v).get("over") == "matrix"]
    mechanism, declared = audit.document.get("mechanism"), deployment(audit.document).get("tuning")
    inside = over or (isinstance(mechanism, Mapping) and mechanism.get("kind") == SELECTION)
    texts = ["the choice of the best cell is part of the claims (over: matrix)"] if inside else []
    texts += [f"declared: {declared}"] if declared else []
    name = "Tuning and model choice"
    if not texts:
        return Line("tuning", name, "not covered", "nothing is declared; a choice that used the data costs more")
    return Line("tuning", name, "checked" if inside and not declared else "declared", "; ".join(texts))


def _earlier_releases(audit: AuditResult) -> Line:
    mechanism, declared = audit.document.get("mechanism"), deployment(audit.document).get("earlier_releases")
    composed = mechanism.get("releases") if isinstance(mechanism, Mapping) else None
    texts = []
    if isinstance(composed, list | tuple):
        texts.append(f"the bounds compose the listed releases ({len(composed)})")
    texts += [f"declared: {declared}"] if declared else []
    texts.append("further releases from the same data are not counted")
    coverage: Coverage = "declared" if len(texts) > 1 else "not covered"
    return Line("earlier-releases", "Earlier releases", coverage, "; ".join(texts))


def _data(audit: AuditResult) -> Line:
    rows = dict(of_audit(audit))
    digests = [f"{term.lower()} {rows[term]}" for term in ("Recording digest", "Subset") if term in rows]
    if audit.facts.digest and audit.recording is None:
        hidden = "the digest of the rows is in the result file: published, it would confirm a guess of the rows"
        digests.append(f"digest {rows[DATA_DIGEST]}" if has_public_data(audit) else hidden)
    text = "; ".join([data_name(audit), records(audit), *digests])
    return Line("data", "Data", "declared" if audit.recording is None else "observed", text)


def _floating_point(audit: AuditResult) -> Line:
    origin, noise = None if audit.recording is None else audit.recording.origin, executed_noise(audit)
    ran = ""
    if origin is not None and origin.dtypes:
        ran = joined(origin.dtypes)
    elif audit.trials and audit.document.get("model") and all(map(by_own_loop, audit.trials)):
        ran = "float32"
    coverage: Coverage = "observed" if origin is not None else "declared"
    facts = [] if noise is None else [*noise_facts(noise)]
    if noise is not None and noise.integers:
        texts = ["contributions and noise were integers, drawn and added exactly", *facts]
    elif ran:
        texts = [f"sums and noise were in {ran}", *facts, _REAL_NUMBERS]
    else:
        coverage, texts = "not covered", ["the number type of the run is unknown", *facts, _REAL_NUMBERS]
    return Line("floating-point", "Floating point", coverage, "; ".join(texts))


#: The assumption ``exact-arithmetic`` in a line.
_REAL_NUMBERS = "the bounds assume noise of real numbers, and do not cover the low-order bits of floats"


def noise_facts(noise: ExecutedNoise) -> Iterator[str]:
    """The generator, its seed, the number of draws, and the delta below which its numbers allow no finite epsilon."""
    seed = "with a seed of unknown size" if noise.seed_bits is None else f"with a seed of {noise.seed_bits} bits"
    if noise.seed_bits == 0:
        seed = "with a seed that follows from the spec"
    yield f"drawn by {noise.generator} {seed}"
    if noise.draws > 1:
        yield f"each value is a sum of {noise.draws} draws, which makes differences of floats rare and proves no bound"
    if noise.revealed > 0.0:
        yield (
            "its float32 numbers end at 5.77 standard deviations: no finite epsilon holds below delta "
            f"{decimals.lower(noise.revealed)} for an adversary who chooses gradients and sees noisy sums"
        )


def _utility(audit: AuditResult) -> Line:
    metrics = [v for v in audit.verdicts if v.kind == "metric" and not is_control(audit, v)]
    if not metrics:
        return Line("utility", "Utility", "not covered", "no claim about the utility of the model is made")
    text = "; ".join(f"{v.text}: {v.verdict}" for v in metrics)
    decided = all(v.verdict in ("proved", "supported") for v in metrics)
    return Line("utility", "Utility", "checked" if decided else "declared", text)


def _attacks(audit: AuditResult) -> Line:
    name = "Attacks"
    attacks = [evidence for evidence in audit.evidence if evidence.quantity == "epsilon"]
    if not attacks:
        return Line("attacks", name, "not covered", "no attack was run")
    shown = [
        f"{v.claim}: {lower_bound}" for v, _ in guarantees(audit) if (lower_bound := words.bounds(audit, v).attack)
    ]
    methods = joined(list(dict.fromkeys(evidence.method for evidence in attacks)))
    so_far = "" if audit.complete else ", with trials missing"
    texts = [f"{words.count(len(attacks), 'attack')} ({methods}) on the executed run{so_far}", *shown]
    text = f"{'; '.join(texts)}. A stronger attack may find more"
    return Line("attacks", name, "checked" if audit.complete else "declared", text)


def _verification(audit: AuditResult) -> Line:
    text = "with the result file, dpspec verify recomputes bounds, conclusions and verdicts"
    if audit.recording is not None:
        text = str(audit.recording.answers.get("verification", text))
    elif any(trial.arrays for trial in audit.trials):
        text += "; numbers from arrays need the store of the trials"
    return Line("verification", "Verification", "declared", text)


def _versions(result: Result, audit: AuditResult) -> Line:
    versions = training_versions(audit)
    texts = [f"trained with {versions}"] if versions else []
    texts.append(f"judged {result.created} with {judging_versions(result)}")
    return Line("versions", "Versions", "observed", "; ".join(texts))


def _people(audit: AuditResult) -> Line:
    facts, document = deployment(audit.document), audit.document
    stated = {
        "system": document.get("system"),
        "owner": document.get("owner"),
        "contact": document.get("contact"),
        "run by": facts.get("operator"),
        "purpose": facts.get("intended_use"),
        "region": facts.get("region"),
        "published": facts.get("published"),
    }
    missing = [name for name, value in stated.items() if not value]
    texts = [f"{name}: {value}" for name, value in stated.items() if value]
    texts += [f"trained: {trained(audit)}"]
    texts += [f"not declared: {joined(missing)}"] if missing else []
    coverage: Coverage = "declared" if len(missing) < len(stated) else "not covered"
    return Line("people", "Responsibility", coverage, "; ".join(texts))


def assumptions(audit: AuditResult) -> Iterator[tuple[str, str, str]]:
    """Name, status and text of the assumptions of all upper bounds."""
    of_bounds = (a for finding in audit.findings if finding.bound == "upper" for a in finding.assumptions)
    yield from dict.fromkeys((a.name, a.status, a.text or a.name) for a in of_bounds)
