"""``model.initial``: weights that training starts from, read once and held to be public, or chosen by the adversary.

Bounds are about what training reveals of the records. Weights that were trained on those records reveal them from the
start, and no noise undoes that. No file tells what it was trained on, so that whoever writes ``model.initial`` says
that it was not on the private records; every proof of such a spec names that as an assumption.

``worst-case`` is for attacks. The proofs of DP-SGD hold for each initial state w: M_w(D) and M_w(D') are close for all
neighbours D, D'. So an adversary may choose w, by whatever it knows, as long as w is the same for all data sets that
are compared. Here w = f(R) with R the real records, the spec's own without a canary. What an attack compares are R and
canaries as their coins fell, R + {z_i: b_i = 1}: for all coins b the run is M_w of that data with one w, and what tells
them apart tells against "M_w is private for each w". Were w fitted to the planted canaries too, w would depend on b,
and the attack would say nothing of M_w. A pipeline that makes its own weights of private records is w = f(D) for each
D: not M_w, covered by no bound here, and neither trained nor attacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dpspec.contract import (
    Assumption,
    DataError,
    Diagnostic,
    Facts,
    Finding,
    FrozenMap,
    ModelFactory,
    Outcome,
    Spec,
)
from dpspec.contract.catalog import Offered
from dpspec.models.weights_file import FromFile

#: The key of a model block that core reads, and no factory sees.
KEY = "initial"

#: What stands there where the adversary chooses.
WORST_CASE = "worst-case"

PUBLIC = Assumption(
    name="public-initial-weights",
    status="declared",
    text="the weights that training starts from (model.initial) do not depend on the private records",
)

SAME = Assumption(
    name="same-initial-weights",
    status="declared",
    text="all data sets that are compared start from the same weights, whichever an adversary chose; a pipeline that "
    "makes its weights of private records is not covered",
)

CHOSEN = Assumption(
    name="worst-case-initial-weights",
    status="by-construction",
    text="an adversary chose the weights that training starts from, fitted to the real records before canaries and "
    "coins were drawn: this tells against claims about any initial weights, and not about one model's own",
)


def options_of(spec: Spec) -> FrozenMap:
    """The options of the model that its factory is given. The spec has a model."""
    assert spec.model is not None
    return FrozenMap({key: value for key, value in spec.model.options.items() if key != KEY})


def started(spec: Spec, factory: ModelFactory, recorded: Facts | None) -> tuple[ModelFactory, str | None]:
    """The factory whose models start from the file that the spec names, with the file's digest; without one, as it is.

    recorded: the facts that a result recorded, whose digest stands where the file is no longer at hand.

    Raises ``DataError`` where the file cannot be read, ``ValueError`` where it holds another model's weights.
    """
    path = path_of(spec)
    if path is None:
        return factory, None
    try:
        made = FromFile(factory, path)
    except DataError:
        if recorded is None or recorded.initial_weights is None:
            raise
        return factory, recorded.initial_weights
    return made, made.digest


def path_of(spec: Spec) -> Path | None:
    """The file of initial weights that a spec names; None where it names none."""
    initial = None if spec.model is None else spec.model.get(KEY)
    return None if initial is None or chosen(spec) else Path(spec.directory) / str(initial["path"])


def chosen(spec: Spec) -> bool:
    """Whether the spec lets the adversary choose the initial weights."""
    return spec.model is not None and spec.model.get(KEY) == WORST_CASE


def from_file(model: ModelFactory | None) -> bool:
    """Whether a factory's models start from a file that was read."""
    return isinstance(model, FromFile)


def chosen_refused(spec: Spec, mechanism: Offered) -> Iterator[Diagnostic]:
    """What to say where the adversary chooses the weights, and some number would speak of other ones."""
    if not chosen(spec):
        return
    path = ("model", KEY)
    if not mechanism.provider.chosen_weights:
        yield Diagnostic(
            code="unsupported",
            message=f"the bounds of {spec.mechanism.kind!r} do not speak of weights that an adversary chose",
            path=path,
            help="its numbers rest on how training itself begins; group takes worst-case weights",
        )
    if spec.training.kind == "recorded":
        yield Diagnostic(
            code="unsupported",
            message="a recorded run began where it began: nobody chose its weights afterwards",
            path=path,
            help="leave initial out",
        )
    for i, claim in enumerate(spec.claims):
        if claim.kind == "metric":
            yield Diagnostic(
                code="unsupported",
                message=f"claim {claim.id!r} would be measured on models that start from weights fitted to the records "
                "without privacy",
                path=("claims", i),
                help="claim metrics in a spec without model.initial: worst-case",
            )


def assumed_public(outcomes: Iterable[Outcome], spec: Spec) -> Iterator[Outcome]:
    """The outcomes; where the spec says how training starts, upper bounds on the mechanism as declared with the
    assumption that they rest on, and lower bounds of attacks with who chose the weights."""
    uppers = (SAME,) if chosen(spec) else (PUBLIC,) if path_of(spec) is not None else ()
    lowers = (CHOSEN,) if chosen(spec) else ()
    for outcome in outcomes:
        found = isinstance(outcome, Finding) and (outcome.bound, outcome.scope.pipeline)
        added = uppers if found == ("upper", "declared") else lowers if found == ("lower", "executed") else ()
        if added and isinstance(outcome, Finding):
            yield replace(outcome, assumptions=(*outcome.assumptions, *added))
        else:
            yield outcome
