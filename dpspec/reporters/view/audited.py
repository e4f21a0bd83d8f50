"""What was audited, what came of it in plain English, and what a proved bound means in odds.

Text that a spec or a plugin may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpspec.contract import Json
from dpspec.contract.spec import unit_in_words
from dpspec.engine.judging.proven_curves import proven_curves
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Verdict
from dpspec.reporters.view import words
from dpspec.reporters.view.limits import recorded
from dpspec.text import joined, several, shortened

#: What signs an audit, as keys of a spec, and what a reader sees.
SIGNED = {"system": "System", "owner": "Owner", "contact": "Contact"}

#: The false-alarm rates at which odds are told.
_FALSE_ALARMS = (0.01, 0.1)

#: More than this is all of them.
_ALL = 0.999

#: A part of a spec is told in so many characters.
_LONGEST = 400


def audited(audit: AuditResult) -> Iterator[tuple[str, str]]:
    """What it was, as a term and a text each: who signs, mechanism, data, model, training, adversary, attack."""
    document = audit.document
    for key, term in SIGNED.items():
        if document.get(key):
            yield term, shortened(str(document[key]), _LONGEST)
    yield "Mechanism", _block(document.get("mechanism"), "kind")
    yield "Data", "; ".join(part for part in (_block(document.get("data"), "kind"), _records(audit)) if part)
    if document.get("model"):
        count = audit.facts.parameters
        size = f"; {words.count(count, 'parameter')}" if count is not None else ""
        yield "Model", f"{_block(document.get('model'), 'kind')}{size}"
    if audit.planned_trials or recorded(audit):
        yield "Training", _block(document.get("training"), "backend")
    yield "Adversary", _adversary(document.get("threat_model"), document.get("data"))
    if document.get("audit"):
        yield "Attack", _block(document.get("audit"), "method", leave_out=("expect", "confidence"))


def _block(block: Json, kind: str, leave_out: tuple[str, ...] = ()) -> str:
    """``group: noise_multiplier 1.5, clip_norm 1``."""
    if not isinstance(block, Mapping):
        return ""
    name = words.value(block.get(kind)) if block.get(kind) is not None else ""
    rest = {key: value for key, value in block.items() if key not in (kind, *leave_out)}
    return shortened(": ".join(part for part in (name, words.conditions(rest)) if part), _LONGEST)


def _records(audit: AuditResult) -> str:
    facts = audit.facts
    said = [words.count(facts.records, "record")]
    if facts.features:
        said.append(words.count(facts.features, "token" if facts.vocabulary else "feature"))
    if facts.classes:
        said.append(f"{facts.classes} classes" if facts.classes != 1 else "1 class")
    if facts.test_records:
        said.append(f"{facts.test_records} more to test on")
    return ", ".join(said)


def _adversary(threat: Json, data: Json) -> str:
    """Neighbours, what is seen, and groups."""
    if not isinstance(threat, Mapping):
        return ""
    unit = unit_in_words(str(threat.get("unit") or "record"), data if isinstance(data, Mapping) else {})
    parts = [words.neighbours(str(threat["adjacency"]), unit)] if threat.get("adjacency") else []
    parts += [words.of_scope("access", str(threat["access"]))] if threat.get("access") else []
    sizes = threat.get("group_size")
    if sizes is not None:
        of_whom = "" if unit == "record" else f" {unit.partition(' (')[0]}s"
        parts.append(f"groups of {joined([words.value(one) for one in _list(sizes)])}{of_whom}")
    return ", ".join(parts)


def _list(value: Json) -> list[Json]:
    return list(value) if isinstance(value, list | tuple) else [value]


def conclusion(audit: AuditResult) -> Iterator[str]:
    """Sentences that a reader without training in the field can act on, the worst first."""
    status = audit.conformance.status
    if status == "deviates":
        yield "What ran is not what was declared: proofs here are of the declared mechanism, not of that training."
    elif status == "checks-missing":
        yield "Checks of what ran were planned and not made: whether it is what was declared is not known."
    for name, one, more in _SAID:
        claims = [verdict for verdict in audit.verdicts if verdict.verdict == name and not words.is_control(verdict)]
        if claims:
            yield f"{_subject(claims)} {more if len(claims) > 1 else one}."
    controls = [verdict for verdict in audit.verdicts if words.is_control(verdict)]
    seen = [verdict for verdict in controls if verdict.expected]
    if seen:
        yield f"{_subject(seen)}, made to be false, came out {seen[0].verdict}: the audit can see such a thing."
    missed = [verdict for verdict in controls if not verdict.expected]
    if missed:
        yield f"{_subject(missed)}, made to be false, came out {missed[0].verdict}: the audit is blind to such a thing."
    if not audit.planned_trials and not recorded(audit):
        yield "Nothing was trained: all of this speaks of the mechanism as declared, not of any code."
    elif status == "conforms-within":
        yield (
            f"What ran was held against what was declared by {words.count(len(audit.checks), 'test')}, and none saw a "
            "difference."
        )
    elif status == "not-run":
        yield "Whether what ran is what was declared was not tested."


#: What is said of a verdict, of one claim and of several.
_SAID = (
    (
        "contradicted",
        "is contradicted: theory, code or attack is wrong",
        "are contradicted: theory, code or attack is wrong",
    ),
    ("refuted", "is refuted", "are refuted"),
    ("open", "is open: nothing proves or refutes it", "are open: nothing proves or refutes them"),
    ("supported", "is supported by evidence, and not proved", "are supported by evidence, and not proved"),
    ("proved", "is proved", "are proved"),
)


def _subject(claims: list[Verdict]) -> str:
    named = joined([f"{one.claim} ({one.text})" for one in claims[:3]])
    more = f" and {len(claims) - 3} more" if len(claims) > 3 else ""
    return f"{'The claim' if len(claims) == 1 else 'The claims'} {named}{more}"


def odds(audit: AuditResult) -> Iterator[str]:
    """What the proved curves mean: how many of 100 records somebody could find out about, at stated false alarms.

    The power of any test of membership at false-alarm rate a is at most 1 - f(a), f the proved trade-off curve (Dong,
    Roth and Su 2022); it is rounded up. Nothing without a curve that holds in both directions for all records.
    """
    for curve in proven_curves(audit):
        powers = [min(1.0, float(curve.polygon.tpr(rate))) for rate in _FALSE_ALARMS]
        size, unit = curve.group_size, curve.scope.unit
        one = "a record" if unit == "record" else several(1, unit)
        who = f"{one} was" if size == 1 else f"{several(size, unit)} were"
        scope = words.curve(curve).removeprefix(words.groups(size, unit))
        alarms = [decimals.exact(100.0 * rate) for rate in _FALSE_ALARMS]
        if powers[0] > _ALL:
            yield f"Whether {who} in the training{scope}: the bound allows all to be found out."
            continue
        found = [decimals.upper(100.0 * power, digits=3) for power in powers]
        told = f"with {alarms[0]} false alarm in 100 at most {found[0]} in 100 are found out"
        yield (
            f"Whether {who} in the training{scope}: {told}, with {alarms[1]} at most {found[1]}; by chance it is "
            f"{alarms[0]} and {alarms[1]}."
        )
