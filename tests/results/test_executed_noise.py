"""The noise of trials in dpspec's own loop, from the document and the trials of a result."""

import dataclasses
from typing import Any

import pytest
from support import results as factory

from dpspec.accounting.float_noise import revealed_by_float32
from dpspec.contract import Facts, FrozenMap
from dpspec.contract.results import AuditResult
from dpspec.reporters import disclosures, limits
from dpspec.results.executed_noise import executed_noise

MECHANISM = {
    "kind": "group",
    "noise_multiplier": 0.5,
    "clip_norm": 1.0,
    "sampling": {"scheme": "poisson", "rate": 0.1},
    "steps": 50,
}


def audit(device: str = "cpu", backend: str = "native", **mechanism: Any) -> AuditResult:
    base = factory.audit()
    recorded = {"device": device, "by": {"backend": {"distribution": "dpspec", "version": "0.3.0"}}}
    (trial,) = base.trials
    return dataclasses.replace(
        base,
        document=FrozenMap(
            {"mechanism": {**MECHANISM, **mechanism}, "training": {"backend": backend}, "model": {"kind": "mlp"}}
        ),
        facts=Facts(records=100, features=4, classes=2, parameters=100),
        trials=(dataclasses.replace(trial, recorded=FrozenMap(recorded)),),
    )


def test_float32_noise_on_a_cpu_reveals_a_delta() -> None:
    found = executed_noise(audit())
    assert found is not None
    assert found.revealed == pytest.approx(revealed_by_float32(0.5, 96, rate=0.1, steps=50).delta, rel=1e-9)
    phases = [{"steps": 20}, {"steps": 30, "noise_multiplier": 4.0}]
    less = executed_noise(audit(phases=phases))
    assert less is not None
    of_phases = [revealed_by_float32(sigma, 96, rate=0.1, steps=t).delta for sigma, t in ((0.5, 20), (4.0, 30))]
    assert less.revealed == pytest.approx(1.0 - (1.0 - of_phases[0]) * (1.0 - of_phases[1]), rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "generator"),
    [
        ({"device": "cuda:0"}, "torch's generator on cuda:0"),
        ({"sampling": {"scheme": "shuffled", "batch_size": 5}}, "torch's CPU generator"),
        ({"clipping": {"scheme": "per-layer"}}, "torch's CPU generator"),
        ({"noise": "discrete-gaussian"}, "torch's CPU generator"),
    ],
)
def test_nothing_is_stated_outside_the_theorem(changes: dict[str, Any], generator: str) -> None:
    found = executed_noise(audit(**changes))
    assert found is not None
    assert (found.revealed, found.generator) == (0.0, generator)
    assert found.integers == ("noise" in changes)


def test_other_loops_and_mechanisms_are_unknown() -> None:
    assert executed_noise(audit(backend="opacus")) is None
    assert executed_noise(audit(kind="matrix")) is None
    assert executed_noise(dataclasses.replace(audit(), trials=())) is None


def test_lines_and_limits() -> None:
    def line(of: AuditResult) -> disclosures.Line:
        lines = disclosures.lines(factory.result(of), of)
        return next(found for found in lines if found.key == "floating-point")

    def stated(of: AuditResult) -> str:
        return " ".join(limits.limits(factory.result(of)))

    plain, integers, elsewhere = audit(), audit(noise="discrete-gaussian"), audit(kind="matrix")
    assert line(plain).coverage == "declared"
    assert "sums and noise were in float32; drawn by torch's CPU generator with a seed that follows" in line(plain).text
    assert "no finite epsilon holds below delta 0.000" in line(plain).text
    assert "no finite epsilon holds" in stated(plain)
    assert "integers, drawn and added exactly" in line(integers).text
    assert "real numbers" not in line(integers).text
    assert "no finite epsilon" not in stated(integers) + stated(elsewhere)
    assert "real numbers" in line(elsewhere).text
