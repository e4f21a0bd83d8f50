"""Randomized response with many runs, which counts its trials.

It reports a bit truthfully with probability e^epsilon / (1 + e^epsilon).
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dpspec.contract as dps
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.events import Event, Noticed
from dpspec.language.load import load_specs

#: The indices of all trials that ran in this process, in order.
RAN: list[int] = []

#: Called with the index before each trial; they may raise.
HOOKS: list = []

EXAMPLE = """\
dpspec: 1
name: coin
mechanism: {kind: counting, epsilon: 1.0}
data: {kind: nothing}
claims:
  - {id: held, kind: approx-dp, epsilon: 1.5, delta: 1e-6}
  - {id: broken, kind: approx-dp, epsilon: 0.2, delta: 1e-6, control: true, expect: refuted}
audit: {method: many-run, runs: 5, confidence: 0.95, seed: 3}
"""


def load(folder: Path, *overrides: str, text: str = EXAMPLE, known: Catalog | None = None) -> tuple[dps.Spec, ...]:
    path = folder / "coin.yaml"
    path.write_text(text, encoding="utf-8")
    loaded = load_specs([path], known or catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    return loaded.specs


def notices(events: Iterable[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Noticed)]


class CountingAudit(dps.Audit):
    """Has a known epsilon; each trial draws answers of 200 present and 200 absent records."""

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding]:
        yield dps.Finding(
            quantity="epsilon",
            value=float(spec.mechanism["epsilon"]),
            bound="upper",
            rigor="theorem",
            method="closed form",
            source="Warner 1965",
            at=dps.FrozenMap({"delta": 0.0}),
        )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        assert spec.audit is not None
        return dps.Plan(chunks=tuple((i,) for i in range(spec.audit.runs)), seconds=0.0, memory_bytes=0)

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        for index in indices:
            if context.cancelled():
                raise dps.Cancelled
            for hook in HOOKS:
                hook(index)
            RAN.append(index)
            draw = random.Random(context.seed(index, "answers"))
            epsilon = float(inputs["mechanism"]["epsilon"]) * float(inputs["mechanism"].get("factor", 1.0))
            truth = 1.0 / (1.0 + math.exp(-epsilon))
            hits = sum(draw.random() < truth for _ in range(200))
            alarms = sum(draw.random() >= truth for _ in range(200))
            yield dps.Trial(index=index, evidence=dps.FrozenMap({"hits": hits, "alarms": alarms}))

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        counts = {
            "present": 200 * len(trials),
            "absent": 200 * len(trials),
            "true_positives": sum(t.evidence["hits"] for t in trials),
            "false_positives": sum(t.evidence["alarms"] for t in trials),
        }
        yield dps.Evidence(
            id="answers",
            kind="many-run",
            statistics=dps.FrozenMap(counts),
            scope=dps.Scope(data="this", pipeline="executed"),
            method="ask",
            source="here",
        )
        yield dps.Check(assumption="asked", test="count", p_value=1.0, observed="measured", detectable=0.0)


class Nothing:
    def __init__(self, options: dps.FrozenMap, directory: object) -> None:
        pass

    def facts(self) -> dps.Facts:
        return dps.Facts(records=10, features=1, classes=2, shape=(1,), digest="nothing")

    def load(self) -> dps.LoadedData:
        raise AssertionError("no trial reads rows")


class NoTrainer:
    def train(self, job: object) -> None:
        raise AssertionError("no trial trains")


def catalog() -> Catalog:
    number = {"type": "number", "minimum": 0, "description": "how truthful"}
    mechanism = dps.Mechanism(
        kind="counting",
        summary="randomised response",
        schemas=dps.Schemas(
            mechanism={
                "type": "object",
                "properties": {"epsilon": number, "factor": number},
                "required": ["epsilon"],
                "additionalProperties": False,
            }
        ),
        claims=frozenset({"approx-dp", "pure-dp"}),
        audit="support.counting:CountingAudit",
        example=EXAMPLE,
        steps=False,
    )
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    dataset = dps.Dataset(kind="nothing", summary="nothing", schema=empty, source="support.counting:Nothing")
    backend = dps.Backend(
        kind="native",
        summary="trains nothing",
        schema=empty,
        capabilities=frozenset(),
        trainer="support.counting:NoTrainer",
    )

    def offer(provider: object) -> Offered:
        return Offered(provider=provider, plugin="support", distribution="support", version="1")

    return Catalog(
        mechanisms={"counting": offer(mechanism)},
        datasets={"nothing": offer(dataset)},
        backends={"native": offer(backend)},
    )
