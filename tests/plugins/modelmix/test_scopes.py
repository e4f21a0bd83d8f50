"""The scope oracle: no ModelMix bound is exceeded by explicit neighbours in its scope."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import strategies as st
from support import scope_oracle as oracle

from dpspec.contract import Context, Facts, Finding, FrozenMap, LoadedData
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import parts_of, tensors
from dpspec_modelmix import ModelMixAudit
from dpspec_modelmix.training import WrittenOut, make_job, make_row_clip, rules_of

FEATURES = (0.0, 1e-6, 0.5, -1.0, 40.0, -1e4, 1e30, float("nan"))


def findings_of(mechanism: dict[str, Any], records: int, delta: float) -> list[Finding]:
    spec = oracle.spec_of("modelmix", mechanism, [oracle.claim_of("approx-dp", epsilon=1.0, delta=delta)])
    found = oracle.proofs(oracle.remembered_findings_of(ModelMixAudit(), spec, records))
    assert not [f for f in found if f.bound == "lower"]  # no pair attains this bound
    return found


def law_of(mechanism: dict[str, Any], x: list[float], y: list[int], public: int) -> oracle.Law:
    """The distribution of the first step on records ``x``, ``y``, in units of the sum, given ``public`` records."""
    job = oracle.run_of([mechanism], x, y)
    facts = Facts(records=public, features=1, classes=2, shape=(1,), parameters=1)
    rows = LoadedData(train_x=job.x, train_y=job.y, test_x=job.x[:0], test_y=job.y[:0])
    context = SimpleNamespace(
        facts=facts,
        data=rows,
        model=SimpleNamespace(build=lambda seed: oracle.Slope()),
        device="cpu",
        seed=lambda *_: 1,
        progress=lambda *_, **__: None,
        cancelled=lambda: False,
        resumable=lambda index: None,
        loss=None,
    )
    inputs = FrozenMap({"mechanism": mechanism, "training": {"learning_rate": 0.5}})
    made = make_job(inputs, cast(Context, context), 0, "oracle")
    parts, how = parts_of(made), make_row_clip(made, cast(Context, context), 0)
    if how is not None:
        clipped = WrittenOut(FlatModel(made.model), *tensors(made.x, made.y, "cpu"), how, None, seed=1, deviation=0.0)
        parts = dataclasses.replace(parts, contributions=clipped)
    rules = rules_of(made.phases, made.options, made.expected_batch_size, flat_model.Layout.of(made.model), "cpu")
    state = parts.initial.double()
    gap = float(rules.ends(1, state, state).gap) * rules.divisor / rules.rates[0]
    (phase,) = list(parts.schedule)
    return dataclasses.replace(oracle.law_of(parts, phase, parts.initial), width=gap)


@st.composite
def mechanisms(draw: st.DrawFn) -> dict[str, Any]:
    rate = draw(st.sampled_from((0.1, 0.4, 1.0)))
    return {
        "noise_multiplier": draw(st.sampled_from((0.5, 1.0, 3.0))),
        "clip_norm": draw(st.sampled_from((0.1, 1.0, 5.0))),
        "mixing": {"threshold": draw(st.sampled_from((0.0, 0.5, 2.0, 20.0)))},
        "sampling": {"scheme": "full"} if rate == 1.0 else {"scheme": "poisson", "rate": rate},
        "reduction": draw(st.sampled_from(("mean", "mean", "sum"))),
        "steps": 1,
    }


def check(data: st.DataObject) -> None:
    mechanism = data.draw(mechanisms())
    large = mechanism["sampling"]["scheme"] == "full"  # one batch, however many records
    declared = data.draw(st.integers(2, 40 if large else 5))
    delta = data.draw(st.sampled_from((0.1, 1e-3)))
    for finding in findings_of(mechanism, declared, delta):
        # The divisor is the number of records of other datasets, and the declared number for this data.
        fewest = finding.scope.min_records
        size = data.draw(st.integers(max(1, fewest), max(5, fewest)))
        records = declared if finding.scope.data == "this" else size
        others = max(0, records - data.draw(st.integers(0, 1))) if finding.scope.data == "this" else records
        x = data.draw(st.lists(st.sampled_from(FEATURES), min_size=others + 1, max_size=others + 1))
        y = data.draw(st.lists(st.integers(0, 1), min_size=others + 1, max_size=others + 1))
        if data.draw(st.booleans()):
            x = [0.0] * others + [1e4]
        absent, present = (law_of(mechanism, x[:n], y[:n], records) for n in (others, others + 1))
        found = oracle.worst_delta(finding, [absent], [present])
        assert found <= delta * (1.0 + oracle.ROOM) + 1e-9, (finding, x, y)


test_no_pair_of_data_sets_leaks_more = oracle.few(check)
test_ten_thousand_pairs = oracle.many(check)


def test_fewer_records_have_a_narrower_gap() -> None:
    """A bound that mixing amplifies only applies to datasets of at least the declared size."""
    mechanism = {
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "mixing": {"threshold": 2.0},
        "sampling": {"scheme": "full"},
        "steps": 1,
    }
    found = findings_of(mechanism, 40, 1e-3)
    mixed = min((f for f in found if f.scope.min_records == 40), key=lambda f: f.value)
    plain = min((f for f in found if f.scope.data == "all" and f.scope.min_records == 0), key=lambda f: f.value)
    assert mixed.value < plain.value

    def delta(others: int, epsilon: float) -> float:
        absent = law_of(mechanism, [0.0] * others, [0] * others, others)
        present = law_of(mechanism, [0.0] * others + [1e4], [0] * (others + 1), others)
        return oracle.delta(*oracle.composed([(present, absent)]), epsilon)

    assert delta(40, mixed.value) <= 1e-3
    assert delta(1, mixed.value) > 1e-3
    assert delta(1, plain.value) <= 1e-3 * (1.0 + oracle.ROOM)
