"""Replays of custom loops in recordings: which step is the whole, what moved, and abstentions with their reasons."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, checked, run_page
from support.public_mistakes.parts import OwnLoop, norms_of
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from dpspec_recording.observers.sensitivity.replays import OTHERS_MOVED, SUM_MOVED, Replays

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(
    folder: Path, step: Callable[[OwnLoop, Any], None], steps: int = 3, loop: OwnLoop | None = None
) -> CheckedRun:
    loop = OwnLoop() if loop is None else loop
    with loop.recorder(folder) as run:
        for _ in range(steps):
            step(loop, run)
    return checked(folder, epsilon=100.0)


def plain(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())


def loaded(loop: OwnLoop, run: Any) -> None:
    """A loader collates rows of the dataset."""
    drawn = loop.poisson()
    x, y = next(iter(DataLoader(loop.data, batch_sampler=[drawn])))
    values = {name: p.detach() for name, p in loop.model.named_parameters()}
    loop.step(run, drawn, *loop.clipped(list(loop._rows(values, x, y).values())), loop.noise())


def reported_in_arrays(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    norms, total = loop.clipped(loop.rows(drawn))
    loop.step(run, [int(i) for i in drawn], norms.double(), total, loop.noise())


def microbatches(loop: OwnLoop, run: Any) -> None:
    """One backward pass for each record, and factors in tensors."""
    drawn, norms = loop.poisson(), []
    x, y = loop.x[drawn], loop.y[drawn]
    total = [torch.zeros_like(p) for p in loop.parameters]
    for row in range(len(x)):
        gradient = torch.autograd.grad(cross_entropy(loop.model(x[row : row + 1]), y[row : row + 1]), loop.parameters)
        norm = torch.stack([g.norm() for g in gradient]).norm()
        factor = (loop.clip / norm).clamp_max(1.0)
        norms.append(norm * factor)
        for t, g in zip(total, gradient, strict=True):
            t += factor * g
    loop.step(run, drawn, torch.stack(norms), total, loop.noise())


def one_by_one(form: str, *, clears: bool = True) -> Callable[[OwnLoop, Any], None]:
    """Records are picked by numbers of Python. Without ``clears``, gradients of earlier records are in later ones."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn, norms = loop.poisson(), []
        indices = {"tensor": drawn, "list": drawn.tolist(), "array": drawn.numpy(), "reported": drawn.tolist()}[form]
        total = [torch.zeros_like(p) for p in loop.parameters]
        loop.optimizer.zero_grad()
        for index in indices:
            if clears:
                loop.optimizer.zero_grad()
            cross_entropy(loop.model(loop.x[index][None]), loop.y[index][None]).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(loop.parameters, loop.clip).clamp_max(loop.clip))
            for t, p in zip(total, loop.parameters, strict=True):
                t += p.grad
        loop.step(run, indices if form == "reported" else drawn, torch.stack(norms), total, loop.noise())

    return step


def noisy_features(loop: OwnLoop, run: Any) -> None:
    """Augmented features, and a dataset that is picked in two steps."""
    drawn = loop.poisson()
    values = {name: p.detach() for name, p in loop.model.named_parameters()}
    x = loop.x[drawn] + 0.1 * torch.randn(len(drawn), loop.x.shape[1])
    loop.step(run, drawn, *loop.clipped(list(loop._rows(values, x, loop.y[drawn]).values())), loop.noise())


def summed_in_place(loop: OwnLoop, run: Any) -> None:
    """Each step adds up into the same memory, and logs the cosine to the sum of the step before."""
    drawn = loop.poisson()
    norms, clipped = loop.clipped(loop.rows(drawn))
    if not hasattr(loop, "memory"):
        loop.memory = [torch.zeros_like(p) for p in loop.parameters]
    loop.cosine = torch.cosine_similarity(loop.memory[0].flatten(), clipped[0].flatten(), 0)
    for memory, t in zip(loop.memory, clipped, strict=True):
        memory.zero_()
        memory.add_(t)
    loop.step(run, drawn, norms, loop.memory, loop.noise())


def scaled_by(factor: Callable[[Tensor, float], Tensor]) -> Callable[[OwnLoop, Any], None]:
    """Every gradient is scaled, so that all contributions have about one norm, at most the clip norm."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        rows = loop.rows(drawn)
        norms = norms_of(rows)
        factors = factor(norms, loop.clip)
        loop.step(run, drawn, norms * factors, [torch.einsum("i,i...", factors, row) for row in rows], loop.noise())

    return step


def with_a_logged_loss_over_all_records(loop: OwnLoop, run: Any) -> None:
    """The trace holds the loss, whose number changes with the record at all places that hold it."""
    with torch.no_grad():
        assert cross_entropy(loop.model(loop.x), loop.y).item() > 0.0
    plain(loop, run)


#: Normalized, automatic (arXiv 2206.07136) and per-sample adaptive clipping (arXiv 2212.00328).
SCALINGS = [
    scaled_by(lambda norms, clip: clip / norms.clamp_min(1e-12)),
    scaled_by(lambda norms, clip: clip / (norms + 0.01)),
    scaled_by(lambda norms, clip: clip / (norms + 0.1 / (norms + 0.1))),
]


@pytest.mark.ci
@pytest.mark.parametrize("is_tested", [True, False])
def test_a_condition_on_the_batch_is_asked_about(is_tested: bool, tmp_path: Path) -> None:
    """A batch whose loss is large is skipped; none was."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        with torch.no_grad():
            loss = cross_entropy(loop.model(loop.x[drawn]), loop.y[drawn])
        if is_tested and loss > 1e9:
            return
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())

    page = " ".join(run_page(trained(tmp_path / "run", step), 400).split())
    asked = "skipped, repeated or weighed by a condition on its records: 3 traced steps tested such a condition in"
    assert (asked in page) == is_tested


@pytest.mark.family
@pytest.mark.parametrize(
    "step",
    [
        *(plain, loaded, reported_in_arrays, microbatches, noisy_features, summed_in_place),
        *(with_a_logged_loss_over_all_records, *SCALINGS),
        *map(one_by_one, ("tensor", "list", "array", "reported")),
    ],
)
def test_honest_loops_are_replayed_and_proved(step: Callable[[OwnLoop, Any], None], tmp_path: Path) -> None:
    found = trained(tmp_path / "run", step)
    replays = found.run.fact(Replays)
    assert replays is not None
    assert found.status == ("proved", "no-deviation-found")
    # the first step alone does not show what follows from a number of the whole batch
    assert ("reads a number of the batch" in replays.failure) is (step is with_a_logged_loss_over_all_records)
    assert replays.replayed >= 2.0
    assert 1.0 < replays.moved <= 2.0 + 1e-5
    assert (replays.interaction, replays.earlier_sum) == (0.0, 0.0)
    assert 0.5 < replays.longest <= 1.0 + 1e-5


def clipped_by_layer(loop: OwnLoop, run: Any) -> None:
    """Each layer is clipped to its own threshold. The noise has the size for the loop's clip norm."""
    drawn = loop.poisson()
    contributions = []
    for row, threshold in zip(loop.rows(drawn), THRESHOLDS, strict=True):
        factors = (threshold / row.flatten(1).norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)
        contributions.append(factors.reshape(-1, *[1] * (row.dim() - 1)) * row)
    loop.step(run, drawn, norms_of(contributions), [each.sum(0) for each in contributions], loop.noise())


#: Of two linear layers. No gradient of the first bias is as long as 3 at the parameters from which training starts.
THRESHOLDS = (0.1, 3.0, 1.0, 0.5)


@pytest.mark.ci
@pytest.mark.parametrize(("clip", "is_found"), [(max(THRESHOLDS), True), (math.hypot(*THRESHOLDS), False)])
def test_thresholds_of_layers_are_added_also_if_no_record_reaches_them(
    clip: float, is_found: bool, tmp_path: Path
) -> None:
    """The thresholds together are 3.2: records that reach all of them need larger parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    found = trained(tmp_path / "run", clipped_by_layer, loop=OwnLoop(model=model, clip=clip))
    assert found.run.fact(Replays).moved < 2.0
    assert found.run.fact(Replays).longest == pytest.approx(math.hypot(*THRESHOLDS) / clip, rel=0.01)
    assert (found.status == ("proved", "no-deviation-found")) is not is_found
    assert is_found is ("n clip norms long" in found.doubts)


@pytest.mark.ci
@pytest.mark.parametrize("after", [True, False])
def test_a_factor_after_the_clipping_is_found_although_no_batch_has_a_record_with_a_large_one(
    after: bool, tmp_path: Path
) -> None:
    """Weights of 10 for two records that are never drawn, times the loss or times the clipped gradient."""
    loop = OwnLoop()
    weights = torch.ones(len(loop.x))
    weights[:2] = 10.0

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        drawn = drawn[drawn > 1]
        rows = loop.rows(drawn)
        weigh = weights[drawn]
        if not after:
            rows = [torch.einsum("i,i...->i...", weigh, row) for row in rows]
        norms = norms_of(rows)
        factors = (loop.clip / norms.clamp_min(1e-12)).clamp_max(1.0) * (weigh if after else 1.0)
        loop.step(run, drawn, norms * factors, [torch.einsum("i,i...", factors, row) for row in rows], loop.noise())

    found = trained(tmp_path / "run", step, loop=loop)
    longest = found.run.fact(Replays).longest
    assert longest == pytest.approx(10.0, rel=0.01) if after else 0.5 < longest <= 1.0 + 1e-5
    assert found.status[0] == ("open" if after else "proved")


@pytest.mark.ci
def test_a_public_term_of_the_reported_sum_is_open_and_no_deviation(tmp_path: Path) -> None:
    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        norms, total = loop.clipped(loop.rows(drawn))
        loop.state = loop.state or [0.3 * torch.randn_like(t) for t in total]
        loop.step(run, drawn, norms, [t + public for t, public in zip(total, loop.state, strict=True)], loop.noise())

    found = trained(tmp_path / "run", step)
    assert found.status == ("open", "no-deviation-found")
    assert "the sum has a term of public data" in found.doubts


def centered(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    values = {name: p.detach() for name, p in loop.model.named_parameters()}
    x = loop.x[drawn] - loop.x[drawn].mean(0)
    loop.step(run, drawn, *loop.clipped(list(loop._rows(values, x, loop.y[drawn]).values())), loop.noise())


def mixed_up(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    values = {name: p.detach() for name, p in loop.model.named_parameters()}
    x = 0.7 * loop.x[drawn] + 0.3 * loop.x[drawn].flip(0)
    loop.step(run, drawn, *loop.clipped(list(loop._rows(values, x, loop.y[drawn]).values())), loop.noise())


def neighboring(context: Callable[[OwnLoop, Tensor], Tensor]) -> Callable[[OwnLoop, Any], None]:
    """Features are read from all records of the dataset."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        values = {name: p.detach() for name, p in loop.model.named_parameters()}
        x = loop.x[drawn]
        rows = loop._rows(values, x + context(loop, x), loop.y[drawn])
        loop.step(run, drawn, *loop.clipped(list(rows.values())), loop.noise())

    return step


def nearest_in_a_copy(loop: OwnLoop, x: Tensor) -> Tensor:
    loop.state = loop.x.clone() if loop.state is None else loop.state
    return loop.state[torch.cdist(x, loop.state).topk(3, largest=False).indices[:, 1:]].mean(1)


def unclipped(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    rows = loop.rows(drawn)
    norms, _ = loop.clipped(rows)
    loop.step(run, drawn, norms, [row.sum(0) for row in rows], loop.noise())


def scaled_by_the_longest(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    rows = loop.rows(drawn)
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
    factor = (loop.clip / norms.max()).clamp_max(1.0)
    loop.step(run, drawn, norms * factor, [factor * row.sum(0) for row in rows], loop.noise())


def with_momentum(*, in_place: bool) -> Callable[[OwnLoop, Any], None]:
    """The sum contains a fifth of the sum of the step before, so that noise does not cover it once for all."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        norms, clipped = loop.clipped(loop.rows(drawn))
        momentum = getattr(loop, "momentum", [torch.zeros_like(t) for t in clipped])
        pairs = zip(momentum, clipped, strict=True)
        loop.momentum = [m.mul_(0.2).add_(t) if in_place else 0.2 * m + t for m, t in pairs]
        loop.step(run, drawn, norms, loop.momentum, loop.noise())

    return step


@pytest.mark.family
@pytest.mark.parametrize(
    ("step", "test"),
    [
        (centered, OTHERS_MOVED.title),
        (mixed_up, OTHERS_MOVED.title),
        (neighboring(lambda loop, x: (x @ loop.x.T).softmax(1) @ loop.x), OTHERS_MOVED.title),
        (neighboring(nearest_in_a_copy), OTHERS_MOVED.title),
        (unclipped, SUM_MOVED.title),
        (scaled_by_the_longest, OTHERS_MOVED.title),
        (with_momentum(in_place=False), OTHERS_MOVED.title),
        (with_momentum(in_place=True), OTHERS_MOVED.title),
        (one_by_one("list", clears=False), OTHERS_MOVED.title),
        (one_by_one("reported", clears=False), OTHERS_MOVED.title),
    ],
)
def test_faulty_loops_deviate(step: Callable[[OwnLoop, Any], None], test: str, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", step)
    assert found.status == ("open", "deviates")
    assert test in found.rejected


def with_error_feedback(loop: OwnLoop, run: Any) -> None:
    """What clipping cut off is in later sums, itself clipped to the clip norm."""
    drawn = loop.poisson()
    rows = loop.rows(drawn)
    norms, clipped = loop.clipped(rows)
    error = loop.state or [torch.zeros_like(t) for t in clipped]
    factor = (loop.clip / norms_of([e[None] for e in error])[0].clamp_min(1e-12)).clamp_max(1.0)
    total = [t + factor * e for t, e in zip(clipped, error, strict=True)]
    loop.state = [e + row.sum(0) - t for e, row, t in zip(error, rows, total, strict=True)]
    loop.step(run, drawn, norms, total, loop.noise())


def mixed_with_the_batch_before(loop: OwnLoop, run: Any) -> None:
    """The loop picks the records again after its sum, and keeps them."""
    drawn = loop.poisson()
    values = {name: p.detach() for name, p in loop.model.named_parameters()}
    x = loop.x[drawn]
    if loop.state is not None:
        count = min(len(x), len(loop.state))
        x[:count] = 0.7 * x[:count] + 0.3 * loop.state[:count]
    norms, total = loop.clipped(list(loop._rows(values, x, loop.y[drawn]).values()))
    run.sampled(drawn)
    run.clipped(norms)
    run.summed(total)
    noise = loop.noise()
    loop.state = loop.x[drawn]
    for p, t, n in zip(loop.parameters, total, noise, strict=True):
        p.grad = (t + n) / 30
    loop.optimizer.step()
    run.noised(noise)
    run.stepped()


def scaled_by_the_norms_before(loop: OwnLoop, run: Any) -> None:
    """A clamp hides that a mean norm above 1 grows."""
    drawn = loop.poisson()
    rows = loop.rows(drawn)
    norms, clipped = loop.clipped(rows)
    factor = torch.ones(()) if loop.state is None else loop.state.clamp(0.3, 1.0)
    loop.state = 1.5 + norms_of(rows).mean()
    loop.step(run, drawn, factor * norms, [factor * t for t in clipped], loop.noise())


@pytest.mark.ci
@pytest.mark.parametrize("step", [with_error_feedback, mixed_with_the_batch_before, scaled_by_the_norms_before])
def test_values_of_the_batch_before_leave_the_claim_open(step: Callable[[OwnLoop, Any], None], tmp_path: Path) -> None:
    found = trained(tmp_path / "run", step)
    assert found.status[0] == "open"
    assert "used values that the script computed from the batch before" in found.assumption("unmixed-batches").text


def scaled_by_the_noisy_gradient_before(loop: OwnLoop, run: Any) -> None:
    """Noisy gradients cost nothing again: of their length, and of the parameters where the next step computes."""
    drawn = loop.poisson()
    noisy = loop.state or [torch.zeros_like(p) for p in loop.parameters]
    factor = norms_of([n[None] for n in noisy])[0].clamp(0.5, 1.0)
    values = {name: p.detach() - 0.1 * n for (name, p), n in zip(loop.model.named_parameters(), noisy, strict=True)}
    norms, clipped = loop.clipped(list(loop._rows(values, loop.x[drawn], loop.y[drawn]).values()))
    loop.step(run, drawn, factor * norms, [factor * t for t in clipped], loop.noise())
    loop.state = [p.grad.clone() for p in loop.parameters]


@pytest.mark.ci
def test_noisy_values_of_the_step_before_are_proved(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", scaled_by_the_noisy_gradient_before)
    assert found.status == ("proved", "no-deviation-found")
    assert found.run.fact(Replays).origins == {}
    assert found.run.fact(Replays).replayed >= 2.0


def read_in_python(loop: OwnLoop, run: Any) -> None:
    """Labels follow from records; the drawn indices do not."""
    drawn = loop.poisson()
    loop.y[drawn].tolist()
    loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())


def sum_first(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    norms, total = loop.clipped(loop.rows(drawn))
    noise = loop.noise()
    run.summed(total)
    for p, t, n in zip(loop.parameters, total, noise, strict=True):
        p.grad = (t + n) / 30
    loop.optimizer.step()
    run.noised(noise)
    run.sampled(drawn)
    run.clipped(norms)
    run.stepped()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("step", "reason"), [(read_in_python, "in Python, by .tolist()"), (sum_first, "before its records and norms")]
)
def test_abstentions_have_reasons_and_leave_the_claim_open(step, reason, tmp_path):
    found = trained(tmp_path / "run", step)
    assert found.status == ("open", "no-deviation-found")
    assert found.run.fact(Replays).unreplayed == (found.run.fact(Replays).failure,)
    assert reason in found.assumption("not-replayed").text
    assert "no step was replayed to test this" in " ".join(run_page(found, 80).split())


@pytest.mark.ci
def test_replays_change_no_bit_of_a_training(tmp_path: Path) -> None:
    """Also not of a momentum optimizer, whose steps are in the trace, and the modes of torch end with the block."""

    def train(recorded: bool) -> tuple[list[Tensor], Tensor]:
        loop = OwnLoop()
        loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.01)
        if recorded:
            trained(tmp_path / "run", plain, loop=loop)
        else:
            silent = type("Silent", (), {"__getattr__": lambda *_: lambda *_: None})()
            for _ in range(3):
                plain(loop, silent)
        return [p.detach() for p in loop.parameters], torch.get_rng_state()

    (first, state), (second, other) = train(True), train(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(state, other)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_an_exception_in_a_traced_step_ends_the_trace(tmp_path: Path) -> None:
    loop = OwnLoop()
    with pytest.raises(IndexError), loop.recorder(tmp_path / "run"):
        torch.randn(3)[4]
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class Texts(OwnLoop):
    """Texts of 1 to 10 tokens, padded with the trained token 0. norm_of_padding: whether the norm has its gradient."""

    def __init__(self, *, norm_of_padding: bool) -> None:
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Embedding(40, 16), torch.nn.Flatten(), torch.nn.Linear(160, 2))
        with torch.no_grad():
            model[2].weight.mul_(8.0)  # short texts have long gradients of the padding
        super().__init__(model=model)
        lengths = torch.randint(1, 11, (self.records, 1))
        self.x = torch.randint(1, 40, (self.records, 10)) * (torch.arange(10) < lengths)
        self.counted = slice(0 if norm_of_padding else 1, None)

    def clipped(self, rows: Any) -> tuple[Tensor, list[Tensor]]:
        norms = norms_of([rows[0][:, self.counted], *rows[1:]])
        factors = (self.clip / norms.clamp_min(1e-12)).clamp_max(1.0)
        return norms * factors, [torch.einsum("i,i...", factors, row) for row in rows]


@pytest.mark.ci
@pytest.mark.parametrize("norm_of_padding", [True, False])
def test_a_norm_without_the_padding_is_found(norm_of_padding: bool, tmp_path: Path) -> None:
    """Tokens cannot be scaled: batches of equal records show the longest contributions at larger parameters."""
    found = trained(tmp_path / "run", plain, loop=Texts(norm_of_padding=norm_of_padding))
    replays = found.run.fact(Replays)
    assert replays.replayed >= 2.0
    assert (found.status == ("proved", "no-deviation-found")) is norm_of_padding
    assert (replays.longest > 1.04) is not norm_of_padding
