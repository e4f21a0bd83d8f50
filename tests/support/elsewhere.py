"""An executor without processes: tasks travel as bytes and are done here, the last one first; and bounds that are told
what to do where.

``STATE`` says what happens and remembers what happened; :func:`reset` makes it anew.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from dpspec.contract import Context, Executor, Finding, Spec
from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError
from dpspec.executors import Message, PartialResult, PoolRequest, Resources, Task, TaskFailed, TaskFinished, WorkerLost
from dpspec.executors.pools import InlineContext
from dpspec.executors.processes import portable
from support import counting


@dataclasses.dataclass
class State:
    """bounds: called with the epsilon of the mechanism and what is found, and gives what is said to be found.

    lost: how many tasks are lost. closed_to: why no pool opens. refusing: why no task starts.
    at_work: whether a worker works now. asked: every epsilon that was bounded, and whether a worker did it.
    """

    bounds: Callable[[float, Finding], Any] | None = None
    lost: int = 0
    closed_to: str = ""
    refusing: str = ""
    at_work: bool = False
    asked: list[tuple[float, bool]] = dataclasses.field(default_factory=list)
    opened: list[PoolRequest] = dataclasses.field(default_factory=list)
    tasks: list[str] = dataclasses.field(default_factory=list)
    closed: int = 0

    def by_workers(self) -> list[float]:
        return sorted(epsilon for epsilon, at_work in self.asked if at_work)

    def here(self) -> list[float]:
        return [epsilon for epsilon, at_work in self.asked if not at_work]


STATE = State()


def reset() -> State:
    """Nothing special happens, and nothing has happened."""
    vars(STATE).update(vars(State()))
    counting.RAN.clear()
    return STATE


class ToldAudit(counting.CountingAudit):
    """The counting mechanism's, whose bounds do what ``STATE`` says."""

    def bound(self, spec: Spec, context: Context) -> Iterator[Finding]:
        epsilon = float(spec.mechanism["epsilon"])
        assert context.facts.records == 10
        STATE.asked.append((epsilon, STATE.at_work))
        for found in super().bound(spec, context):
            yield found if STATE.bounds is None else STATE.bounds(epsilon, found)


class Elsewhere:
    """Two tasks at once."""

    size = 2

    def __init__(self, demand: PoolRequest) -> None:
        if STATE.closed_to:
            raise UsageError(STATE.closed_to)
        STATE.opened.append(demand)
        self._started: list[bytes] = []

    def room(self, needs: Resources) -> bool:
        return len(self._started) < self.size

    def start(self, task: Task) -> None:
        if STATE.refusing:
            raise UsageError(STATE.refusing)
        STATE.tasks.append(task.name)
        self._started.append(pickle.dumps(task))

    def messages(self) -> Iterator[Message]:
        task: Task = pickle.loads(self._started.pop())  # noqa: S301 - of a moment ago
        if STATE.lost:
            STATE.lost -= 1
            yield WorkerLost(task=task.number, reason="its process was killed")
            return
        STATE.at_work = True
        try:
            for value in task.work(InlineContext("cpu", task.seconds, lambda said: None)):
                STATE.at_work = False
                yield PartialResult(task=task.number, value=pickle.loads(pickle.dumps(value)))  # noqa: S301
                STATE.at_work = True
        except Exception as error:
            yield TaskFailed(task=task.number, error=portable(error))
        else:
            yield TaskFinished(task=task.number)
        finally:
            STATE.at_work = False

    def close(self) -> None:
        STATE.closed += 1


def catalog(distribution: str = "support") -> Catalog:
    """The counting catalog with this audit and this executor, offered by a distribution."""
    plain = counting.catalog()

    def by(offers: Any) -> dict[str, Any]:
        return {kind: dataclasses.replace(offered, distribution=distribution) for kind, offered in offers.items()}

    mechanisms = by(plain.mechanisms)
    offered = mechanisms["counting"]
    told = dataclasses.replace(offered.provider, audit="support.elsewhere:ToldAudit")
    pool = Executor(kind="elsewhere", summary="here", pool="support.elsewhere:Elsewhere")
    return dataclasses.replace(
        plain,
        mechanisms={"counting": dataclasses.replace(offered, provider=told)},
        datasets=by(plain.datasets),
        backends=by(plain.backends),
        executors={"elsewhere": dataclasses.replace(offered, provider=pool)},
    )
