"""Results of an audit: findings with rigor, scope and source, series, checks, evidence; public facts of its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpspec.contract.frozen import FrozenMap, Json
from dpspec.errors import MissingLibraryError

#: Quantities of privacy claims and of dpspec's own mechanisms. Names with one of these prefixes, such as ``epsilon-
#: limit``, are reserved as well.
PRIVACY_QUANTITIES = frozenset(
    {
        *("epsilon", "eps", "delta", "mu", "gamma", "kappa", "alpha", "rho", "tpr", "fpr", "fnr", "advantage"),
        *("renyi", "rdp", "zcdp", "gdp", "tradeoff", "membership", "reconstruction", "prior", "divergence", "leakage"),
        *("step-epsilon", "first-order", "unlearning-divergence", "refusal-probability", "amplification"),
        *("ε", "δ", "μ", "µ", "γ", "κ", "α", "ρ"),
    }
)

#: Estimate of epsilon from conformance measurements; it decides no claim.
AS_RUN = "epsilon-as-run"


def is_privacy_quantity(name: str) -> bool:
    """Whether the name of a quantity is one of privacy. Case is ignored, and ``_`` equals ``-``.

    >>> is_privacy_quantity("Epsilon_limit"), is_privacy_quantity("accuracy-same-epsilon")
    (True, False)
    """
    name_parts = "".join(letter if letter.isalnum() else "-" for letter in name.casefold()).strip("-").split("-")
    return any("-".join(name_parts[:count]) in PRIVACY_QUANTITIES for count in range(1, len(name_parts) + 1))


Bound: TypeAlias = Literal["upper", "lower", "estimate"]

#: ``certified``: a true inequality including numerical error. ``theorem``: a proved formula evaluated in float64.
#: ``statistical``: holds with the stated confidence. ``approximate``: no guarantee.
Rigor: TypeAlias = Literal["certified", "theorem", "statistical", "approximate"]

#: Statistical tests never yield "true": their best outcome is ``not-rejected``.
AssumptionStatus: TypeAlias = Literal["by-construction", "declared", "not-rejected", "reported", "false", "unchecked"]

#: From weak to strong.
WEAKEST_FIRST: tuple[AssumptionStatus, ...] = (
    "false", "unchecked", "reported", "declared", "not-rejected", "by-construction",
)  # fmt: skip

#: The assumption about the origin of constants, which each backend states.
CONSTANTS = "data-independent-hyperparameters"

#: ``verified``: exact comparisons hold. ``tested``: no statistical test rejects. ``assumed``: declared by the user.
#: ``open``: unknown. ``violated``: a comparison or a test fails.
ChannelStatus: TypeAlias = Literal["verified", "tested", "assumed", "open", "violated"]

#: Reporters omit ``data-dependent`` and ``per-record`` values by default.
Privacy: TypeAlias = Literal["public", "data-dependent", "per-record"]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The pairs of datasets, adversaries and pipelines to which a number applies.

    An upper bound supports a claim only if its scope covers the claim's; a lower bound only if the claim's scope covers
    its own.

    Attributes:
        unit: Unit of ``group_size``: ``record``, or ``user (at most 8 records)``. Different units are never compared.
        adversary: ``gradient`` (chooses gradients), ``record`` (chooses records) or ``none``.
        data: ``all`` datasets, a declared ``collection``, ``this`` one, or ``planted``: this one plus canaries of an
            attack.
        record: ``all`` records or the index of one; if the index must stay private, the reason for choosing it.
        pipeline: The mechanism as ``declared``, or the pipeline as ``executed``.
        min_records: Minimum number of records of both neighbors; 0 for no restriction.
        neighbours: ``all`` pairs of the adjacency, or the name of a restriction, such as ``same-missing-values``.
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
    """A condition of a number, and its status.

    Attributes:
        settled: Whether an unchecked status counts the checks of the run already, so that they do not change it.
        privacy: The class of ``detectable``, from the check of the run.
    """

    name: str
    status: AssumptionStatus
    text: str = ""
    test: str | None = None
    level: float | None = None
    detectable: float | None = None
    settled: bool = False
    privacy: Privacy = "public"


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One of the ways in which records can influence a released model, and the evidence of an executed training.

    Attributes:
        name: A name of the plugin that observed the training; empty for a sentence about no single channel.
        status: Weakest status of everything that the channel depends on; ``text`` gives the condition and the reason.
        reason: Why it is open or violated, without the condition; empty for other channels.
        detectable: Smallest relative deviation that the channel's tests detect; 0 for exact comparisons, None without a
            test.
        sources: Names of the checks and assumptions that determine the status.
        assumes: Names of the declared, untested assumptions.
    """

    name: str
    status: ChannelStatus
    text: str
    reason: str = ""
    detectable: float | None = None
    sources: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Marks a number computed by a paper's published formula; a refuted formula supports no verdict."""

    refuted: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A number for which a plugin vouches.

    Attributes:
        value: A float; ``inf`` for a missing upper bound.
        at: Conditions: ``delta``, ``group_size``, ``alpha``, ``kappa``, ``step``, ...
        confidence: Confidence level if ``rigor`` is ``statistical``.
        lower: Lower end of the interval around an upper bound, which shows its tightness. It refutes nothing.
        charges: Names of errors that an upper bound counts in addition, such as ``rounding of norms``. They
            leave a claim between ``lower`` and ``value`` open.
        origin: Distribution and version of the third-party plugin that vouches for a proved number; empty for dpspec's
            own code. Core sets it.
        recorded: Whether the number is of an executed training that a plugin observed, whose schedule may differ from
            the declared one. Core sets it.
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
    charges: tuple[str, ...] = ()
    origin: str = ""
    recorded: bool = False

    def charged_above(self, claimed: float | None) -> tuple[str, ...]:
        """The charges of an upper bound above ``claimed`` whose lower end is not; empty for other bounds."""
        between = claimed is not None and self.lower is not None and self.lower <= claimed < self.value
        return self.charges if between else ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve or table: named columns of equal length with units, for figures and files.

    Attributes:
        plot: How to draw it; empty for a table only. ``x``: a column; ``y``: columns, one line each; ``by``: one set of
            lines per value of this column; ``log``: logarithmic axes (``x``, ``y``). ``kind``: ``lines``, or ``sorted``
            (no ``x``: a histogram of ``y``, with the largest value and constant upper bounds as lines), or
            ``constants`` (a table; brief reports list the names in ``x`` with the values in ``y``). A certified or
            theorem series of ``delta`` against ``epsilon`` holds upper bounds on the declared mechanism in its
            findings' directions.
        bounds: Columns with bounds, each ``upper`` or ``lower``, for directed rounding in reports.
        recorded: Whether it is of an executed training that a plugin observed, as in :class:`Finding`.
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
    recorded: bool = False

    def __repr__(self) -> str:
        rows = len(next(iter(self.columns.values()), ()))
        return f"Series({self.name!r}, {rows} rows of {', '.join(self.columns)})"

    def to_frame(self) -> Any:
        """Convert the columns to a ``pandas.DataFrame`` with unrounded numbers.

        Raises:
            MissingLibraryError: pandas is not installed. It is a ``UsageError`` and an ``ImportError``.
        """
        return data_frame(self.columns)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A test of the executed pipeline against the declaration.

    Attributes:
        p_value: Probability, under the declaration, of a deviation at least as large as the measured one.
        detectable: Smallest relative deviation that the test detects.
        observed: Whether the quantity was ``measured`` on released models or ``reported`` by the backend.
        note: The compared quantity. A check keeps a plan's promise with the same assumption, ``observed`` and note.
        remark: The run's addition to the note, such as the reason why a promised test could not be made.
        tests: The names of the tests that reject a check of several tests; of one test its name.
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
    remark: str = ""
    tests: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The note and the remark."""
        return ", ".join(filter(None, (self.note, self.remark)))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Sufficient statistics of one attack, from which any null hypothesis can be tested again.

    Attributes:
        kind: An attack method (:class:`~dpspec.contract.attacks.AttackMethod`): ``one-run`` (canaries, guesses,
            correct), ``one-run-ladder`` (canaries, lists of guesses and correct), ``many-run`` (present, absent,
            true_positives, false_positives), ``many-run-ranked`` (outcomes, a string of 0 and 1),
            ``many-run-sequential`` (coins, and scores in the order of the runs), or a plugin's; of metrics ``binomial``
            (trials, successes), ``average``, ``bounded-average`` or ``bounded-mean``.
        quantity: ``epsilon`` for privacy curves, or the name of a metric.
        power: Largest epsilon (at ``at.delta``) that perfect guesses would show.
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
    """Public facts of a dataset and a model, known without loading rows or torch.

    Attributes:
        records: Number of training records.
        shape: Shape of one record.
        parameters: Number of trainable parameters; None without a model.
        digest: Identifies the rows; None for declared data, which can be bounded but not trained on.
        initial_weights: SHA-256 of the file of initial weights; None for random weights.
        classes: Number of classes; 1 for real-valued targets.
        vocabulary: Number of tokens of texts, whose features are integers below it with padding 0; None for numeric
            features.
        users: Number of users who own the training records; None if unknown.
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

    @property
    def real_target(self) -> bool:
        """Whether targets are real numbers; ``classes`` is then 1, the number of outputs of a model."""
        return self.classes == 1


def data_frame(columns: Mapping[str, Sequence[Json]]) -> Any:
    """Convert columns to a ``pandas.DataFrame``. Raises ``MissingLibraryError`` without pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingLibraryError(
            "a data frame needs pandas: pip install pandas; without it, a series holds the same in `columns`, and "
            "`dpspec report --format csv` writes the claims"
        ) from None
    return pd.DataFrame({name: list(column) for name, column in columns.items()})
