"""``model.initial``: initial weights from a file that the user declares public, or chosen by the adversary.

Bounds cover what training reveals of the records. Weights that were trained on these records reveal them from the
start, and a file does not show its training data. So every proof of a spec with ``model.initial`` assumes that its
weights do not depend on the private records. ``worst-case`` is for attacks: Theorem R5 of
``docs/explanation/proofs/recorded-runs.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from dpspec.contract import (
    Assumption,
    Backend,
    DataError,
    Evidence,
    Facts,
    Finding,
    ModelFactory,
    Outcome,
    Spec,
    is_privacy_quantity,
)
from dpspec.contract.catalog import Offered
from dpspec.models.weights_file import FromFile
from dpspec.registry.foreign_code import made, misbehaved, resolve

#: The key of a model block that core reads and removes from the factory's options.
INITIAL = "initial"

#: Its value if the adversary chooses.
WORST_CASE = "worst-case"

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


def with_initial_weights(spec: Spec, factory: ModelFactory, recorded: Facts | None) -> tuple[ModelFactory, str | None]:
    """The factory whose models start from the spec's file, and the file's digest.

    ``recorded``: the facts of a result, whose digest replaces the digest of a missing file.
    """
    path = weights_path(spec)
    if path is None:
        return factory, None
    try:
        made = FromFile(factory, path)
    except DataError:
        if recorded is None or recorded.initial_weights is None:
            raise
        return factory, recorded.initial_weights
    return made, made.digest


def weights_path(spec: Spec) -> Path | None:
    initial = None if spec.model is None else spec.model.get(INITIAL)
    return None if initial is None or chosen_weights(spec) else Path(spec.directory) / str(initial["path"])


def chosen_weights(spec: Spec) -> bool:
    return spec.model is not None and spec.model.get(INITIAL) == WORST_CASE


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
    chosen = chosen_weights(spec)
    for outcome in outcomes:
        more: list[Assumption] = []
        if isinstance(outcome, Evidence) and attack and is_privacy_quantity(outcome.quantity):
            more.append(code)
        if isinstance(outcome, Finding):
            outcome = outcome if constants is None else _with_constants(constants, outcome, spec)
            match outcome.bound, outcome.scope.pipeline:
                case "lower", "executed":
                    more += [code] if attack else []
                    more += [CHOSEN] if chosen else []
                case "upper", "declared" if chosen:
                    more.append(SAME)
                case "upper", "declared" if weights_path(spec) is not None:
                    more.append(PUBLIC)
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
