"""Rules: mistakes that dpspec and plugins notice while a training runs.

The mistake that the rule ``guessable-seed`` notices: an adversary who knows the script recomputes its noise::

    torch.manual_seed(42)
    model, optimizer, loader = engine.make_private(...)

A rule is a class of :mod:`dpspec.contract.rules`, also of a plugin. This observer gives all rules the events of a
training, and the folder their facts. A caution depends on the claim: :mod:`dpspec_recording.judge.rules` makes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dpspec import json_records
from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.errors import RecordingError
from dpspec.registry.loader import load_catalog, resolve
from dpspec_recording.folder.merging import join_by
from dpspec_recording.notices import notice, say
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.observers.own_rule import OwnRule
from dpspec_recording.observers.own_rules import RULES
from dpspec_recording.outcomes.issue import Issue, Statement, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms
    from dpspec_recording.pending_step import PendingStep

F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class RuleFact:
    """The facts of a rule as JSON, since a reader may lack its plugin; or the error that ended it."""

    facts: Any = None
    error: str = ""


def _together(rows: Sequence[Sequence[Mapping[str, RuleFact]]]) -> tuple[Mapping[str, RuleFact], ...]:
    return tuple(chain.from_iterable(rows))


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """The facts of all rules by name, of each rank and part: a rule that fires in a single rank is a caution."""

    by_rule: tuple[Mapping[str, RuleFact], ...] = field(metadata=join_by(_together))

    def of(self, rule: Rule, kind: type[F]) -> tuple[F | None, ...]:
        """The facts of a rule in each rank and part; None if it failed there, or was not installed.

        Raises:
            RecordingError: The folder holds facts of another form.
        """
        facts = (by_rule.get(rule.name) for by_rule in self.by_rule)
        return tuple(None if fact is None or fact.error else _read(rule.name, kind, fact.facts) for fact in facts)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the rules that an error ended in some rank or part."""
        return tuple(dict.fromkeys(name for by_rule in self.by_rule for name, fact in by_rule.items() if fact.error))


def _read(name: str, kind: type[F], facts: Any) -> F:
    try:
        return json_records.read(kind, facts, f"rule {name}")
    except ValueError as error:
        raise RecordingError(f"{error}: cannot read its facts in the recording") from None


#: The rule on other optimizers, which simulated clients have.
SECOND_OPTIMIZER = "second-optimizer"

#: The run in a warning at the first step.
_FIRST_STEP = RuleRun(own_loop=False, steps=1, delta=1e-5)


def code_of(rule: Rule) -> type[TrainingRule[Any]]:
    """The class of a rule."""
    return cast("type[TrainingRule[Any]]", resolve(rule.code))


def _installed() -> tuple[Rule, ...]:
    """The rules of dpspec and of plugins."""
    try:
        catalog = load_catalog()
    except Exception as error:
        notice(f"dpspec.record: rules are off: {type(error).__name__}: {error}")
        return ()
    return tuple(offered.provider for offered in catalog.rules.values())


def _warn(text: str) -> None:
    """Warn about a caution. If warnings are errors (``python -W error``), a line says it: the rule must go on."""
    try:
        notice(text, UserWarning, stacklevel=3)
    except UserWarning:
        say(text)


class Rules(Observer[RuleFacts]):
    """Calls all rules. Code of a plugin must not end a recording: an exception of a rule ends this rule alone."""

    name, kind = "rules", RuleFacts

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        """rules: by default the installed ones."""
        self._given = rules
        self._rules: dict[str, tuple[Rule, TrainingRule[Any]]] = {}
        self._failed: dict[str, RuleFact] = {}
        self._at_steps: list[tuple[Rule, TrainingRule[Any]]] = []

    def start(self, training: Training) -> None:
        """Make and start the rules."""
        self._header, script_parts = training.header, training.script_parts
        setup = RuleSetup(
            model=script_parts.model,
            optimizer=training.optimizer,
            private_optimizer=training.private_optimizer,
            loader=script_parts.loader,
            resumes=training.part > 1,
            compiled=script_parts.compiled is not None,
            replayer=training.replayer,
            earlier=tuple(script_parts.earlier),
        )
        for rule in _installed() if self._given is None else self._given:
            with self._guarded(rule):
                self._rules[rule.name] = rule, code_of(rule)()
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                observer.start(setup)
        self._at_steps = [
            (rule, observer)
            for rule, observer in self._rules.values()
            if type(observer).after_step is not TrainingRule.after_step
        ]
        training.undo.callback(self._stop)

    def after_step(self, step: PendingStep) -> None:
        """Call the rules, and warn at the first step."""
        observed = RuleStep(
            number=step.number,
            drawn=step.drawn,
            norms=step.reported_norms(),
            clip_norm=step.clip_norm,
            noise=step.noise,
            noise_generators=tuple(step.noise_generators),
            batch_generators=tuple(step.batch_generators),
        )
        for rule, observer in self._at_steps:
            if rule.name in self._rules:
                try:
                    observer.after_step(observed)
                except Exception as error:
                    self._fail(rule, error)
        if step.number == 1:
            for rule, observer in [*self._rules.values()]:
                with self._guarded(rule):
                    if self._warns(rule, observer) and (text := observer.caution(observer.facts(), _FIRST_STEP)):
                        _warn(f"dpspec, rule {rule.name}: {text} {rule.fix}")

    def _warns(self, rule: Rule, observer: TrainingRule[Any]) -> bool:
        """Whether the rule warns at the first step. Simulated clients step further optimizers."""
        return observer.early and not (self._header.federated and rule.name == SECOND_OPTIMIZER)

    def _stop(self) -> None:
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                observer.stop()

    def facts(self) -> RuleFacts:
        """The facts of all rules. A rule whose facts are not of its kind ends: no reader would accept these."""
        facts_by_rule: dict[str, RuleFact] = {}
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                stated = json_records.write(observer.facts())
                json_records.read(observer.kind, stated, "facts")
                facts_by_rule[rule.name] = RuleFact(facts=stated)
        return RuleFacts(by_rule=({**facts_by_rule, **self._failed},))

    def cautions(self, steps: int, delta: float) -> tuple[str, ...]:
        """The names of the rules that give a caution on a claim about the steps until now."""
        header, names = self._header, list[str]()
        run = RuleRun(own_loop=header.is_reported, steps=steps, delta=delta, records=header.records)
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                names += [rule.name] if observer.caution(observer.facts(), run) else []
        return tuple(names)

    @contextlib.contextmanager
    def _guarded(self, rule: Rule) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._fail(rule, error)

    def _fail(self, rule: Rule, error: Exception) -> None:
        self._failed[rule.name] = RuleFact(error=f"{type(error).__name__}: {error}"[:300])
        failed = self._rules.pop(rule.name, None)
        if failed is not None:
            with self._guarded(rule):
                failed[1].stop()

    @staticmethod
    def judge(facts: RuleFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Name the rules of dpspec that failed, or whose facts some rank or part lacks."""
        if facts is None:
            return
        noted = [{name for name, fact in by_rule.items() if not fact.error} for by_rule in facts.by_rule]
        unnoted = [rule.name for rule in RULES if not all(rule.name in names for names in noted)]
        if unnoted:
            text = f"the recording does not show the cautions of the rules: {', '.join(unnoted)}: record again"
            yield doubted("one-record", text=text)

    @staticmethod
    def ask(facts: RuleFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """The questions of the rules of dpspec."""
        for rule in RULES:
            code = code_of(rule)
            if issubclass(code, OwnRule):
                yield from code.ask(() if facts is None else facts.of(rule, code.kind), run, terms)


def explained_by(run: JudgedRun, rule: Rule) -> tuple[str, ...]:
    """The names of the tests that the caution of a rule explains."""
    facts, code = run.fact(Rules), code_of(rule)
    return code.explains(facts.of(rule, code.kind)) if facts is not None and issubclass(code, OwnRule) else ()
