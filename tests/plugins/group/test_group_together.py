"""Runs whose batches have the right sizes and rates, and are not drawn as declared: who is drawn together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dpspec
from dpspec.training.loop import samplers

pytestmark = pytest.mark.usefixtures("no_independent_bounds")

SPEC = """\
dpspec: 1
name: together
mechanism: {{kind: group, noise_multiplier: 1.0, clip_norm: 1.0, steps: 60, sampling: {sampling}}}
data: {{kind: synthetic, records: 168, features: 64, classes: 2, seed: 1}}
model: {{kind: linear}}
training: {{learning_rate: 0.5}}
claims: [{{id: one, kind: approx-dp, epsilon: 60.0, delta: 1e-5, over: this}}]
audit: {{method: one-run, canary: {{space: gradient, kind: orthogonal, count: 32}}, seed: 1}}
"""

SAMPLING = {
    "Poisson": "{scheme: poisson, rate: 0.1}",
    "FixedSize": "{scheme: fixed, batch_size: 20}",
    "TruncatedPoisson": "{scheme: truncated-poisson, rate: 0.1, max_batch: 28}",
}

Draw = Callable[[Any, torch.Generator], torch.Tensor]


def honest(drawn: Draw) -> Draw:
    return drawn


def pairs(drawn: Draw) -> Draw:
    """As many as should be, two neighbours at a time."""

    def draw(self: Any, generator: torch.Generator) -> torch.Tensor:
        pair = torch.randperm(self.records // 2, generator=generator)
        return torch.stack([2 * pair, 2 * pair + 1], 1).flatten()[: len(drawn(self, generator))].sort().values

    return draw


def ring(drawn: Draw) -> Draw:
    """The first seven batches again and again."""
    kept: dict[torch.Generator, list[torch.Tensor]] = {}

    def draw(self: Any, generator: torch.Generator) -> torch.Tensor:
        before = kept.setdefault(generator, [])
        before.append(before[-7] if len(before) >= 7 else drawn(self, generator))
        return before[-1]

    return draw


@pytest.mark.parametrize(
    ("scheme", "lie"),
    [("Poisson", honest), ("FixedSize", honest), *((scheme, pairs) for scheme in SAMPLING), ("FixedSize", ring)],
)
def test_records_that_are_drawn_together_deviate(
    scheme: str, lie: Callable[[Draw], Draw], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = getattr(samplers, scheme)
    monkeypatch.setattr(sampler, "draw", lie(sampler.draw))
    spec = tmp_path / "together.yaml"
    spec.write_text(SPEC.format(sampling=SAMPLING[scheme]))
    (audit,) = dpspec.run(spec, store=tmp_path / "store").audits
    assert audit.conformance.status == ("no-deviation-found" if lie is honest else "deviates")
    (alike,) = (check for check in audit.checks if check.note.startswith("batches against others of their size"))
    assert (alike.p_value < 1e-8) == (lie is not honest)
    assert alike.detectable is not None
