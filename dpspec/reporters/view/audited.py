"""Describe an audit and its conclusion in plain English.

Text from specs and plugins is returned unescaped: each format escapes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpspec.contract import Json
from dpspec.contract.spec import unit_in_words
from dpspec.engine.results.result import AuditResult, Verdict
from dpspec.reporters.view import words
from dpspec.reporters.view.limits import recorded
from dpspec.text import joined, shortened

#: Keys of a spec that name its owner, with the terms that reports show.
SIGNED = {"system": "System", "owner": "Owner", "contact": "Contact"}

#: Maximum number of characters for one part of a spec.
_LONGEST = 400


def audited(audit: AuditResult) -> Iterator[tuple[str, str]]:
    """Yield pairs of a term and a text: owner, mechanism, data, model, training, adversary, attack."""
    document = audit.document
    for key, term in SIGNED.items():
        if document.get(key):
            yield term, shortened(str(document[key]), _LONGEST)
    yield "Mechanism", _mechanism(document.get("mechanism"))
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


def _mechanism(block: Json) -> str:
    """A block as text; for a selection, the number of cells, because the page shows each cell separately."""
    cells = block.get("cells") if isinstance(block, Mapping) and block.get("kind") == "selection" else None
    if not isinstance(cells, list | tuple):
        return _block(block, "kind")
    rest = _block(block, "kind", leave_out=("cells",))
    return f"{rest}{',' if ':' in rest else ':'} the best of {words.count(len(cells), 'cell')}"


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
    """Adjacency, access and group sizes."""
    if not isinstance(threat, Mapping):
        return ""
    unit = unit_in_words(str(threat.get("unit") or "record"), data if isinstance(data, Mapping) else {})
    parts = [words.neighbours(str(threat["adjacency"]), unit)] if threat.get("adjacency") else []
    parts += [words.of_scope("access", str(threat["access"]))] if threat.get("access") else []
    sizes = threat.get("group_size")
    if sizes is not None:
        of_whom = "" if unit == "record" else f" {unit.partition(' (')[0]}s"
        if of_whom and _list(sizes) == [1]:
            of_whom = of_whom.removesuffix("s")
        parts.append(f"groups of {joined([words.value(one) for one in _list(sizes)])}{of_whom}")
    return ", ".join(parts)


def _list(value: Json) -> list[Json]:
    return list(value) if isinstance(value, list | tuple) else [value]


def conclusion(audit: AuditResult) -> Iterator[str]:
    """Yield sentences for readers outside the field, the worst first."""
    status = audit.conformance.status
    if status == "deviates":
        made = ", as this control intends" if audit.conformance.expected else ""
        proofs = "proofs here apply to the declared mechanism, not to that run"
        yield f"The executed run deviates from its declaration{made}: {proofs}."
    elif status == "checks-missing":
        yield "Planned checks of the executed run are missing: its conformance is unknown."
    for name, one, more in _SAID:
        claims = [
            verdict
            for verdict in audit.verdicts
            if words.verdict_label(audit, verdict) == name and not words.is_control(verdict)
        ]
        if claims:
            yield f"{_subject(claims)} {more if len(claims) > 1 else one}."
    controls = [verdict for verdict in audit.verdicts if words.is_control(verdict)]
    refuted = [verdict for verdict in controls if verdict.expected]
    if attacked := [verdict for verdict in refuted if words.refuted_by_attack(audit, verdict)]:
        yield f"{_controls(attacked)} {_is(attacked)} {attacked[0].verdict}: the audit detects such violations."
    if by_theory := [verdict for verdict in refuted if not words.refuted_by_attack(audit, verdict)]:
        untested = ", which does not test the attack" if audit.planned_trials else ""
        yield f"{_controls(by_theory)} {_is(by_theory)} refuted by a certified bound{untested}."
    if missed := [verdict for verdict in controls if not verdict.expected]:
        yield f"{_controls(missed)} {_is(missed)} {missed[0].verdict}: the audit does not detect such violations."
    if not audit.planned_trials and not recorded(audit):
        yield "Nothing was trained: results apply to the specification; no code was run."
    elif status == "no-deviation-found":
        tests = words.count(len(audit.checks), "conformance test")
        yield f"{tests} compared the run with its declaration. None found a deviation above its detection limit."
    elif status == "not-run":
        yield "The conformance of the executed run was not tested."


#: The predicate of each verdict for one claim and for several.
_SAID = (
    (
        "contradicted",
        "is contradicted: theory, code or attack is wrong",
        "are contradicted: theory, code or attack is wrong",
    ),
    ("refuted", "is refuted", "are refuted"),
    ("open", "is open: nothing proves or refutes it", "are open: nothing proves or refutes them"),
    ("supported", "is supported by evidence, and not proved", "are supported by evidence, and not proved"),
    (
        words.AS_DECLARED,
        "is proved for the declared mechanism only: the executed run deviates",
        "are proved for the declared mechanism only: the executed run deviates",
    ),
    ("proved", "is proved", "are proved"),
)


def _controls(claims: list[Verdict]) -> str:
    return f"The negative control{'' if len(claims) == 1 else 's'} {_named(claims)}"


def _is(claims: list[Verdict]) -> str:
    return "is" if len(claims) == 1 else "are"


def _subject(claims: list[Verdict]) -> str:
    return f"The claim{'' if len(claims) == 1 else 's'} {_named(claims)}"


def _named(claims: list[Verdict]) -> str:
    named = joined([f"{verdict.claim} ({verdict.text})" for verdict in claims[:3]])
    return named + (f" and {len(claims) - 3} more" if len(claims) > 3 else "")
