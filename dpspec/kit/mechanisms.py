"""Options of mechanisms, and mechanisms with a bound on epsilon and with an attack whose inclusion bits core draws."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import dpspec.contract as dps
from dpspec.contract.fragments import block, integer, requires_data
from dpspec.kit.findings import PROFILE_DELTAS, coins, executed_scope, lower_from, profile
from dpspec.kit.trials import chunks

if TYPE_CHECKING:
    import numpy as np

    from dpspec.accounting import Interval


class Options:
    """Base class of a mechanism's options: frozen dataclasses that read a block of the spec.

    Every field is read from the key of its name and converted to the field's type: a number, a string, a boolean, a
    mapping, other options, or a tuple of these. Override :meth:`read` for other shapes. The same class reads specs and
    inputs of trials: ``MyOptions.of(spec.mechanism.options)`` and ``MyOptions.of(inputs["mechanism"])``.
    """

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Self:
        """Read a block or a whole document. Optional keys may be missing."""
        return cls.fill(block)

    @classmethod
    def fill(cls, block: Mapping[str, dps.Json], **values: object) -> Self:
        """Options with ``values``, and the other fields from the keys of ``block``."""
        hints = get_type_hints(cls)
        for option in fields(cls):  # type: ignore[arg-type]
            if option.name not in values and block.get(option.name) is not None:
                values[option.name] = _typed(hints[option.name], block[option.name])
        return cls(**values)

    @classmethod
    def of(cls, block: Mapping[str, dps.Json] | dps.Spec) -> Self:
        """Cached :meth:`read` of ``block`` or of a spec's whole document (``FrozenMap.typed``)."""
        block = block.document if isinstance(block, dps.Spec) else block
        return (block if isinstance(block, dps.FrozenMap) else dps.FrozenMap(block)).typed(cls.read)


def _typed(hint: Any, value: Any) -> Any:
    """Convert a value to the type ``hint`` of a field; a union converts to its first type."""
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        return tuple(_typed(get_args(hint)[0], item) for item in value)
    if hint in (Any, dps.FrozenMap) or get_origin(hint) is Literal:
        return value
    kind: Any = hint.of if issubclass(hint, Options) else hint
    return kind(value)


class SimpleMechanism(dps.Audit):
    """Base class of a mechanism. Yield ``YourMechanism.offer()`` from the hook ``dpspec_mechanisms``.

    Attributes:
        schema: Schema fragment per key (``kit.number``, ...); keys without default are required.
        assumptions: Assumptions of every bound besides the formula.
        example: A whole spec as YAML, which the conformance suite runs.
        source: Publication that proves the bound.
        method: Computation method. Default: the kind.
        rigor: ``certified`` if :meth:`epsilon` returns an interval with an outward-rounded upper end, ``theorem`` if it
            evaluates a proved formula in float64.
        iterative: Whether specs give ``steps`` or ``phases``.
        profile_deltas: Further deltas at which :meth:`epsilon` is evaluated for the success rate of an attacker, which
            reports state only if they know the curve. Shorten it if :meth:`epsilon` takes seconds.

    Example::

        class Laplace(kit.SimpleMechanism):
            kind = "laplace"
            schema = {"scale": kit.number("Scale of the noise on a count.", above=0)}
            source = "Dwork, McSherry, Nissim and Smith 2006, Theorem 1"
            example = EXAMPLE

            def epsilon(self, spec, delta, group_size):
                return group_size / spec.mechanism["scale"]
    """

    kind: ClassVar[str]
    schema: ClassVar[Mapping[str, dps.Json]]
    example: ClassVar[str]
    source: ClassVar[str]
    summary: ClassVar[str] = ""
    assumptions: ClassVar[tuple[dps.Assumption, ...]] = ()
    method: ClassVar[str] = ""
    rigor: ClassVar[dps.findings.Rigor] = "theorem"
    scope: ClassVar[dps.Scope] = dps.Scope()
    iterative: ClassVar[bool] = False
    profile_deltas: ClassVar[Sequence[float]] = PROFILE_DELTAS
    trial_revision: ClassVar[int] = 1
    revision_only: ClassVar[bool] = False
    audit_schema: ClassVar[Mapping[str, dps.Json]] = {}

    @abstractmethod
    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval | float:
        """Upper bound on epsilon at ``delta`` for groups of up to ``group_size`` units, in the class's ``scope``.

        For an interval, the upper end is the bound and the lower end shows its tightness. ``inf`` for no bound.
        """

    @classmethod
    def offer(cls) -> dps.Mechanism:
        """Descriptor for the hook."""
        required = [key for key, fragment in cls.schema.items() if "default" not in fragment]
        only = cls.scope.adjacency
        adjacency = {"enum": [only], "default": only, "description": "The neighboring relation."}
        return dps.Mechanism(
            kind=cls.kind,
            summary=cls.summary or (cls.__doc__ or "").strip().split("\n", 1)[0].rstrip(".") or cls.kind,
            schemas=dps.Schemas(
                mechanism=block(None, required or None, **cls.schema),
                threat_model=block(None, adjacency=adjacency),
                audit=block(None, **cls.audit_schema),
            ),
            claims=frozenset({"approx-dp", "pure-dp"}),
            audit=f"{cls.__module__}:{cls.__qualname__}",
            example=cls.example,
            steps=cls.iterative,
            trial_revision=cls.trial_revision,
            revision_only=cls.revision_only,
        )

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Reject an ``audit`` block. Extend this for errors that the schema cannot express."""
        if spec.audit is not None:
            message = f"an upper bound is all that mechanism {self.kind!r} has: it attacks nothing"
            yield dps.Diagnostic(code="unsupported", message=message, path=("audit",), help="leave audit out")

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding | dps.Series]:
        """Evaluate :meth:`epsilon` for every group size at each claimed delta, at 0, and at ``profile_deltas``."""
        pure: dict[int, float] = {}
        for size, delta in conditions(spec):
            epsilon = self.epsilon(spec, delta, size)
            lower, upper = (
                (None, float(epsilon)) if isinstance(epsilon, int | float) else (epsilon.lower, epsilon.upper)
            )
            if delta == 0.0:
                pure[size] = upper
            if math.isnan(upper):
                continue
            assumptions = self.assumptions
            if self.rigor == "certified":
                from dpspec.accounting import library_accuracy

                accuracy = library_accuracy()
                assumptions = (*(a for a in assumptions if a.name != accuracy.name), accuracy)
            yield dps.Finding(
                quantity="epsilon",
                value=upper,
                lower=lower,
                bound="upper",
                rigor=self.rigor,
                method=self.method or self.kind,
                source=self.source,
                at=dps.FrozenMap({"delta": delta, "group_size": size}),
                scope=self.scope,
                assumptions=assumptions,
            )
        rows = []
        for size, most in pure.items():
            for delta in self.profile_deltas:
                epsilon = self.epsilon(spec, delta, size)
                upper = float(epsilon) if isinstance(epsilon, int | float) else epsilon.upper
                if upper < most:  # not if NaN, infinite or implied by pure DP
                    rows.append((self.scope.adjacency, size, upper, delta))
        if rows:
            yield profile(rows, rigor=self.rigor, source=self.source)


def conditions(spec: dps.Spec) -> list[tuple[int, float]]:
    """All group sizes of the spec with each delta claimed for it and 0, in order."""
    sizes = {(size, 0.0) for size in spec.threat_model.group_size}
    claimed = {(c.group_size, d) for c in spec.claims for d in (0.0, float(c.options.get("delta", 0.0)))}
    return sorted(sizes | claimed)


#: Resolution of score levels: absolute near 0, relative for large scores.
_STEPS = 256

#: Maximum level, a score of about 1e300.
_TOP = 180_000

#: Per distribution of the noise: degrees of freedom per number, and the name of the sum.
_LAWS: Mapping[str, tuple[int, str]] = {"gaussian": (1, "squared"), "laplace": (2, "absolute")}


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Observations of one trial for one group size: one release per inclusion bit.

    Attributes:
        scores: Evidence (n,) that the group was inserted, ideally the log-likelihood ratio. Must not depend on the
            bits.
        noise: Added noise (m,) in units of the declared scale, as drawn or as observed. Core tests its distribution.
        values: Released numbers (n, ...) that add the noise to what only the inclusion bit changes; None if there are
            none. The conformance suite measures the noise in them, independently of ``noise``.
        told: Further numbers by name; :meth:`AttackedMechanism.further_checks` receives their sums over all releases.
    """

    scores: np.ndarray[Any, Any]
    noise: np.ndarray[Any, Any]
    told: Mapping[str, float] = field(default_factory=dict)
    values: np.ndarray[Any, Any] | None = None


class AttackedMechanism(SimpleMechanism):
    """A :class:`SimpleMechanism` with an attack; core draws inclusion bits, tests, and bounds epsilon from below.

    Attributes:
        noise: Declared distribution of ``Releases.noise``: independent ``gaussian`` (standard normal) or ``laplace``
            (scale 1). Every run is checked against it.
        seconds: Seconds per release, for plans.
        adversary: Adversary of the attack (``dps.Scope``), who knows the data except the group.
    """

    noise: ClassVar[str]
    seconds: ClassVar[float] = 1e-5
    adversary: ClassVar[str] = "record"
    access: ClassVar[str] = "final-model"
    attack: ClassVar[str] = "scores of real releases"
    audit_schema: ClassVar[Mapping[str, dps.Json]] = {
        "method": {"enum": ["many-run"], "description": "Many releases, with the group or without by a fair coin."},
        "releases": integer("The number of releases per run and group size.", least=2, most=10**6, default=2000),
    }

    @abstractmethod
    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: np.ndarray[Any, Any]
    ) -> Releases:
        """Make and score one independent release per inclusion bit (n,) of ``coins``; 1 inserts the group.

        ``inputs`` holds ``mechanism``, ``threat_model`` and ``audit`` of the spec. All randomness must derive from
        ``context.seed(index, ...)``.
        """

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        """Number of values in ``Releases.noise`` per release, for the plan's detection limits. Default: one."""
        return 1

    def further_evidence(
        self, spec: dps.Spec, group_size: int, scores: Sequence[tuple[float, int, int]]
    ) -> Iterable[dps.Evidence]:
        """Evidence of other kinds from the same releases, each with its lower bounds. Default: none.

        ``scores`` has a row (score, absent, present) per level in ascending order: the number of releases without and
        with the group. Scores are rounded to 1/256, large ones relatively.
        """
        return ()

    def further_checks(self, spec: dps.Spec, told: Mapping[str, float] | None) -> Iterable[dps.Check]:
        """Additional tests of the executed run from the sums of ``Releases.told`` by name. Default: none.

        A plan passes None, which must yield the same checks with p-value 1 and no measurement.
        """
        return ()

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Require rows. Extend this for errors that the schema cannot express."""
        return () if spec.audit is None else requires_data(facts)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One chunk per run, and the largest epsilon that perfect guesses would show."""
        if spec.audit is None:
            return super().plan(spec, facts)
        from dpspec.stats.attacks import evidence_tests

        release_count = spec.audit.runs * int(spec.audit.options["releases"])
        sizes, power = spec.threat_model.group_size, []
        for size in sizes:
            best = _evidence(self, spec, size, "0" * (release_count - release_count // 2) + "1" * (release_count // 2))
            for delta in _deltas(spec, size):
                largest = evidence_tests.largest(best, delta, spec.audit.confidence)
                arguments = dps.FrozenMap({"delta": delta, "group_size": size})
                power.append(dps.Power(at=arguments, epsilon=largest, method=f"many-run, {release_count} releases"))
        numbers = release_count * len(sizes) * self.noise_numbers(spec, facts)
        return dps.Plan(
            chunks=chunks(spec.audit.runs),
            seconds=self.seconds * release_count * len(sizes),
            memory_bytes=64 * release_count,
            power=tuple(power),
            checks=(_noise_check(self.noise, None, numbers), *self.further_checks(spec, None)),
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterable[dps.Trial]:
        """One run each: releases with fair inclusion bits for every group size, stored as counts per score level."""
        import numpy as np

        coin_count = int(inputs["audit"]["releases"])
        for index in indices:
            groups: list[dps.Json] = []
            for size in inputs["threat_model"]["group_size"]:
                if context.cancelled():
                    raise dps.Cancelled
                coins = np.random.default_rng(context.seed(index, "coins", str(size))).integers(0, 2, coin_count)
                releases = self.release(inputs, context, index, int(size), coins.copy())
                scores, noise = (
                    np.asarray(releases.scores, dtype=np.float64),
                    np.asarray(releases.noise, dtype=np.float64),
                )
                if scores.shape != coins.shape:
                    raise ValueError(
                        f"{self.kind}: release() gave scores of shape {scores.shape} for {coin_count} coins"
                    )
                sums = {"count": noise.size, "absolute": float(np.abs(noise).sum()), "squared": float((noise**2).sum())}
                told_sums = (
                    {"told": {name: float(value) for name, value in releases.told.items()}} if releases.told else {}
                )
                groups.append({"group_size": size, "levels": _levels(scores, coins), "noise": sums, **told_sums})
            yield dps.Trial(index=index, evidence=dps.FrozenMap({"groups": groups}))

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        """Evidence and a lower bound per group size, and the check of the noise.

        Raises:
            ValueError: A sum of ``Releases.told`` is not a finite number.
        """
        assert spec.audit is not None  # trials imply an audit
        groups = [group for trial in trials for group in trial.evidence["groups"]]
        for size in spec.threat_model.group_size:
            evidence = _evidence(self, spec, size, _outcomes([g for g in groups if g["group_size"] == size]))
            yield evidence
            for delta in _deltas(spec, size):
                yield lower_from(evidence, spec.audit.confidence, delta=delta)
            for other_kind in self.further_evidence(
                spec, size, _scores([g for g in groups if g["group_size"] == size])
            ):
                yield other_kind
                for delta in _deltas(spec, size):
                    yield lower_from(other_kind, spec.audit.confidence, delta=delta)
        yield _noise_check(self.noise, [group["noise"] for group in groups])
        sums: dict[str, list[float]] = {}
        for name, value in (item for group in groups for item in group.get("told", {}).items()):
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ValueError(f"told.{name} must be a finite number, got {str(value)[:40]!r}")
            sums.setdefault(name, []).append(float(value))
        yield from self.further_checks(spec, {name: math.fsum(values) for name, values in sums.items()})


def _deltas(spec: dps.Spec, group_size: int) -> list[float]:
    return [delta for size, delta in conditions(spec) if size == group_size]


def _evidence(mechanism: AttackedMechanism, spec: dps.Spec, group_size: int, outcomes: str) -> dps.Evidence:
    from dpspec.stats.attacks import thresholds

    return dps.Evidence(
        id=f"releases-{group_size}",
        kind="many-run-ranked",
        statistics=dps.FrozenMap({"outcomes": outcomes}),
        at=dps.FrozenMap({"group_size": group_size}),
        method=mechanism.attack,
        source=thresholds.SOURCE,
        scope=executed_scope(spec, adversary=mechanism.adversary, access=mechanism.access),
        assumptions=(coins("each group is planted by an independent fair coin"),),
    )


def _levels(scores: np.ndarray[Any, Any], coins: np.ndarray[Any, Any]) -> list[list[int]]:
    """Numbers of absent and present releases per score level: [[level, absent, present], ...], ascending.

    The level of s is 256 asinh(s), rounded: monotone, with absolute resolution 1/256 near 0 and relative resolution
    1/256 for large scores. NaN scores have the lowest level.
    """
    import numpy as np

    levels = np.nan_to_num(np.round(_STEPS * np.arcsinh(scores)), nan=-_TOP, posinf=_TOP, neginf=-_TOP)
    distinct, level_index = np.unique(np.clip(levels, -_TOP, _TOP).astype(np.int64), return_inverse=True)
    counts = np.zeros((len(distinct), 2), dtype=np.int64)
    np.add.at(counts, (level_index, coins), 1)
    return [[int(level), int(absent), int(present)] for level, (absent, present) in zip(distinct, counts, strict=True)]


def _scores(groups: Sequence[Mapping[str, Any]]) -> list[tuple[float, int, int]]:
    """The scores of all levels, each with its numbers of absent and present releases, ascending."""
    return [(math.sinh(level / _STEPS), absent, present) for level, (absent, present) in _counts(groups)]


def _outcomes(groups: Sequence[Mapping[str, Any]]) -> str:
    """Inclusion bits of all releases by ascending level; ties are ordered against the attack (present first)."""
    return "".join("1" * present + "0" * absent for _, (absent, present) in _counts(groups))


def _counts(groups: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[int]]]:
    """The levels of all releases, each with its numbers of absent and present ones, ascending."""
    counts: dict[int, list[int]] = {}
    for level, absent, present in (row for group in groups for row in group["levels"]):
        sums = counts.setdefault(level, [0, 0])
        sums[0] += absent
        sums[1] += present
    return sorted(counts.items())


def _noise_check(law: str, noise_sums: Sequence[Mapping[str, Any]] | None, planned: int = 0) -> dps.Check:
    """Two-sided test of the noise scale, in a plan (without ``noise_sums``) of ``planned`` numbers.

    Gaussian: the sum of squares is chi-square. Laplace: twice the sum of absolute values is chi-square with two degrees
    per number.
    """
    from dpspec.stats.conformance import noise_tests

    per_number, name = _LAWS[law]
    count = planned if noise_sums is None else sum(int(sums["count"]) for sums in noise_sums)
    total = float(per_number * count)
    if noise_sums is not None:
        total = math.fsum(float(sums[name]) for sums in noise_sums) * per_number
    measured = noise_tests.two_sided(total, per_number * count)
    return measured.check("noise-scale", "reported", f"{law} noise, relative to the declared scale")
