"""Maps of the noisy gradient before or in the update: those of nothing else pass, others are asked, leaks deviate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, checked
from support.opacus_training import Training, recorded
from support.public_mistakes.parts import OwnLoop
from torch import Tensor
from torch.nn import functional

from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradients
from dpspec_recording.step_replay import trace as trace_module
from dpspec_recording.step_replay.gradient_map import GradientMap

pytestmark = pytest.mark.filterwarnings("ignore")

#: Changes the gradients of a training in place: of the training, its batch, and a dictionary that it keeps.
Change = Callable[[Any, Any, dict[str, Any]], None]


def gradients(training: Any) -> list[Tensor]:
    parameters = training.private.params if isinstance(training, Training) else training.parameters
    return [p.grad for p in parameters]


def nothing(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    pass


def factor_of_each_layer(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for number, gradient in enumerate(gradients(training)):
        gradient.mul_(0.5 + number)


def smoothed_along_an_axis(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for gradient in gradients(training):
        if gradient.dim() > 1:
            gradient.copy_((gradient + gradient.roll(1, 1) + gradient.roll(-1, 1)) / 3.0)


def decayed_and_cut(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """Weight decay by hand, and a nonlinear function of the noisy gradient."""
    parameters = training.private.params if isinstance(training, Training) else training.parameters
    for p in parameters:
        p.grad = (p.grad + 0.01 * p.detach()).clamp(-0.02, 0.02)


def masked(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for number, gradient in enumerate(gradients(training)):
        gradient.mul_(kept["masks"][number])


def whitened(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    gradient = gradients(training)[0]
    gradient.copy_(gradient @ kept["matrix"])


def with_a_public_gradient(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    public, model = kept["public"], training.model if isinstance(training, OwnLoop) else training.model._module
    parameters = training.private.params if isinstance(training, Training) else training.parameters
    if isinstance(training, Training):
        training.model.disable_hooks()
    loss = functional.cross_entropy(model(public[torch.randint(40, (8,))]), torch.ones(8, dtype=torch.long))
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad.add_(gradient)
    if isinstance(training, Training):
        training.model.enable_hooks()


def momentum_of_noisy_gradients(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for number, gradient in enumerate(gradients(training)):
        gradient.add_(kept.get(number, torch.zeros_like(gradient)), alpha=0.9)
        kept[number] = gradient.clone()


def factor_of_each_step(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    kept["steps"] = kept.get("steps", 0) + 1
    gradients(training)[0].mul_(1.0 / kept["steps"])


def random_mask(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """A mask that a generator makes at the first step: the operations of this step make it again."""
    for number, gradient in enumerate(gradients(training)):
        gradient.mul_(kept.setdefault(number, (torch.rand_like(gradient) < 0.5).float()))


def constants(training: Any) -> dict[str, Any]:
    """What scripts make before the recording."""
    parameters = training.private.params if isinstance(training, Training) else training.parameters
    features = parameters[0].shape[1]
    masks = [(torch.rand_like(p) < 0.5).float() for p in parameters]
    masks[0][0, 0] = 1.0
    return {"masks": masks, "matrix": torch.randn(features, features), "public": torch.randn(40, features)}


def factor_at_some_steps(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """As a script that skips a batch with a large loss."""
    kept["steps"] = kept.get("steps", 0) + 1
    if kept["steps"] in (1, 2, 5):
        gradients(training)[0].mul_(0.1)


def halved(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for gradient in gradients(training):
        gradient.mul_(0.5)


def clipped_to_a_norm(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """A factor that moves with the noisy gradient, and is 1 for short ones."""
    norm = torch.stack([gradient.norm() for gradient in gradients(training)]).norm()
    for gradient in gradients(training):
        gradient.mul_((0.25 / norm).clamp(max=1.0))


def scaled_by_a_label(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """One constant at all steps, which the script reads from a record."""
    factor = 0.5 + training.loader.dataset.tensors[1][0].item()
    for gradient in gradients(training):
        gradient.mul_(factor + 0.25)


def scaled_by_a_copied_label(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """No operation of torch reads the label."""
    factor = 0.5 if training.loader.dataset.tensors[1].numpy()[0] else 2.0
    for gradient in gradients(training):
        gradient.mul_(factor)


def scaled_by_a_count(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """The script reads the shape of a result, which depends on the values. No record of these has such a feature."""
    factor = 2.0 if len((batch[0].abs() > 50.0).nonzero()) else 0.5
    for gradient in gradients(training):
        gradient.mul_(factor)


def scaled_by_a_selection(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    factor = 2.0 if len(batch[0][batch[0][:, 0] > 50.0]) else 0.5
    for gradient in gradients(training):
        gradient.mul_(factor)


def scaled_by_a_tensor(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for gradient in gradients(training):
        gradient.mul_(kept.setdefault("factor", torch.tensor(0.5)))


def scaled_by_the_batch_size(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for gradient in gradients(training):
        gradient.mul_(10.0 / max(1, len(batch[0])))


def scaled_by_the_loss(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    with torch.no_grad():
        loss = functional.cross_entropy(training.model._module(batch[0]), batch[1])
    for gradient in gradients(training):
        gradient.mul_(loss)


def scaled_by_the_sum(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    factor = 1.0 / float(torch.stack([p.summed_grad.norm() for p in training.private.params]).norm())
    for gradient in gradients(training):
        gradient.mul_(factor)


def divided_by_the_mean_size(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for gradient in gradients(training):
        gradient.div_(30.0)


def halved_at_some_steps(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    kept["steps"] = kept.get("steps", 0) + 1
    if kept["steps"] % 3:
        halved(training, batch, kept)


def decayed_by_the_step(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    kept["steps"] = kept.get("steps", 0) + 1
    for gradient in gradients(training):
        gradient.mul_(0.99 ** kept["steps"])


def decayed_beside_a_log_of_the_noisy_norm(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    kept["norm"] = float(torch.stack([gradient.norm() for gradient in gradients(training)]).norm())
    decayed_by_the_step(training, batch, kept)


def scaled_by_the_number_of_the_loss(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    with torch.no_grad():
        loss = functional.cross_entropy(training.model._module(batch[0]), batch[1]).item()
    for gradient in gradients(training):
        gradient.mul_(loss)


def clipped_to_a_norm_that_few_reach(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    torch.nn.utils.clip_grad_norm_(training.private.params, 0.6)


PURE: list[Change] = [
    *(nothing, factor_of_each_layer, smoothed_along_an_axis, random_mask, decayed_and_cut),
    *(halved, clipped_to_a_norm),
]
ASKED: list[Change] = [
    *(masked, whitened, with_a_public_gradient, momentum_of_noisy_gradients),
    *(factor_of_each_step, factor_at_some_steps),
]


def raw_gradient_of_the_batch(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """Clipped, and without noise."""
    x, y = batch
    training.model.disable_hooks()
    loss = functional.cross_entropy(training.model._module(x), y)
    found = torch.autograd.grad(loss, training.private.params)
    training.model.enable_hooks()
    norm = torch.stack([g.norm() for g in found]).norm()
    for gradient, g in zip(gradients(training), found, strict=True):
        gradient.add_(g * (0.01 / norm).clamp(max=1.0))


def clipped_sum_itself(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for p in training.private.params:
        p.grad = p.summed_grad / 30.0


def mask_of_the_batch(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    gradients(training)[0].mul_((batch[0].mean(0) > 0.0).float())


def sum_of_the_step_before(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    for number, p in enumerate(training.private.params):
        if number in kept:
            p.grad.add_(kept[number], alpha=0.1)
        kept[number] = p.summed_grad.clone()


def factor_of_the_loss(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    """A number of Python, which the script reads from a tensor that other records change."""
    with torch.no_grad():
        loss = functional.cross_entropy(training.model._module(batch[0]), batch[1]).item()
    gradients(training)[0].mul_(loss)


LEAKS: list[Change] = [raw_gradient_of_the_batch, clipped_sum_itself, mask_of_the_batch, sum_of_the_step_before]


def few(change: Change) -> Any:
    """A parameter that the default suite tests only for some changes."""
    marks = [] if change in (smoothed_along_an_axis, masked, clipped_sum_itself) else [pytest.mark.family]
    return pytest.param(change, marks=marks, id=change.__name__)


def before_the_update(change: Change) -> Callable[[Training], None]:
    """Return a script that changes the gradients between the noise and the step of the inner optimizer."""

    def script(training: Training) -> None:
        kept = constants(training)
        for x, y in training.loader:
            training.private.zero_grad()
            training.criterion(training.model(x), y).backward()
            if training.private.pre_step():
                change(training, (x, y), kept)
                training.private.original_optimizer.step()

    return script


def in_the_update(change: Change) -> Callable[[Training], None]:
    """Return a script whose inner optimizer changes its gradients, by a hook that runs after the recorder's."""

    def script(training: Training) -> None:
        kept = constants(training)
        batches: list[Any] = []
        hook = training.private.original_optimizer.register_step_pre_hook(
            lambda *_: change(training, batches[-1], kept)
        )
        for x, y in training.loader:
            batches.append((x, y))
            training.step(x, y)
        hook.remove()

    return script


def status(found: CheckedRun) -> str:
    """``deviates``, ``asked`` about the map, or ``passes``."""
    if found.conformance.status == "deviates":
        return "deviates" if "update" in {c.assumption for c in found.checks if c.p_value == 0.0} else "otherwise"
    return {"unchecked": "asked"}.get(
        next((a.status for a in found.assumptions if a.name == "gradient-map"), ""), "passes"
    )


#: Factors of all gradients, which are no multiples of the declared divisor. Numbers of Python that change are asked
#: unless they follow the batch sizes, or the script reads them from a record of the batch.
ASKED_FACTORS: list[Change] = [
    *(scaled_by_a_tensor, halved_at_some_steps, decayed_by_the_step, decayed_beside_a_log_of_the_noisy_norm),
]
LEAKING_FACTORS: list[Change] = [
    *(scaled_by_a_copied_label, scaled_by_a_count, scaled_by_a_selection),
    *(scaled_by_the_batch_size, scaled_by_the_loss, scaled_by_the_number_of_the_loss, scaled_by_the_sum),
]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        *(pytest.param(change, "asked", marks=pytest.mark.ci) for change in ASKED_FACTORS),
        *(pytest.param(change, "deviates", marks=pytest.mark.ci) for change in LEAKING_FACTORS[:-1]),
        (LEAKING_FACTORS[-1], "deviates"),
    ],
)
def test_one_factor_of_all_gradients(change: Change, expected: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", before_the_update(change))
    assert not found.fine
    if expected == "deviates":
        assert any(check.test.startswith("divisor of the gradient") and check.p_value == 0.0 for check in found.checks)
    else:
        assert (found.conformance.status, status(found)) == ("no-deviation-found", "asked")


@pytest.mark.ci
def test_a_factor_that_the_script_reads_from_a_record_is_not_proved(tmp_path: Path) -> None:
    """It deviates if this record is in the batch of a replayed step."""
    assert not recorded(tmp_path / "run", before_the_update(scaled_by_a_label)).fine


@pytest.mark.ci
@pytest.mark.parametrize("place", ["before", "in"])
def test_a_clipping_of_the_noisy_gradient_that_is_rarely_active_passes(place: str, tmp_path: Path) -> None:
    script = {"before": before_the_update, "in": in_the_update}[place](clipped_to_a_norm_that_few_reach)
    found = recorded(tmp_path / "run", script)
    assert (status(found), found.fine) == ("passes", True)
    assert found.run.fact(NoisyGradients).scaled > 0 or place == "in"


@pytest.mark.ci
def test_a_first_gradient_that_becomes_momentum_is_no_map(tmp_path: Path) -> None:
    """SGD reads it by a copy at the first step, and leaves it."""
    found = recorded(tmp_path / "run", optimizer="momentum", epochs=1)
    assert found.fine
    assert "gradient-map" not in {assumption.name for assumption in found.assumptions}


@pytest.mark.ci
def test_a_hook_from_before_the_recording_passes_with_adaptive_clipping(tmp_path: Path) -> None:
    """Opacus reads its noisy count between noise and update."""
    training = Training(clipping="adaptive").build()

    def halve(*_: Any) -> None:
        halved(training, None, {})

    training.private.original_optimizer.register_step_pre_hook(halve)
    with training.recorder(tmp_path / "run"):
        training.train()
    found = checked(tmp_path / "run", epsilon=100.0)
    assert (status(found), found.verdict) == ("passes", "proved")


@pytest.mark.ci
def test_a_public_divisor_of_sums_may_be_computed_from_the_records(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", before_the_update(divided_by_the_mean_size), reduction="sum")
    assert "the divisor 30 may be" in found.assumption("data-independent-hyperparameters").text


@pytest.mark.ci
@pytest.mark.parametrize("change", [few(c) for c in (*PURE, *ASKED, *LEAKS, factor_of_the_loss)])
def test_maps_before_the_update(change: Change, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", before_the_update(change))
    expected = "passes" if change in PURE else "deviates" if change in (*LEAKS, factor_of_the_loss) else "asked"
    assert status(found) == expected
    assert found.fine is (change in PURE)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=[] if change is clipped_to_a_norm else [pytest.mark.family])
        for change in (*PURE[:3], *PURE[-2:], decayed_and_cut, masked, with_a_public_gradient, *LEAKS)
    ],
)
def test_maps_in_the_update(change: Change, tmp_path: Path) -> None:
    """Hooks of torch's optimizer: the update is recomputed from the gradients that they left.

    The recorder compares them after the update, which has moved the parameters that a map reads.
    """
    found = recorded(tmp_path / "run", in_the_update(change))
    asked = change in (decayed_and_cut, masked, with_a_public_gradient)
    expected = "asked" if asked else "passes" if change in PURE else "deviates"
    assert status(found) == expected
    assert found.fine is (expected == "passes")
    assert not any("could not be recomputed" in one.text for one in found.assumptions)


@pytest.mark.ci
def test_a_hook_that_no_comparison_covers_is_named(tmp_path: Path) -> None:
    """Nesterov's momentum for several tensors adds to gradients, so that changes by a hook are not compared."""

    def halve_gradients(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad.mul_(0.5)

    def script(training: Training) -> None:
        training.private.original_optimizer.register_step_pre_hook(halve_gradients)
        training.train()

    def prepare(training: Training) -> None:
        for group in training.private.original_optimizer.param_groups:
            group.update(nesterov=True, momentum=0.9, foreach=True)

    found = recorded(tmp_path / "run", script, prepare=prepare, epochs=1)
    assert not found.fine
    assert "which calls the optimizer's hooks halve_gradients" in found.assumption("update-rule").text


def own_loop(change: Change, *, report_first: bool, leak: str = "") -> Callable[[Path], CheckedRun]:
    """Return a training by a custom loop that changes its noisy gradients.

    report_first: whether it reports sum and noise before the update. leak: what the loop adds without noise.
    """

    def trained(folder: Path) -> CheckedRun:
        loop = OwnLoop()
        kept = constants(loop)
        with loop.recorder(folder) as run:
            for _ in range(6):
                drawn = loop.poisson()
                norms, total = loop.clipped(loop.rows(drawn))
                noise = loop.noise()
                if report_first:
                    reported(run, drawn, norms, total, noise)
                for p, t, n in zip(loop.parameters, total, noise, strict=True):
                    p.grad = (t + n) / 30.0
                    p.grad += 0.01 * t if leak == "sum" else 0.0
                if leak == "a tiny coordinate":
                    loop.parameters[0].grad[0, 0] = 1e-6 * total[0][0, 0]
                if leak == "noise of a layer":
                    loop.parameters[1].grad = total[1] / 30.0
                change(loop, (loop.x[drawn], loop.y[drawn]), kept)
                loop.optimizer.step()
                if not report_first:
                    reported(run, drawn, norms, total, noise)
                run.stepped()
        return checked(folder, epsilon=100.0)

    return trained


def test_a_map_with_many_reads_in_python_is_found_once() -> None:
    """The optimizers of torch read the step number of each parameter; the search of each read had all earlier ones."""
    total, mask, trace = torch.randn(4), torch.ones(4), trace_module.StepTrace()
    trace.ignores_reads = True
    trace.start()
    gradient = total * mask
    for _ in range(60):
        if gradient.norm().item() > 1e9:
            gradient = gradient * 0.5
    trace.stop()
    found = GradientMap(trace, [total], [gradient], end=len(trace.operations), parameters=())
    assert [*map(id, found.inputs)] == [id(mask)]


def test_the_copy_of_an_update_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of a large model overwrites all parameters, which are not copied."""
    monkeypatch.setattr(trace_module, "MOST_BYTES", 4000)
    monkeypatch.setattr(trace_module, "free_bytes", lambda device: 8 * 4003)
    for limits_copies in (False, True):
        value, trace = torch.zeros(1001), trace_module.StepTrace()
        trace.limits_copies = limits_copies
        trace.start()
        value.add_(1.0)
        trace.stop()
        assert float(value.sum()) == 1001.0
        assert ("overwrites more than" in trace.failure) is limits_copies
        assert bool(trace.before) is not limits_copies


def reported(run: Any, drawn: Tensor, norms: Tensor, total: list[Tensor], noise: list[Tensor]) -> None:
    run.sampled(drawn)
    run.clipped(norms)
    run.summed(total)
    run.noised(noise)


def features_of_the_batch(training: Any, batch: Any, kept: dict[str, Any]) -> None:
    gradients(training)[0].mul_((batch[0].mean(0) > 0.0).float())


#: What a custom loop leaves without noise.
LEFT = ("sum", "noise of a layer", "a tiny coordinate")


@pytest.mark.ci
@pytest.mark.parametrize("report_first", [True, False])
@pytest.mark.parametrize(
    ("change", "leak", "expected"),
    [
        *((change, "", "passes") for change in PURE if change is not decayed_and_cut),
        *((change, "", "asked") for change in (decayed_and_cut, *ASKED)),
        *((change, leak, "deviates") for change in (PURE[1], ASKED[0]) for leak in LEFT),
        (features_of_the_batch, "", "deviates"),
    ],
)
def test_maps_of_a_custom_loop(change: Change, leak: str, expected: str, report_first: bool, tmp_path: Path) -> None:
    found = own_loop(change, report_first=report_first, leak=leak)(tmp_path / "run")
    assert status(found) == expected
    if change is clipped_to_a_norm:  # a loop declares no divisor, so that a factor that varies is a divisor that does
        assert not found.fine
        assert "the divisor of gradients is from" in found.assumption("data-independent-hyperparameters").text
    else:
        assert found.fine is (expected == "passes")


def loop_of_gradients(folder: Path, gradient: Callable[[int, Tensor, Tensor, Tensor], Tensor]) -> Path:
    """Record a custom loop. gradient: of a parameter, from its number, the drawn records, its clipped sum and noise."""
    loop = OwnLoop(sigma=1.0, rate=0.3)
    with loop.recorder(folder) as run:
        for _ in range(12):
            drawn = loop.poisson()
            norms, total = loop.clipped(loop.rows(drawn))
            noise = loop.noise()
            for number, (p, t, n) in enumerate(zip(loop.parameters, total, noise, strict=True)):
                p.grad = gradient(number, drawn, t, n)
            loop.optimizer.step()
            reported(run, drawn, norms, total, noise)
            run.stepped()
    return folder


@pytest.mark.ci
@pytest.mark.parametrize(("least", "most"), [(0.0, 6.3), (0.0, 0.2), (20.0, 1e9)])
def test_a_layer_without_noise_at_some_lengths_of_its_sum_is_not_proved(
    least: float, most: float, tmp_path: Path
) -> None:
    """A map that tests the exact sum: no step of this training has one below 0.2 or above 20."""

    def gradient(number: int, drawn: Tensor, total: Tensor, noise: Tensor) -> Tensor:
        noisy = (total + noise) / 90.0 * (0.5 + number)
        is_met = (total.norm() >= least) & (total.norm() < most)
        return torch.where(is_met, total / 90.0, noisy) if number == 0 else noisy

    assert not checked(loop_of_gradients(tmp_path / "run", gradient), epsilon=20.0).fine


@pytest.mark.ci
@pytest.mark.parametrize("factor", [1.0, 1.0005])
def test_a_small_factor_of_the_steps_of_two_records_is_asked(factor: float, tmp_path: Path) -> None:
    """The noise of 92,002 coordinates has a length that shows a factor of 1.008: truth above 50, certified 4.7."""

    def gradient(number: int, drawn: Tensor, total: Tensor, noise: Tensor) -> Tensor:
        return (total + noise) / 90.0 * (factor if bool((drawn < 2).any()) else 1.0)

    found = checked(loop_of_gradients(tmp_path / "run", gradient), epsilon=50.0)
    asks = "the divisor of gradients is from" in found.assumption("data-independent-hyperparameters").text
    assert found.fine is not asks
    assert asks is (factor != 1.0)


@pytest.mark.ci
def test_a_map_of_one_part_is_asked(tmp_path: Path) -> None:
    """A record may have chosen the part, as in one recording the steps."""
    training = Training(epochs=1).build()

    def reduce_layer(*_: Any) -> None:
        gradients(training)[0].mul_(0.25)

    hook = training.private.original_optimizer.register_step_pre_hook(reduce_layer)
    with training.recorder(tmp_path / "run", resume=True):
        training.train()
    hook.remove()
    with training.recorder(tmp_path / "run", resume=True):
        training.train()
    assert status(checked(tmp_path / "run", epsilon=100.0)) == "asked"
