"""A plugin of everything, which does nothing wrong: what each misdeed is done to."""

from __future__ import annotations

#: The module that the entry point names.
PLUGIN = """
from dpspec.contract import (
    HOOK_API, Backend, Dataset, Executor, Mechanism, Model, Reporter, Schemas, hookimpl
)
from dpspec.contract.attacks import Canary, Score

DPSPEC_API = 1
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
NUMBER = {"type": "number", "minimum": 0, "description": "how truthful"}
CAPABILITIES = frozenset({"iterates", "gradient-canaries", "sampling-log", "noise-log", "norm-log"})


def mechanism(**changed):
    schemas = Schemas(mechanism={
        "type": "object", "properties": {"epsilon": NUMBER}, "required": ["epsilon"], "additionalProperties": False
    })
    fields = dict(kind="misdeed", summary="a coin", schemas=schemas, claims=frozenset({"approx-dp"}),
                  audit="misdeed_code:CoinAudit", example="dpspec: 1", steps=False)
    return Mechanism(**{**fields, **changed})


@hookimpl
def dpspec_mechanisms():
    yield mechanism()


@hookimpl
def dpspec_datasets():
    yield Dataset(kind="misdeed", summary="ten records", schema=EMPTY, source="misdeed_code:Source")


@hookimpl
def dpspec_models():
    yield Model(kind="misdeed", summary="a line", schema=EMPTY, factory="misdeed_code:Factory")


@hookimpl
def dpspec_backends():
    yield Backend(kind="misdeed", summary="native", schema=EMPTY, capabilities=CAPABILITIES,
                  trainer="misdeed_code:trainer", constants="misdeed_code:constants")


@hookimpl
def dpspec_reporters():
    yield Reporter(format="misdeed", summary="a format", render="misdeed_code:render", suffix=".txt")


@hookimpl
def dpspec_executors():
    yield Executor(kind="misdeed", summary="inline", pool="misdeed_code:pool")


@hookimpl
def dpspec_attacks():
    yield Canary(kind="misdeed", summary="noise", space="input", make="misdeed_code:records",
                 limit="misdeed_code:limit")
    yield Canary(kind="misdeed-steps", summary="axes", space="gradient", make="misdeed_code:directions")
    yield Score(kind="misdeed", summary="how much likelier", score="misdeed_code:score")
"""

#: The module that its descriptors name.
CODE = """
import math, os, random, sys, time
from dpspec.contract import (
    Assumption, Audit, Check, DataError, Diagnostic, Evidence, Facts, Finding, FrozenMap, LoadedData, Plan, Scope,
    Series, Trial
)


class Own(Exception):
    pass


class CoinAudit(Audit):
    def bound(self, spec, context):
        yield Finding(quantity="epsilon", value=float(spec.mechanism["epsilon"]), bound="upper", rigor="theorem",
                      method="closed form", source="Warner 1965", at=FrozenMap({"delta": 0.0}))

    def plan(self, spec, facts):
        return Plan(chunks=tuple((i,) for i in range(spec.audit.runs)), seconds=0.0, memory_bytes=0)

    def trials(self, inputs, context, indices):
        for index in indices:
            draw = random.Random(context.seed(index, "answers"))
            truth = 1.0 / (1.0 + math.exp(-inputs["mechanism"]["epsilon"]))
            hits = sum(draw.random() < truth for _ in range(50))
            alarms = sum(draw.random() >= truth for _ in range(50))
            yield Trial(index=index, evidence=FrozenMap({"hits": hits, "alarms": alarms}))

    def conclude(self, spec, trials):
        n = 50 * len(trials)
        counts = {"present": n, "absent": n, "true_positives": sum(t.evidence["hits"] for t in trials),
                  "false_positives": sum(t.evidence["alarms"] for t in trials)}
        yield Evidence(id="answers", kind="many-run", statistics=FrozenMap(counts),
                       scope=Scope(data="this", pipeline="executed"), method="ask", source="here")
        yield Check(assumption="asked", test="count", p_value=1.0, observed="measured", detectable=0.0)


class Source:
    def __init__(self, options, directory):
        pass

    def facts(self):
        return Facts(records=40, features=20, classes=2, shape=(20,), digest="a" * 64)

    def load(self):
        import numpy as np
        draw = np.random.default_rng(1)
        x = draw.normal(size=(40, 20)).astype(np.float32)
        y = draw.integers(0, 2, 40)
        return LoadedData(train_x=x, train_y=y, test_x=x[:4], test_y=y[:4])


class Factory:
    def __init__(self, options, facts):
        self.facts = facts

    def parameters(self):
        return 42

    def build(self, seed):
        import torch
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Linear(20, 2)


def trainer():
    from dpspec.training.loop.native import NativeTrainer
    return NativeTrainer()


def constants(spec):
    return Assumption(name="public-constants", status="by-construction", text="the job's")


def render(result, *, internal=False):
    return "fine"


def pool(demand):
    from dpspec.executors.inline import InlinePool
    return InlinePool()


def limit(facts, options):
    return 1000, "no more are wanted"


def records(asked):
    import numpy as np
    from dpspec.contract.attacks import Records
    draw = np.random.default_rng(asked.seed)
    return Records(draw.normal(size=(asked.count, 20)).astype(np.float32), draw.integers(0, 2, asked.count))


def directions(asked):
    import numpy as np
    return np.eye(asked.count, asked.facts.parameters, dtype=np.float32)


class Held:
    def __init__(self, asked):
        self.count, self.parameters, self.block = asked.count, asked.facts.parameters, 1

    def directions(self, indices):
        import torch
        return torch.eye(self.count, self.parameters)[indices]

    def supports(self, indices):
        import torch
        return indices[:, None], torch.ones(len(indices), 1)

    def project(self, vector):
        return vector[:self.count]


def score(observed):
    return observed.after - observed.before
"""

#: Specs that need parts of it, and one that needs none, by the names that files of them have.
COIN = """\
dpspec: 1
name: coin
mechanism: {kind: misdeed, epsilon: 1.0}
data: {kind: misdeed}
claims:
  - {id: held, kind: approx-dp, epsilon: 1.5, delta: 1e-6}
audit: {method: many-run, runs: 2, seed: 3}
"""
TRAINED = """\
dpspec: 1
name: trained
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.3}, steps: 3}
data: {kind: misdeed}
model: {kind: misdeed}
training: {backend: misdeed, learning_rate: 0.5}
claims:
  - {id: any, kind: approx-dp, epsilon: 100.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, count: 30}, seed: 1}
"""
CANARIES = """\
dpspec: 1
name: canaries
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.3}, steps: 3}
data: {kind: misdeed}
model: {kind: misdeed}
training: {learning_rate: 0.5}
threat_model: {access: final-model}
claims:
  - {id: any, kind: approx-dp, epsilon: 100.0, delta: 1e-5}
audit: {method: one-run, canary: {space: input, kind: misdeed, count: 30}, score: misdeed, seed: 1}
"""
STEPS = """\
dpspec: 1
name: steps
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.3}, steps: 3}
data: {kind: misdeed}
model: {kind: misdeed}
training: {learning_rate: 0.5}
claims:
  - {id: any, kind: approx-dp, epsilon: 100.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: misdeed-steps, count: 30}, seed: 1}
"""
ORDINARY = """\
dpspec: 1
name: ordinary
mechanism: {kind: group, noise_multiplier: 4.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 10}
data: {kind: declared, records: 100}
claims:
  - {id: one, kind: approx-dp, epsilon: 8.0, delta: 1e-6}
"""
