"""What an audit finds: numbers with their rigor, scope and source, and the evidence behind them.

Beside them: the names of privacy quantities, which no metric may have, and the public facts of a spec's data and model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpspec.contract.frozen import FrozenMap, Json
from dpspec.errors import MissingLibraryError

#: What privacy claims state or depend on, and what dpspec's own mechanisms say of privacy under names of their own. A
#: name that begins with one of these, as ``epsilon-limit`` does, is another of them.
PRIVACY_QUANTITIES = frozenset(
    {
        *("epsilon", "eps", "delta", "mu", "gamma", "kappa", "alpha", "rho", "tpr", "fpr", "fnr", "advantage"),
        *("renyi", "rdp", "zcdp", "gdp", "tradeoff", "membership", "reconstruction", "prior", "divergence", "leakage"),
        *("step-epsilon", "first-order", "unlearning-divergence", "refusal-probability", "amplification"),
        *("ε", "δ", "μ", "µ", "γ", "κ", "α", "ρ"),
    }
)

#: The estimate of epsilon from what conformance measured of a run: it stands beside conformance, and decides nothing.
AS_RUN = "epsilon-as-run"


def is_privacy_quantity(name: str) -> bool:
    """Whether a quantity is known to speak of privacy, by its name: letters' case and ``_`` for ``-`` do not matter.

    >>> is_privacy_quantity("Epsilon_limit"), is_privacy_quantity("accuracy-same-epsilon")
    (True, False)
    """
    words = "".join(letter if letter.isalnum() else "-" for letter in name.casefold()).strip("-").split("-")
    return any("-".join(words[:count]) in PRIVACY_QUANTITIES for count in range(1, len(words) + 1))


Bound: TypeAlias = Literal["upper", "lower", "estimate"]

#: ``certified``: a true inequality, numerical error included. ``theorem``: a proved formula evaluated in float64.
#: ``statistical``: true with the stated confidence. ``approximate``: no guarantee.
Rigor: TypeAlias = Literal["certified", "theorem", "statistical", "approximate"]

#: No statistical test yields "true": the best a test can say is ``not-rejected``.
AssumptionStatus: TypeAlias = Literal["by-construction", "declared", "not-rejected", "reported", "false", "unchecked"]

#: ``verified``: exact comparisons hold. ``tested``: statistical tests reject nothing. ``assumed``: the user
#: declares it. ``open``: not known. ``violated``: a comparison or a test fails.
ChannelStatus: TypeAlias = Literal["verified", "tested", "assumed", "open", "violated"]

#: Reporters leave ``data-dependent`` and ``per-record`` values out unless they are asked for.
Privacy: TypeAlias = Literal["public", "data-dependent", "per-record"]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a number speaks of.

    An upper bound counts for a claim only if its scope covers the claim's; a lower bound only if the claim's
    scope covers its own.

    unit: what ``group_size`` counts: a ``record``, or a user with as many records as one has at most: ``user (at most 8
        records)``. What is said of one unit is never said of another.
    adversary: ``gradient`` (chooses gradients), ``record`` (chooses records) or ``none``.
    data: ``all`` data sets, a declared ``collection``, ``this`` one, or ``planted``: this one and more records that an
        attack planted, which is some data set but not the declared one.
    record: ``all`` records or the index of one; of evidence and bounds that must not tell which, why it was chosen.
    pipeline: the mechanism as ``declared`` or the pipeline as ``executed``.
    min_records: both neighbours hold at least this many records; 0 where nothing is asked of their number.
    neighbours: ``all`` pairs that the adjacency allows, or the name of a restriction on them, such as
        ``same-missing-values``.
    """

    adjacency: str = "add-remove"
    unit: str = "record"
    direction: str = "both"
    access: str = "all-iterates"
    adversary: str = "gradient"
    data: str = "all"
    record: str | int = "all"
    pipeline: str = "declared"
    min_records: int = 0
    neighbours: str = "all"


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A condition under which a number holds, and what is known of it."""

    name: str
    status: AssumptionStatus
    text: str = ""
    test: str | None = None
    level: float | None = None
    detectable: float | None = None


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One of the ways in which records can reach a released model, and what a recording shows of it.

    Attributes:
        name: One of the eight names in :mod:`dpspec.engine.recorded.channels`.
        status: The weakest status of everything that the channel depends on.
        text: A sentence for the reader: what must hold, and why the status is what it is.
        detectable: Smallest relative deviation that the tests of the channel detect; 0 for exact comparisons alone,
            None if there is no test.
        sources: Names of the checks and assumptions that decide the status.
        assumes: Names of the assumptions that are declared and not tested.
    """

    name: str
    status: ChannelStatus
    text: str
    detectable: float | None = None
    sources: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Marks a number computed by a paper's formula as printed; a refuted formula can back no verdict."""

    refuted: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One number that a plugin stands behind.

    quantity: ``epsilon``, ``delta``, ``mu``, ``gamma``, ``accuracy``, ...
    value: a float; ``inf`` is allowed for an upper bound that does not exist.
    at: the conditions: ``delta``, ``group_size``, ``alpha``, ``kappa``, ``step``, ...
    confidence: set when ``rigor`` is ``statistical``.
    lower: where a routine returns an interval around an upper value, its lower end: how tight ``value`` is. It refutes
        nothing; where some pair of data sets in scope attains the worst case, it is stated as a finding of its own.
    """

    quantity: str
    value: float
    bound: Bound
    rigor: Rigor
    method: str
    source: str
    at: FrozenMap = field(default_factory=FrozenMap)
    scope: Scope = field(default_factory=Scope)
    assumptions: tuple[Assumption, ...] = ()
    confidence: float | None = None
    printed: Printed | None = None
    privacy: Privacy = "public"
    lower: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve or a table: named columns of equal length, each with a unit, for figures and files.

    plot: how a figure is drawn of it, nothing for a table only. ``x``: a column; ``y``: a list of columns, a line each;
        ``by``: a column whose every value gets lines of its own; ``log``: the axes (``x``, ``y``) that are logarithmic;
        ``identity``: true where the diagonal y = x means something; ``band``: two columns, the edges of an area about
        each line. ``kind``: ``lines``, or ``dots`` (``x`` holds names, the values of ``y`` are dots beside them), or
        ``sorted`` (no ``x``: the values of ``y`` in ascending order, of all rows and of each value of ``by``), or
        ``pictures`` (the cells of ``y`` are bytes in base64, ``shape`` [height, width, 1 or 3]; the column ``frame``
        says which of a row's pictures is framed, counted from 0).
        A series of ``delta`` against ``epsilon`` that is certified, or a theorem, holds upper bounds on the mechanism
        as declared in the directions that its findings are of.
    bounds: the columns that hold bounds, each ``upper`` or ``lower``: reports round them up or down, others to nearest.
    """

    name: str
    title: str
    columns: FrozenMap
    units: FrozenMap
    rigor: Rigor
    source: str
    privacy: Privacy = "public"
    plot: FrozenMap = field(default_factory=FrozenMap)
    bounds: FrozenMap = field(default_factory=FrozenMap)

    def to_frame(self) -> Any:
        """The columns as a ``pandas.DataFrame``, numbers unrounded.

        Raises ``MissingLibraryError``, a ``UsageError`` and an ``ImportError``, without pandas: ``dict(self.columns)``
        holds the same.
        """
        return data_frame(self.columns)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One test of the executed pipeline against what the spec declares.

    ``p_value`` is the probability, under the declaration, of a deviation at least as large as the measured one;
    ``detectable`` the smallest relative deviation that the test would have seen. ``observed`` says whether the
    quantity was ``measured`` from outside or ``reported`` by the backend. The judge turns all checks of one
    invocation into the result's conformance.
    """

    assumption: str
    test: str
    p_value: float
    observed: Literal["measured", "reported"]
    declared: float | None = None
    measured: float | None = None
    detectable: float | None = None
    note: str = ""
    privacy: Privacy = "public"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The sufficient statistics of one attack, from which any null curve can be tested again at no cost.

    kind: which test reads them (``dpspec.stats.attacks.evidence_tests``): ``one-run`` (canaries, guesses, correct),
        ``one-run-ladder`` (canaries, lists of guesses and correct), ``many-run`` (present, absent, true_positives,
        false_positives), ``many-run-ranked`` (outcomes, a text of 0 and 1), ``many-run-sequential`` (coins, a text of 0
        and 1, and scores, both in the order of the runs; valid whenever one stops) or ``binomial`` (trials, successes).
    quantity: what is attacked: ``epsilon`` for privacy curves, or the name of a metric.
    power: the largest epsilon (at ``at.delta``) that this attack could have shown with perfect guesses.
    """

    id: str
    kind: str
    statistics: FrozenMap
    scope: Scope
    method: str
    source: str
    at: FrozenMap = field(default_factory=FrozenMap)
    quantity: str = "epsilon"
    power: float | None = None
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts of a data set and a model, known without loading rows or torch.

    ``records`` counts the training records, ``shape`` is that of one record, ``parameters`` the number of
    trainable parameters (None where the spec has no model). ``digest`` identifies the rows; it is None for data
    that is only declared, and such data can be bounded but not trained on. ``capabilities`` are those of the
    backend that the spec names. ``initial_weights`` is the SHA-256 of the file that the model starts from, None where
    its weights are drawn. ``vocabulary`` is None for features that are quantities; where records are texts it says how
    many tokens there are: features are then whole numbers below it, and 0 is padding. ``users`` counts those whose
    training records these are, None where nothing says whose they are. Core fills in ``parameters``,
    ``capabilities`` and ``initial_weights``.
    """

    records: int
    features: int
    classes: int
    shape: tuple[int, ...] = ()
    test_records: int = 0
    parameters: int | None = None
    digest: str | None = None
    capabilities: tuple[str, ...] = ()
    initial_weights: str | None = None
    vocabulary: int | None = None
    users: int | None = None


def data_frame(columns: Mapping[str, Sequence[Json]]) -> Any:
    """The columns as a ``pandas.DataFrame``; raises ``MissingLibraryError`` saying what to install."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingLibraryError(
            "a data frame needs pandas: pip install pandas; without it, a series holds the same in `columns`, and "
            "`dpspec report --format csv` writes the claims"
        ) from None
    return pd.DataFrame({name: list(column) for name, column in columns.items()})
