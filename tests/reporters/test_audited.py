"""What a page says was audited, what came of it, the result, and the success rates of attackers."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import results as factory

from dpspec.contract import Assumption, Finding, FrozenMap
from dpspec.engine.redact import LEFT_OUT_REASON
from dpspec.engine.results.result import AuditResult, Conformance, Result, Verdict
from dpspec.registry.loader import load_catalog
from dpspec.reporters import html
from dpspec.reporters.view import glossary
from dpspec.reporters.view.audited import audited, conclusion
from dpspec.reporters.view.in_short import in_short
from dpspec.reporters.view.risk import membership, risk

DOCUMENT = {
    "dpspec": 1,
    "name": "demo",
    "system": "The clinic's model",
    "owner": "A. Person",
    "contact": "a@example.org",
    "mechanism": {"kind": "group", "noise_multiplier": 1.5, "sampling": {"scheme": "poisson", "rate": 0.1}},
    "data": {"kind": "digits"},
    "model": {"kind": "mlp", "hidden": [8]},
    "training": {"backend": "native"},
    "threat_model": {"adjacency": "add-remove", "access": "all-iterates", "group_size": [1, 4]},
    "audit": {"method": "one-run", "runs": 1, "expect": "no-deviation-found"},
}


def audit(**changes: object) -> AuditResult:
    return factory.audit(**{"document": FrozenMap(DOCUMENT), **changes})


def page(one: AuditResult, *more: AuditResult) -> str:
    result: Result = dataclasses.replace(factory.result(), audits=(one, *more))
    return html.render(result)


def status(name: str, *, expected: bool = True) -> Conformance:
    return Conformance(status=name, expect="no-deviation-found", expected=expected, reason="Why.")  # type: ignore[arg-type]


def test_what_it_was():
    said = dict(audited(audit()))
    assert list(said) == [
        *("System", "Owner", "Contact", "Mechanism", "Data", "Model", "Training", "Adversary", "Attack"),
    ]
    assert said["Mechanism"] == "group: noise_multiplier 1.5, sampling scheme poisson, rate 0.1"
    assert said["Data"] == "digits; 10 records, 2 features, 2 classes"
    assert said["Adversary"] == "adding or removing records, seeing every iterate, groups of 1 and 4"
    assert said["Attack"] == "one-run: runs 1"


def test_what_was_not_there_is_not_told_of():
    said = dict(audited(audit(document=FrozenMap({"dpspec": 1}), planned_trials=0)))
    assert list(said) == ["Mechanism", "Data", "Adversary"]


def test_long_parts_end_in_dots():
    document = {**DOCUMENT, "mechanism": {"kind": "group", "phases": [{"steps": n} for n in range(1000)]}}
    said = dict(audited(audit(document=FrozenMap(document))))
    assert len(said["Mechanism"]) == 400
    assert said["Mechanism"].endswith("...")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("proved", "is proved"),
        ("supported", "supported by evidence, and not proved"),
        ("open", "is open: nothing proves or refutes it"),
        ("refuted", "is refuted"),
        ("contradicted", "theory, code or attack is wrong"),
    ],
)
def test_each_verdict_has_its_sentence(verdict: str, words: str):
    one = factory.verdict("c", verdict=verdict, expected=verdict == "proved")
    (sentence, *_) = conclusion(audit(verdicts=(one,)))
    assert sentence.startswith("The claim c (epsilon <= 3")
    assert words in sentence


def control(**changes: object) -> Verdict:
    return factory.verdict("low", verdict="refuted", expect=("refuted",), **changes)


def beyond(refuted_by: str | None = None, **changes: object) -> AuditResult:
    """An audit whose control lies below a certified lower end of 2.4."""
    lower = dataclasses.replace(factory.audit().findings[0], bound="lower", rigor="certified", value=2.4, lower=None)
    claim = {"id": "low", "kind": "approx-dp", **({"refuted_by": refuted_by} if refuted_by else {})}
    document = FrozenMap({**DOCUMENT, "claims": [claim]})
    verdict = control(claimed=1.0, lower=2.4, lower_finding=0)
    return audit(verdicts=(verdict,), findings=(lower,), document=document, **changes)


def test_controls_that_an_attack_decides():
    missed = factory.verdict("high", verdict="open", expect=("refuted",), expected=False)
    said = " ".join(conclusion(audit(verdicts=(control(), missed))))
    assert "negative control low (epsilon <= 3 at delta = 1e-06) is refuted: the audit detects such violations." in said
    assert "The negative control high (epsilon <= 3 at delta = 1e-06) is open: the audit does not detect such" in said


def test_a_control_below_a_certified_bound_says_nothing_of_the_attack():
    said = " ".join(conclusion(beyond()))
    assert "is refuted by a certified bound, which does not test the attack." in said
    assert "the audit detects" not in said
    assert "the audit detects" not in " ".join(conclusion(beyond("any")))
    untrained = " ".join(conclusion(beyond(planned_trials=0)))
    assert "is refuted by a certified bound." in untrained


def test_a_control_that_only_an_attack_may_refute_was_refuted_by_it():
    assert "is refuted: the audit detects such violations." in " ".join(conclusion(beyond("attack")))


def test_a_contradicted_control_was_seen():
    contradicted = dataclasses.replace(beyond().verdicts[0], verdict="contradicted")
    said = " ".join(conclusion(dataclasses.replace(beyond(), verdicts=(contradicted,))))
    assert "is contradicted: the audit detects such violations." in said


def test_a_control_of_which_values_were_left_out_was_not_seen():
    hidden = dataclasses.replace(beyond(), verdicts=(control(reason=LEFT_OUT_REASON, lower=None, lower_finding=None),))
    assert "the audit detects" not in " ".join(conclusion(hidden))


def test_controls_of_several_audits_are_counted():
    missed = factory.verdict("high", verdict="open", expect=("refuted",), expected=False)
    result = factory.result(dataclasses.replace(beyond("attack"), name="a"), audit(name="b", verdicts=(missed,)))
    ((_, outcomes), *_) = in_short(result)
    assert "1 of 2 negative controls was refuted." in outcomes
    result = factory.result(dataclasses.replace(beyond(), name="a"), beyond("attack"))
    ((_, outcomes), *_) = in_short(result)
    assert "2 of 2 negative controls were refuted, 1 of them by a certified bound without the attack." in outcomes


def test_what_ran_is_told_of():
    ran = audit(conformance=status("no-deviation-found"))
    assert list(conclusion(ran))[-1] == (
        "1 conformance test compared the run with its declaration. None found a deviation above its detection limit."
    )
    first = next(conclusion(audit(conformance=status("deviates", expected=False))))
    assert first.startswith("The executed run deviates from its declaration: proofs here")
    control = next(conclusion(audit(conformance=status("deviates"))))
    assert control.startswith("The executed run deviates from its declaration, as this control intends: proofs here")
    assert "None found a deviation" not in " ".join(conclusion(audit(conformance=status("deviates"))))
    bare = audit(planned_trials=0, trials=())
    assert list(conclusion(bare))[-1].startswith("Nothing was trained")
    assert list(conclusion(audit()))[-1] == "The conformance of the executed run was not tested."


@given(epsilon=st.floats(0.0, 6.0), delta=st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_odds_are_those_of_the_curve_of_one_pair(epsilon: float, delta: float):
    """Oracle: power at rate a is at most min(delta + e^eps a, 1 - e^-eps (1 - delta - a)), rounded up."""
    finding = factory.audit().findings[0]
    held = dataclasses.replace(finding, value=epsilon, lower=None, at=FrozenMap({"delta": delta}))
    (said,) = membership(audit(findings=(held,), series=()))
    power = [min(delta + math.exp(epsilon) * a, 1.0 - math.exp(-epsilon) * (1.0 - delta - a)) for a in (0.01, 0.1)]
    if power[0] > 0.999:
        assert said.endswith("he proved bound does not rule out that an attacker identifies all members.")
        return
    found = [float(text) for text in re.findall(r"at most ([0-9.e-]+) %", said)]
    for shown, true in zip(found, power, strict=True):
        assert 100.0 * true * (1.0 - 1e-12) <= shown <= min(100.0, 100.0 * true * 1.01)


def test_a_run_that_deviates_is_promised_nothing():
    (told,) = risk(audit(conformance=status("deviates")))
    assert told.startswith("The executed run deviates from the declared mechanism. No bound applies to it")
    assert tuple(membership(audit())) != ()
    broken = audit(verdicts=(factory.verdict("c", verdict="contradicted", expected=False),))
    assert risk(broken)[0].endswith("do not rely on them.")
    assert risk(audit(conformance=status("no-deviation-found"))) == tuple(membership(audit()))


def test_the_four_questions_are_answered_of_one_audit_and_of_several():
    one = dataclasses.replace(factory.result(), audits=(audit(),))
    several = dataclasses.replace(one, audits=(audit(), audit(name="other", conformance=status("deviates"))))
    for result in (one, several):
        answers = dict(in_short(result))
        assert list(answers) == [
            *("Result", "Audited", "Risk for one person", "Not tested"),
        ]
        assert all(answers.values())
    assert "The executed run deviates from its declaration in other" in answers["Result"][0]
    assert in_short(dataclasses.replace(one, audits=())) == ()


def test_nothing_proved_has_no_odds():
    weak = dataclasses.replace(factory.audit().findings[0], rigor="approximate")
    bare = audit(findings=(weak,), series=())
    assert list(membership(bare)) == []
    assert risk(bare)[0].startswith("No proved bound covers every record")


def test_the_page_tells_all_of_it():
    text = page(audit(conformance=status("no-deviation-found")))
    for part in ("Audited", "The clinic&#39;s model", "Risk for one person", '<h2 id="words-h">Words</h2>'):
        assert part in text
    assert text.index('id="short"') < text.index('class="conclusion"') < text.index('id="claims"')


def test_a_control_does_not_look_like_a_failure():
    fine = factory.verdict("low", verdict="refuted", expect=("refuted",))
    failed = factory.verdict("claim", verdict="refuted", expected=False)
    text = page(audit(verdicts=(fine, failed)))
    assert text.count('class="verdict refuted control"') == 2
    assert "as expected, a control" in text
    assert text.count('class="verdict refuted"') == 3  # the failed claim twice, and the word's meaning


def test_a_run_that_deviates_is_on_top_and_is_never_hidden():
    text = page(audit(conformance=status("deviates", expected=False)), audit(name="other"))
    assert text.index('<p class="alarm">') < text.index('id="claims"')
    assert text.count('data-expected="no"') == 1
    assert '<p class="alarm">' not in page(audit(conformance=status("deviates")))


def test_what_was_made_to_deviate_is_told_in_one_sentence_and_looks_like_a_control():
    broken = factory.verdict("c", verdict="contradicted", expect=("refuted",))
    deviates = Conformance(status="deviates", expect="deviates", expected=True, reason="Why.")
    text = page(audit(conformance=deviates, verdicts=(broken,)))
    assert '<p class="tally">1 audit, 1 claim: as expected; demo deviates on purpose</p>' in text
    assert "all as expected" not in text
    assert '<p class="alarm">' not in text
    assert text.count('<p class="made">') == 1
    assert text.count('class="verdict deviates control"') == 2
    alarming = page(audit(conformance=dataclasses.replace(deviates, expected=False), verdicts=(broken,)))
    assert alarming.count('<p class="alarm">') == 2
    assert '<p class="made">' not in alarming
    assert 'class="tally unexpected"' in alarming


def test_of_many_controls_the_first_are_named_on_top():
    deviates = Conformance(status="deviates", expect="deviates", expected=True, reason="Why.")
    text = page(*(audit(name=f"c{n}", conformance=deviates) for n in range(5)))
    assert text.count('<p class="made">') == 1
    assert '<a href="#a2">c2</a> and 2 more, marked below, deviate from the declaration on purpose' in text


def test_mechanisms_and_assumptions_are_told_in_words_with_their_names_behind():
    unchecked = Assumption(
        name="independent-noise", status="unchecked", text="every step draws fresh noise; nobody looked"
    )
    false = Assumption(name="sampling", status="false", text="batches are drawn by chance")
    stated = Assumption(name="released", status="declared", text="only the output is released")
    tested = Assumption(name="clipping", status="declared", text="each record is clipped", test="largest norm")
    finding = dataclasses.replace(factory.audit().findings[0], assumptions=(unchecked, false, stated, tested))
    one = audit(findings=(finding,), planned_trials=1)
    answers = dict(in_short(dataclasses.replace(factory.result(), audits=(one,))))
    assert "and adds noise to the sum (the mechanism group)." in answers["Audited"][0]
    said = " ".join(answers["Not tested"])
    assert "False assumption of some numbers: batches are drawn by chance (sampling)." in said
    assert "Unchecked assumption: every step draws fresh noise (independent-noise)." in said
    assert "Declared by the spec, not tested: only the output is released (released)." in said
    assert "clipping" not in said
    strange = audit(document=FrozenMap({**DOCUMENT, "mechanism": {"kind": "theirs"}}))
    assert "by the mechanism theirs." in dict(in_short(factory.result(strange)))["Audited"][0]


def test_every_mechanism_that_is_shipped_is_told_of_in_words():
    assert set(load_catalog().mechanisms) <= set(glossary.MECHANISMS)


def test_cells_are_named_by_what_varies_where_the_risk_is_told():
    matrix = [
        audit(name=f"sweep[{noise}]", cell=FrozenMap({"mechanism.noise_multiplier": noise}), findings=(found,))
        for noise, found in ((4.0, _bound(0.5)), (1.0, _bound(2.0)))
    ]
    said = " ".join(dict(in_short(factory.result(*matrix)))["Risk for one person"])
    assert re.search(
        r"at most \S+ % of members in sweep \(noise_multiplier=4\), and \S+ % of members in sweep \(noise_mu", said
    )
    assert "sweep[" not in said


def test_odds_of_the_best_and_the_worst_audit_name_what_they_are_about():
    """A small bound about the final model alone promises nothing against whoever sees every iterate."""
    one, other = _bound(0.5), _bound(2.0)
    final = dataclasses.replace(one, scope=dataclasses.replace(one.scope, access="final-model"))
    said = " ".join(
        dict(in_short(factory.result(audit(name="last", findings=(final,)), audit(name="every", findings=(other,)))))[
            "Risk for one person"
        ]
    )
    assert re.search(
        r"at most \S+ % of members \(seeing the final model\) in last, and \S+ % of members in every; guess", said
    )


@pytest.mark.parametrize("broken", [{"conformance": "deviates"}, {"verdict": "contradicted"}])
def test_odds_of_what_ran_otherwise_or_was_contradicted_are_not_told(broken: dict[str, str]):
    changes: dict[str, object] = {"findings": (_bound(0.1),)}
    if "conformance" in broken:
        changes["conformance"] = status("deviates")
    else:
        changes["verdicts"] = (factory.verdict("c", verdict="contradicted", expected=False),)
    result = factory.result(audit(name="bad", **changes), audit(name="good", findings=(_bound(2.0),)))
    said = " ".join(dict(in_short(result))["Risk for one person"])
    assert "bad" not in said
    assert "% of members in good; guessing gives 1 %." in said
    assert "No rate follows for 1 audit." in said


def _bound(epsilon: float) -> Finding:
    return dataclasses.replace(factory.audit().findings[0], value=epsilon, lower=None)


@given(epsilon=st.floats(0.0, 8.0), delta=st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_a_claim_of_one_direction_bounds_who_is_found(epsilon: float, delta: float):
    """Oracle: P(S) <= e^eps Q(S) + delta, and at most 1, rounded up; of S as "they were in"."""
    found = _one_sided(epsilon, delta)
    for shown, rate in zip(found, (0.01, 0.1), strict=True):
        true = 100.0 * min(1.0, math.exp(epsilon) * rate + delta)
        assert true * (1.0 - 1e-12) <= shown <= min(100.0, 1.01 * true)


def test_odds_of_a_claim_about_the_final_model_say_so():
    assert _told(1.0, 1e-6, access="final-model").startswith("Seeing the final model: at a 1 % false-positive rate")


def test_odds_of_a_curve_about_the_final_model_say_so():
    """Such a bound says nothing of who sees every iterate, as that of ``sgd-iterated`` pre-processing."""
    found = _bound(1.0)
    one = dataclasses.replace(found, scope=dataclasses.replace(found.scope, access="final-model"))
    (told,) = membership(audit(findings=(one,), series=()))
    assert told.startswith("Seeing the final model: at a 1 % false-positive rate")
    (plain,) = membership(audit(findings=(found,), series=()))
    assert plain.startswith("At a 1 % false-positive rate an attacker identifies at most")
    both = list(membership(audit(findings=(one, found), series=())))
    assert sorted(said.lower().count("seeing") for said in both) == [1, 1]


@pytest.mark.parametrize(
    "narrower", [{"over": "this"}, {"record": 3}, {"direction": "add"}, {"direction": "both"}, {"min_records": 9}]
)
def test_a_narrower_claim_or_another_direction_promises_nothing_to_everybody(narrower: dict[str, object]):
    assert _one_sided(1.0, 1e-6, **narrower) == []


def _one_sided(epsilon: float, delta: float, **claim: object) -> list[float]:
    """The numbers that are told of one proved claim, where no curve is proved."""
    said = _told(epsilon, delta, **claim)
    return [float(text) for text in re.findall(r"at most ([0-9.e-]+) %", said)]


def _told(epsilon: float, delta: float, **claim: object) -> str:
    threat = {"adjacency": "add-remove", "unit": "record", "direction": "remove"}
    block = {"id": "one", "kind": "approx-dp", "epsilon": 9.0, "delta": delta, "group_size": 1, **claim}
    document = FrozenMap({**DOCUMENT, "threat_model": threat, "claims": [block]})
    weak = dataclasses.replace(factory.audit().findings[0], rigor="approximate")
    verdicts = (factory.verdict("one", provable=epsilon),)
    (said, *more) = risk(audit(document=document, verdicts=verdicts, findings=(weak,), series=()))
    assert not more
    return said


def test_the_glossary_and_explain_name_certified_bounds():
    assert "certified lower bound exceeds the claim" in glossary.VERDICTS["refuted"]
