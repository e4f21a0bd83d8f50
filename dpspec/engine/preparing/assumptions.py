"""Core's assumptions on initial weights, the constants of a backend, and the code of an attack and of its test."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dpspec.contract import Assumption, Evidence, Finding, Outcome, Spec, is_privacy_quantity
from dpspec.contract.catalog import Offered
from dpspec.contract.findings import CONSTANTS
from dpspec.engine.preparing.model import chosen_weights, weights_path
from dpspec.stats.attacks.methods import method_of

PUBLIC = Assumption(
    name="public-initial-weights",
    status="declared",
    text="the initial weights (model.initial) do not depend on the private records",
)

SAME = Assumption(
    name="same-initial-weights",
    status="declared",
    text="all compared datasets have the same initial weights, chosen by an adversary; a pipeline that computes its "
    "weights from private records is not covered",
)

CHOSEN = Assumption(
    name="worst-case-initial-weights",
    status="by-construction",
    text="an adversary chose the initial weights, fitted to the real records before canaries and inclusion bits were "
    "drawn: this refutes claims about any initial weights, and not about one model's own",
)

#: The assumption of evidence if a plugin's code made the canaries or scored them.
ATTACK_CODE = Assumption(
    name="attack-code",
    status="reported",
    text="the code of the attack received no inclusion bit, seed or noise; dpspec cannot check other sources",
)

#: The assumption of evidence, and of an attack's lower bounds, if the attack method is a third-party plugin's.
TEST_CODE = Assumption(
    name="test-code",
    status="reported",
    text="the p-values of the attack method are valid; dpspec cannot check the code of another plugin",
)

#: The assumption of a proved number that a third-party plugin computes.
BOUND_CODE = Assumption(
    name="bound-code",
    status="reported",
    text="the bound is right; dpspec cannot check the code of another plugin",
)

#: Its text if the user signs the plugin off (``--trust``, or ``trust`` of the project's configuration).
_SIGNED_OFF = "the bound is right; the user signed the plugin off (trust)"

#: Statuses that prevent a proof.
_BAD = ("false", "unchecked")


def with_assumptions(
    outcomes: Iterable[Outcome], spec: Spec, constants: Assumption | None, offers: Mapping[str, tuple[str, Offered]]
) -> Iterator[Outcome]:
    """The outcomes with core's assumptions.

    Findings get the backend's statement about constants if they assume public ones: all upper bounds of a trained model
    do, and findings of other mechanisms name the assumption. The privacy results of an attack by a plugin's code get
    one, and so do upper bounds and lower bounds of attacks for initial weights. A proved number that a third-party
    plugin computes names its ``origin`` and assumes ``bound-code``.
    """
    attack = [(part, offers[part]) for part in ("canary", "score") if part in offers]
    providers = [f"{part} {kind!r} of {offered.distribution}" for part, (kind, offered) in attack]
    code = replace(ATTACK_CODE, text=f"{ATTACK_CODE.text} ({' and '.join(providers)})")
    chosen, has_initial_weights = chosen_weights(spec), weights_path(spec) is not None
    outcomes = list(outcomes)
    tests = [*_foreign_tests(outcomes)]
    bounding = [offers[part] for part in ("mechanism", "sampling", "noise") if part in offers]
    vouching = [(kind, offered) for kind, offered in bounding if offered.is_foreign]
    for outcome in outcomes:
        added: list[Assumption] = []
        if isinstance(outcome, Evidence) and attack and is_privacy_quantity(outcome.quantity):
            added.append(code)
        if isinstance(outcome, Evidence):
            added += _foreign_tests([outcome])
        if isinstance(outcome, Finding):
            outcome = outcome if constants is None else _with_constants(constants, outcome, spec)
            if vouching and outcome.rigor in ("certified", "theorem"):
                added += map(_bound_code, vouching)
                outcome = replace(outcome, origin=", ".join(dict.fromkeys(offered.origin for _, offered in vouching)))
            match outcome.bound, outcome.scope.pipeline:
                case "lower", "executed":
                    added += [*([code] if attack else []), *tests]
                    added += [CHOSEN] if chosen else []
                case "upper", "declared" if chosen:
                    added.append(SAME)
                case "upper", "declared" if has_initial_weights:
                    added.append(PUBLIC)
        if added and isinstance(outcome, Evidence | Finding):
            outcome = replace(outcome, assumptions=(*outcome.assumptions, *added))
        yield outcome


def _bound_code(vouching: tuple[str, Offered]) -> Assumption:
    kind, offered = vouching
    code = replace(BOUND_CODE, status="declared", text=_SIGNED_OFF) if offered.signed_off else BOUND_CODE
    return replace(code, text=f"{code.text} ({kind!r} of {offered.origin})")


def _foreign_tests(outcomes: Iterable[Outcome]) -> Iterator[Assumption]:
    """The assumption for each third-party plugin whose attack method tests some of the evidence."""
    kinds = {outcome.kind for outcome in outcomes if isinstance(outcome, Evidence)}
    for method in filter(None, map(method_of, sorted(kinds))):
        if method.origin:
            yield replace(TEST_CODE, text=f"{TEST_CODE.text} ({method.descriptor.kind!r} of {method.origin})")


def _with_constants(constants: Assumption, finding: Finding, spec: Spec) -> Finding:
    assumptions: list[Assumption] = []
    for assumption in finding.assumptions:
        if assumption.name == CONSTANTS and assumption.status != "false":
            # A bad status replaces the finding's text.
            texts = [constants.text] if constants.status in _BAD else [assumption.text, constants.text]
            text = "; ".join(filter(None, texts))
            assumption = replace(assumption, status=constants.status, text=text, test=constants.test)
        assumptions.append(assumption)
    if any(assumption.name == CONSTANTS for assumption in assumptions):
        return replace(finding, assumptions=tuple(assumptions))
    declared_upper = finding.bound == "upper" and finding.scope.pipeline == "declared"
    if constants.status in _BAD and spec.model is not None and declared_upper:
        return replace(finding, assumptions=(*finding.assumptions, constants))
    return finding
