"""What got worse since an earlier result: one entry for each claim, with public numbers only."""

import dataclasses
from typing import Any

from support import results as factory

from dpspec.contract import FrozenMap
from dpspec.contract.results import Result
from dpspec.reporters.summary import answer
from dpspec.results.diff import regressions
from dpspec.results.regressions import in_words, named_regressions


def of(upper: float, *, noise: float = 1.2, steps: int = 10, privacy: Any = "public", **claim: Any) -> Result:
    """A result with the claim ``one``, of the keys ``claim``, and one bound with both ends."""
    audit = factory.audit("app")
    finding = dataclasses.replace(audit.findings[0], value=upper, privacy=privacy)
    verdict = factory.verdict(upper=upper, lower=upper - 0.125, lower_finding=0)
    if claim:
        verdict = dataclasses.replace(verdict, kind=claim["kind"], quantity="accuracy", verdict="supported")
    mechanism = FrozenMap({"noise_multiplier": noise, "steps": steps})
    document = FrozenMap({"mechanism": mechanism, "claims": [{"id": "one", **claim}]})
    return factory.result(dataclasses.replace(audit, findings=(finding,), verdicts=(verdict,), document=document))


def named(before: Result, after: Result) -> Result:
    found = named_regressions(before, after, regressions(before, after))
    return dataclasses.replace(after, regressions=found)


def test_both_ends_of_a_claim_are_one_entry_with_the_cause() -> None:
    compared = named(of(2.125), of(2.25, noise=1.15))
    (worse,) = compared.regressions or ()
    assert in_words(worse) == "app / one: epsilon 2.125 -> 2.25, because mechanism.noise_multiplier 1.2 -> 1.15"
    assert answer(compared).headline == "1 claim got worse than in the earlier result"
    assert answer(compared).tone == "bad"


def test_of_several_changes_none_is_called_the_cause() -> None:
    (worse,) = named(of(2.125), of(2.25, noise=1.15, steps=12)).regressions or ()
    assert "because" not in in_words(worse)
    assert "mechanism.steps 10 -> 12" in in_words(worse)


def test_numbers_of_the_rows_are_not_told() -> None:
    secret = [of(upper, privacy="data-dependent") for upper in (2.125, 2.25)]
    (worse,) = named(*secret).regressions or ()
    assert (worse.changes, in_words(worse)) == ((), "app / one: upper is worse than in the earlier result")


def test_numbers_that_a_deviation_made_void_are_not_told() -> None:
    before, after = of(2.125), of(2.25)
    deviating = dataclasses.replace(after.audits[0], conformance=factory.conformance(expected=False))
    compared = named(before, dataclasses.replace(after, audits=(deviating,)))
    told = [in_words(worse) for worse in compared.regressions or ()]
    assert told == [
        "app / one: upper is worse than in the earlier result",
        "app: conformance not-run -> deviates",
    ]
    assert answer(compared).headline.startswith("1 claim and 1 audit got worse")


def test_a_metric_that_falls_is_told_by_its_lower_end() -> None:
    accuracy: dict[str, Any] = {"kind": "metric", "name": "accuracy", "at_least": 0.5, "expect": ["supported"]}
    (worse,) = named(of(0.875, **accuracy), of(0.75, **accuracy)).regressions or ()
    assert worse.changes == ("lower end of accuracy 0.75 -> 0.625",)
