"""``model.initial``: initial weights from a file that the user declares public, or chosen by the adversary.

Bounds cover what training reveals of the records. Weights that were trained on these records reveal them from the
start, and a file does not show its training data. So every proof of a spec with ``model.initial`` assumes that its
weights do not depend on the private records. ``worst-case`` is for attacks: Theorem R5 of
``docs/explanation/proofs/recorded-runs.md``.
"""

from __future__ import annotations

from pathlib import Path

from dpspec.contract import Assumption, DataError, Facts, ModelFactory, Spec
from dpspec.models.weights_file import FromFile

#: The key of a model block that core reads and removes from the factory's options.
KEY = "initial"

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


def started(spec: Spec, factory: ModelFactory, recorded: Facts | None) -> tuple[ModelFactory, str | None]:
    """The factory whose models start from the spec's file, and the file's digest.

    ``recorded``: the facts of a result, whose digest replaces the digest of a missing file.
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
    initial = None if spec.model is None else spec.model.get(KEY)
    return None if initial is None or chosen(spec) else Path(spec.directory) / str(initial["path"])


def chosen(spec: Spec) -> bool:
    return spec.model is not None and spec.model.get(KEY) == WORST_CASE
