"""Assumptions that core adds to the outcomes of an audit: public constants, attack code and initial weights.

A backend declares where its constants (divisor, rate, clip norm, schedule) come from. A divisor that counts the records
reveals their number at any noise, so no bound holds. Every proof therefore contains the backend's statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dpspec.contract import Assumption, Backend, Evidence, Finding, Outcome, Spec, is_privacy_quantity
from dpspec.contract.catalog import Offered
from dpspec.engine.preparing import initial_weights
from dpspec.registry.foreign_code import made, misbehaved, resolve

#: The assumption of findings that a backend's statement is about.
CONSTANTS = "data-independent-hyperparameters"

#: The assumption of evidence if a plugin's code made the canaries or scored them.
ATTACK_CODE = "attack-code"

#: Statuses that prevent a proof, and statuses of a plugin's statement about itself that become ``reported``.
_BAD = ("false", "unchecked")
_CAPPED = ("by-construction", "not-rejected", "declared")


def constants_of(offered: Offered, spec: Spec) -> Assumption:
    backend: Backend = offered.provider
    stated = backend.constants
    if not stated:
        text = f"backend {backend.kind!r} does not say where its divisor, rate and clip norm come from"
        return Assumption(name=CONSTANTS, status="unchecked", text=text)
    if isinstance(stated, str):
        named = resolve(stated)
        stated = named if isinstance(named, Assumption) else made(offered, stated, "its constants", spec)
    if not isinstance(stated, Assumption):
        raise misbehaved(offered, f"its constants are a {type(stated).__name__}, not an Assumption")
    reported = offered.distribution != "dpspec" and stated.status in _CAPPED
    return replace(stated, name=CONSTANTS, status="reported") if reported else replace(stated, name=CONSTANTS)


def with_constants(constants: Assumption, finding: Finding, spec: Spec) -> Finding:
    """The finding with the statement about constants if it assumes public ones.

    All upper bounds of a trained model do; findings of other mechanisms name the assumption.
    """
    known: list[Assumption] = []
    for own in finding.assumptions:
        if own.name == CONSTANTS and own.status != "false":
            # A bad status replaces the finding's text.
            words = [constants.text] if constants.status in _BAD else [own.text, constants.text]
            text = "; ".join(filter(None, words))
            own = replace(own, status=constants.status, text=text, test=constants.test)
        known.append(own)
    if any(assumption.name == CONSTANTS for assumption in known):
        return replace(finding, assumptions=tuple(known))
    declared_upper = finding.bound == "upper" and finding.scope.pipeline == "declared"
    if constants.status in _BAD and spec.model is not None and declared_upper:
        return replace(finding, assumptions=(*finding.assumptions, constants))
    return finding


def with_attack_code(offers: Mapping[str, tuple[str, Offered]], outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    attack = [(part, offers[part]) for part in ("canary", "score") if part in offers]
    if not attack:
        yield from outcomes
        return
    parts = [f"{part} {kind!r} of {offered.distribution}" for part, (kind, offered) in attack]
    text = f"{' and '.join(parts)} received no inclusion bit, seed or noise; dpspec cannot check other sources"
    code = Assumption(name=ATTACK_CODE, status="reported", text=text)
    for outcome in outcomes:
        attacked = (isinstance(outcome, Evidence) and is_privacy_quantity(outcome.quantity)) or (
            isinstance(outcome, Finding) and (outcome.bound, outcome.scope.pipeline) == ("lower", "executed")
        )
        if attacked and isinstance(outcome, Evidence | Finding):
            yield replace(outcome, assumptions=(*outcome.assumptions, code))
        else:
            yield outcome


def with_initial_weights(outcomes: Iterable[Outcome], spec: Spec) -> Iterator[Outcome]:
    chosen = initial_weights.chosen(spec)
    if not chosen and initial_weights.path_of(spec) is None:
        yield from outcomes
        return
    upper = initial_weights.SAME if chosen else initial_weights.PUBLIC
    for outcome in outcomes:
        if isinstance(outcome, Finding):
            kind = outcome.bound, outcome.scope.pipeline
            if kind == ("upper", "declared"):
                outcome = replace(outcome, assumptions=(*outcome.assumptions, upper))
            elif chosen and kind == ("lower", "executed"):
                outcome = replace(outcome, assumptions=(*outcome.assumptions, initial_weights.CHOSEN))
        yield outcome
