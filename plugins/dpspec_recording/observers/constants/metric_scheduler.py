"""Whether the learning rate follows a metric.

The mistake: a loss of the records, which has no noise, decides when the learning rate falls::

    scheduler = ReduceLROnPlateau(optimizer)
    scheduler.step(loss_on(train_loader))
"""

import gc
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import MADE_TWICE, Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count

RULE = Rule(
    name="metric-scheduler",
    summary="a ReduceLROnPlateau belongs to the optimizer, whether or not it fired",
    why="A loss or accuracy on the records, without noise, decides the learning rate of later steps.",
    fix="Use a schedule fixed in advance, or a metric of public records only, and accept.",
    source=MADE_TWICE,
    code="dpspec_recording.observers.constants.metric_scheduler:MetricScheduler",
)


@dataclass(frozen=True, kw_only=True)
class SchedulerFacts:
    """The largest number of schedulers of the optimizer that follow a metric."""

    schedulers: Count


class MetricScheduler(TrainingRule[SchedulerFacts]):
    kind, early = SchedulerFacts, True

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._most_schedulers = 0

    def start(self, setup: RuleSetup) -> None:
        self._optimizers = [
            optimizer for optimizer in (setup.optimizer, setup.private_optimizer) if optimizer is not None
        ]
        self._count_plateau_schedulers()

    def stop(self) -> None:
        self._count_plateau_schedulers()
        self._optimizers = []  # a second call counts nothing

    def _count_plateau_schedulers(self) -> None:
        if not self._optimizers:
            return
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        referrers = gc.get_referrers(*self._optimizers)
        # objects refer to their attributes, or to the dictionary of attributes if it was read
        attributes = [candidate for candidate in referrers if type(candidate) is dict and "num_bad_epochs" in candidate]
        referrers += gc.get_referrers(*attributes) if attributes else []
        # the type, because isinstance may call code of the objects
        number = len({id(candidate) for candidate in referrers if issubclass(type(candidate), ReduceLROnPlateau)})
        self._most_schedulers = max(self._most_schedulers, number)

    def facts(self) -> SchedulerFacts:
        return SchedulerFacts(schedulers=self._most_schedulers)

    @staticmethod
    def caution(facts: SchedulerFacts, run: RuleRun) -> str:
        if not facts.schedulers:
            return ""
        return "The learning rate follows a metric (ReduceLROnPlateau), such as a loss: is it computed on public data?"
