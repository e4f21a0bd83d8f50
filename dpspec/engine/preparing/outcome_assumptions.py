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
ATTACK_CODE = Assumption(
    name="attack-code",
    status="reported",
    text="the code of the attack received no inclusion bit, seed or noise; dpspec cannot check other sources",
)

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


def with_assumptions(
    outcomes: Iterable[Outcome], spec: Spec, constants: Assumption | None, offers: Mapping[str, tuple[str, Offered]]
) -> Iterator[Outcome]:
    """The outcomes with core's assumptions.

    Findings get the backend's statement about constants if they assume public ones: all upper bounds of a trained model
    do, and findings of other mechanisms name the assumption. The privacy results of an attack by a plugin's code get
    one, and so do upper bounds and lower bounds of attacks for initial weights.
    """
    attack = [(part, offers[part]) for part in ("canary", "score") if part in offers]
    parts = [f"{part} {kind!r} of {offered.distribution}" for part, (kind, offered) in attack]
    code = replace(ATTACK_CODE, text=f"{ATTACK_CODE.text} ({' and '.join(parts)})")
    chosen = initial_weights.chosen(spec)
    for outcome in outcomes:
        more: list[Assumption] = []
        if isinstance(outcome, Evidence) and attack and is_privacy_quantity(outcome.quantity):
            more.append(code)
        if isinstance(outcome, Finding):
            outcome = outcome if constants is None else _with_constants(constants, outcome, spec)
            match outcome.bound, outcome.scope.pipeline:
                case "lower", "executed":
                    more += [code] if attack else []
                    more += [initial_weights.CHOSEN] if chosen else []
                case "upper", "declared" if chosen:
                    more.append(initial_weights.SAME)
                case "upper", "declared" if initial_weights.path_of(spec) is not None:
                    more.append(initial_weights.PUBLIC)
        if more and isinstance(outcome, Evidence | Finding):
            outcome = replace(outcome, assumptions=(*outcome.assumptions, *more))
        yield outcome


def _with_constants(constants: Assumption, finding: Finding, spec: Spec) -> Finding:
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
