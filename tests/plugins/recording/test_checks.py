"""Scripts that tamper with sums or gradients, or train something without noise, and the advice of rejected checks."""

import ast
import copy
import importlib
import io
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from support.checked_runs import Question, check_run
from support.opacus_training import Training, physical_batches, recorded
from support.plain_loop import plain_loop
from torch import nn
from torch.nn import functional

from dpspec.contract import Check
from dpspec.stats.conformance.run_checks import FURTHER_NORMS
from dpspec_recording import judge, observers
from dpspec_recording.judge import canaries
from dpspec_recording.judge.advice import advice_on
from dpspec_recording.judge.reported_checks import RATE, SCALE
from dpspec_recording.observers.gradient_parameters.passes import OTHER_PARAMETERS
from dpspec_recording.observers.noise.noise import INDEPENDENCE, SHAPE, SIZE, WITHOUT_NOISE
from dpspec_recording.observers.sampling.batches import FILLED, UNOBSERVED
from dpspec_recording.observers.sensitivity.replays import SUM_MOVED
from dpspec_recording.observers.update_rule.noisy_gradients import MEDDLED
from dpspec_recording.observers.update_rule.parameters import LOADED, RETURNED
from dpspec_recording.outcomes.conditions import TESTED
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue

Script = Callable[[Training], None]


def scaled_between_virtual_steps(training: Training) -> None:
    def scale(training: Training) -> None:
        for p in training.private.params:
            if p.summed_grad is not None:
                p.summed_grad *= 1.2

    training.train(each=scale)


def primed_sum(training: Training) -> None:
    """A raw gradient is in the sum before the first clipped one."""
    for x, y in training.loader:
        training.private.zero_grad()
        training.criterion(training.model(x), y).backward()
        for p in training.private.params:
            p.summed_grad = 3.0 * p.grad.clone()
        training.private.step()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "made"),
    [
        (scaled_between_virtual_steps, {"physical": 8}),
        (scaled_between_virtual_steps, {"physical": 8, "clipping": "ghost"}),
        (scaled_between_virtual_steps, {"physical": 8, "clipping": "per_layer"}),
        (primed_sum, {}),
    ],
)
def test_a_changed_sum_deviates(script: Script, made: dict[str, Any], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script, **made)
    assert found.status == ("open", "deviates")
    assert any(c.p_value == 0.0 and c.assumption == "clipping" and "summed gradient" in c.test for c in found.checks)


def scaling(self: Any) -> None:
    unscaled(self)
    for p in self.params:
        p.summed_grad *= 1.5


def scaling_by_the_longest(self: Any) -> None:
    """Each contribution is below the clip norm, and the longest gradient of the batch decides the factor."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.grad_samples]).norm(dim=0)
    factor = (self.max_grad_norm / (norms.max() + 1e-6)).clamp(max=1.0).expand(len(norms))
    for p in self.params:
        p.summed_grad = torch.einsum("i,i...", factor, p.grad_sample)
        p.grad_sample._processed = True


unscaled = DPOptimizer.clip_and_accumulate


@pytest.mark.ci
@pytest.mark.parametrize("clip", [scaling, scaling_by_the_longest])
def test_another_clipping_moves_the_sum_too_far(clip, tmp_path, monkeypatch):
    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", clip)
    assert SUM_MOVED.title in recorded(tmp_path / "run", clip=0.1).rejected


def sharpness_aware(training: Training) -> None:
    """Gradients are computed at parameters that were moved along the raw gradient, and back before the step."""
    parameters = training.private.params
    for x, y in training.loader:
        if len(x) == 0:
            continue
        training.model.disable_hooks()
        grads = torch.autograd.grad(training.criterion(training.model(x), y), parameters)
        training.model.enable_hooks()
        training.private.zero_grad()
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.add_(g)
        training.criterion(training.model(x), y).backward()
        with torch.no_grad():
            for p, q in zip(parameters, kept, strict=True):
                p.copy_(q)
        training.private.step()


def moved_once_in_a_later_pass(training: Training) -> None:
    """One physical batch that is not the first of its step is computed at other parameters."""
    weight, passes = training.private.params[0], 0
    with physical_batches(training.loader, training.private, 7) as batches:
        for x, y in batches:
            passes += training.private._is_last_step_skipped
            kept = weight.data.clone()
            weight.data.add_(float(passes == 5))
            training.criterion(training.model(x), y).backward()
            weight.data.copy_(kept)
            training.private.step()
            training.private.zero_grad()
    assert passes > 5


@pytest.mark.ci
@pytest.mark.parametrize("script", [sharpness_aware, moved_once_in_a_later_pass])
def test_gradients_at_other_parameters_deviate(script: Script, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script)
    assert found.status == ("open", "deviates")
    assert any(c.p_value == 0.0 and c.assumption == "gradient-parameters" for c in found.checks)


def averaged(training: Training) -> None:
    """The average of the parameters is put into the model for an evaluation, and taken out again."""
    average = [p.detach().clone() for p in training.private.params]

    def evaluate(training: Training) -> None:
        parameters = training.private.params
        with torch.no_grad():
            for p, a in zip(parameters, average, strict=True):
                a.lerp_(p, 0.1)
            kept = [p.detach().clone() for p in parameters]
            for p, a in zip(parameters, average, strict=True):
                p.copy_(a)
            training.model.eval()
            training.model(torch.randn(5, 6))
            training.model.train()
            for p, q in zip(parameters, kept, strict=True):
                p.copy_(q)

    training.train(each=evaluate)


def saving(training: Training) -> None:
    training.train()
    torch.save(training.model._module, io.BytesIO())
    copy.deepcopy(training.model._module).eval()(torch.randn(3, 6))


@pytest.mark.ci
@pytest.mark.parametrize("script", [averaged, saving])
def test_evaluations_and_copies_conform(script: Script, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", script).conformance.status == "no-deviation-found"


@pytest.mark.ci
@pytest.mark.parametrize("added", [0.0, 0.05])
@pytest.mark.parametrize("made", [{}, {"clipping": "ghost"}, {"reduction": "sum", "noise": 4.0}])
def test_a_step_in_pieces_adds_nothing_to_the_noisy_sum(made: dict[str, Any], added: float, tmp_path: Path) -> None:
    """The script calls the methods of a step itself; for a sum it omits the division, which changes nothing."""

    def script(training: Training) -> None:
        optimizer = training.private
        for x, y in training.loader:
            optimizer.zero_grad()
            training.criterion(training.model(x), y).backward()
            (optimizer.accumulate if "clipping" in made else optimizer.clip_and_accumulate)()
            optimizer.add_noise()
            for p in optimizer.params:
                p.grad.data.add_(added * p.summed_grad.view_as(p))
            if "reduction" not in made:
                optimizer.scale_grad()
            optimizer.step_hook(optimizer)
            optimizer.original_optimizer.step()

    found = recorded(tmp_path / "run", script, **made)
    assert (found.fine, found.rejected) == ((True, set()) if not added else (False, {MEDDLED.title}))


# Trainings that train, or keep, something without noise.

LARGE = {"epsilon": 1e4}


def meddled(training: Training) -> None:
    """Gradients get something more after the noise."""

    def more(optimizer: Any) -> None:
        for p in optimizer.params:
            p.grad.add_(0.01 * p.summed_grad.view_as(p))

    training.private.attach_step_hook(more)
    training.train()


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return models with a frozen first weight, and counts."""
    made = nn.Sequential

    def model_with_frozen_layer(*layers: nn.Module) -> nn.Sequential:
        model = made(*layers)
        model.register_buffer("counts", torch.zeros(2, dtype=torch.long))
        model[0].weight.requires_grad_(False)
        return model

    monkeypatch.setattr("support.opacus_training.nn.Sequential", model_with_frozen_layer)


def trained_and(change: Callable[[Any], Any]) -> Script:
    def script(training: Training) -> None:
        training.train()
        with torch.no_grad():
            change(training.model._module)

    return script


@pytest.mark.family
@pytest.mark.parametrize(
    "script",
    [
        Training.train,
        meddled,
        trained_and(lambda model: model[0].weight.add_(0.1)),  # frozen, and trained by plain descent
        trained_and(lambda model: model.counts.add_(torch.tensor([17, 283]))),
        trained_and(lambda model: model.register_buffer("memory", torch.randn(300, 6))),
        trained_and(lambda model: model.__setitem__(2, nn.Linear(16, 2))),
    ],
)
def test_what_gets_no_noise_deviates(tmp_path: Path, frozen: None, script: Script) -> None:
    found = recorded(tmp_path / "run", script, asked=LARGE)
    assert found.fine is (script is Training.train)
    if not found.fine:
        assert found.status == ("open", "deviates")
        assert {c.name for c in found.channels if c.status == "violated"} & {"update-rule", "model-state"}


def plain_backward(training: Training) -> None:
    for x, y in training.loader:
        training.private.zero_grad()
        functional.cross_entropy(training.model(x), y).backward()
        training.private.step()


def late_hook(training: Training) -> None:
    """A hook of the inner optimizer, registered after the recorder's, adds the clipped sum without noise."""

    def add(*_: object) -> None:
        for p in training.private.params:
            p.grad += p.summed_grad.view_as(p)

    training.private.original_optimizer.register_step_pre_hook(add)
    training.train()


@pytest.mark.family
@pytest.mark.parametrize(
    ("script", "clipping", "words"),
    [(plain_backward, "ghost", "without an observed clipping"), (late_hook, "flat", MEDDLED.title)],
)
def test_leaks_without_noise_deviate(script: Script, clipping: str, words: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script, asked=LARGE, clipping=clipping)
    assert found.status == ("open", "deviates")
    assert words in " ".join(found.rejected)


@pytest.mark.ci
def test_an_optimizer_that_has_made_steps_before_leaves_the_claim_open(tmp_path: Path) -> None:
    def stepped(training: Training) -> None:
        training.train()
        training.engine.accountant.history.clear()

    found = recorded(tmp_path / "run", prepare=stepped, optimizer="adamw")
    assert found.verdict == "open"
    assert "its optimizer had made steps when it began" in found.reason


@pytest.mark.ci
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
@pytest.mark.parametrize("what", ["divisor", "divisor and one", "learning rate"])
def test_a_constant_that_follows_each_batch_is_never_proved(what: str, adjacency: str, tmp_path: Path) -> None:
    """It shows the sizes of batches. For 50 records at rate 0.05, 100 steps of noise 1, epsilon is 4.35 and not the
    3.50 of zero-out."""

    def real(training: Training) -> None:
        for _ in range(2):
            for x, y in training.loader:
                if what == "learning rate":
                    training.private.param_groups[0]["lr"] = 1.0 / len(x)
                else:
                    training.private.expected_batch_size = len(x) + (what != "divisor")
                training.step(x, y)

    found = recorded(tmp_path / "run", real, asked={**LARGE, "adjacency": adjacency})
    assert found.verdict == "open"
    assert found.reason.startswith("The channel constants is violated: data-independent-hyperparameters: ")
    assert f"but the {what.partition(' and')[0]} " in found.reason
    assert "the number of records in each batch" in found.reason
    assert found.assumption("data-independent-hyperparameters").status == "false"


@pytest.mark.ci
def test_a_schedule_follows_no_batch(tmp_path: Path) -> None:
    def stages(training: Training) -> None:
        for rate in (0.1, 0.05, 0.02):
            training.private.param_groups[0]["lr"] = rate
            training.train()

    found = recorded(tmp_path / "run", stages, asked=LARGE)
    assert found.verdict == "open"
    assert "lr of parameter group 0 changed before step 21" in found.reason
    asked = Question(delta=1e-5, epsilon=1e4, public=("learning_rate",))
    assert check_run(tmp_path / "run", asked).verdict == "proved"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("given", "words", "others"),
    [
        ({"scales": (0.5, 0.5)}, "All noise has 0.5", "One tensor"),
        ({"scales": (0.5, 1.0)}, "One tensor of the model got less noise than the others", "All noise has"),
        ({"draw": "randperm"}, "same size, as torch.randperm(records)[:size] draws them", "shuffled epoch"),
        ({"draw": "epochs"}, "All records were drawn equally often, as from a shuffled epoch", "All noise has"),
    ],
)
def test_rejected_checks_come_with_advice(given, words, others, tmp_path):
    plain_loop(tmp_path / "run", 60, **given)
    found = " ".join(check_run(tmp_path / "run", Question(delta=1e-5)).audit.recording.advice)
    assert words in found
    assert others not in found


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_a_divisor_that_depends_on_a_record_is_never_proved(tmp_path: Path) -> None:
    """Opacus divides by the number of passes of a step: two for a step with the record halve its noise."""
    training = Training(noise=3.0).build()
    training.model.allow_grad_accumulation()
    target = training.loader.dataset[7][0]
    with training.recorder(tmp_path / "run", engine=None):
        for x, y in (batch for _ in range(3) for batch in training.loader):
            training.private.zero_grad()
            for part in torch.arange(len(x)).tensor_split(2 if (x == target).all(1).any() else 1):
                training.criterion(training.model(x[part]), y[part]).backward()
            training.private.step()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert (found.verdict, found.conformance.status) == ("open", "no-deviation-found")
    assert "the divisor of gradients is from 30 to 60" in found.reason


def rejected_test(name: str, assumption: str, advice: str = "", measured: float = 1.0) -> Issue:
    check = Check(assumption=assumption, test=name, observed="measured", declared=0.0, measured=measured, p_value=0.0)
    return Issue(name=name, condition=assumption, level="deviates", text=name, test=check, fix=advice)


@pytest.mark.parametrize("assumption", TESTED)
def test_no_check_is_rejected_without_advice(assumption: str) -> None:
    """Also a test that was added without advice of its own has that of its assumption."""
    test = rejected_test("nobody described it", assumption)
    (advice,) = advice_on([test], [test])
    assert advice.endswith(".")


def test_general_advice_does_not_hide_the_cause() -> None:
    unknown, known = rejected_test("unknown", "clipping"), MEDDLED.none_found(1)
    assert advice_on([unknown, known], [unknown, known]) == (MEDDLED.advice,)
    assert advice_on([unknown], [unknown, known]) == ()


@pytest.mark.parametrize(
    ("test", "cause"),
    [
        *((SIZE.none_found(1), fault.none_found(1)) for fault in (WITHOUT_NOISE, INDEPENDENCE)),
        # Ten thousand numbers have another standard deviation than their distribution, by 1 %.
        *(
            (rejected_test(SCALE, "noise-scale", "All noise has"), cause.none_found(1))
            for cause in (INDEPENDENCE, SIZE)
        ),
        *((SHAPE.none_found(1), cause.none_found(1)) for cause in (WITHOUT_NOISE, INDEPENDENCE, SIZE)),
        (OTHER_PARAMETERS.none_found(1), LOADED.none_found(1)),
        (OTHER_PARAMETERS.none_found(1), RETURNED.none_found(1)),
        (rejected_test(FURTHER_NORMS, "clipping", "Steps have more rows"), FILLED.none_found(1)),
        (rejected_test(RATE, "sampling", "another rate"), UNOBSERVED.none_found(1)),
    ],
)
def test_a_cause_explains_what_follows_from_it(test: Issue, cause: Issue) -> None:
    assert advice_on([test], [test]) == (test.fix,)
    assert advice_on([test, cause], [test, cause]) == (cause.fix,)


MODULES = [
    importlib.import_module(module.name)
    for package in (judge, observers)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
FOUND = {id(value): value for module in MODULES for value in vars(module).values() if isinstance(value, Fault)}
FAULTS = [*FOUND.values()]


def test_each_fault_has_a_name_and_advice_of_its_own() -> None:
    """The canaries have no cause that a test could name: their advice is the condition's."""
    assert len(FAULTS) > 50
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert [fault.name for fault in FAULTS if not re.fullmatch(r"[a-z-]+", fault.name)] == []
    assert {fault.condition for fault in FAULTS} <= {*TESTED}
    assert [fault.name for fault in FAULTS if not fault.advice.endswith(".")] == [canaries.CONTRADICTED.name]


#: What a person reads. Code may print these attributes, and compare no part of them.
WORDS = {"title", "test", "note", "text", "advice", "reason", "fix", "why"}

#: Methods that search in texts, or compare them.
SEARCHES = {"startswith", "endswith", "removesuffix", "removeprefix", "partition", "rpartition", "find", "index"}
SEARCHES |= {"split", "match", "search", "fullmatch", "__contains__", "casefold", "lower"}


def compared_words(source: str) -> list[str]:
    """Return the expressions that compare or search words."""

    def of_words(node: ast.AST) -> bool:
        parts = [*ast.walk(node)]
        read = {part.attr for part in parts if isinstance(part, ast.Attribute)}
        variables = {part.id for part in parts if isinstance(part, ast.Name)} - {"test"}  # a test has words, and fields
        return not WORDS.isdisjoint(read | variables)

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            tests_none = all(isinstance(value, ast.Constant) and value.value is None for value in node.comparators)
            compared = not tests_none and any(of_words(part) for part in (node.left, *node.comparators))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            compared = any(of_words(part) for part in (node.func.value, *node.args))
        else:
            compared = isinstance(node, ast.match_case | ast.Match) and of_words(getattr(node, "subject", node))
        if compared:
            found.append(ast.unparse(node))
    return found


def test_the_judge_compares_no_words() -> None:
    """A sentence can change without a verdict: code decides by names, fields and numbers."""
    plugin = Path(str(canaries.__file__)).parents[1]
    rooms = [plugin / name for name in ("judge", "outcomes", "observers")]
    modules = [module for room in rooms for module in sorted(room.rglob("*.py"))]
    assert len(modules) > 30
    assert {module.name: found for module in modules if (found := compared_words(module.read_text()))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "check.test.startswith(MOVED)",
        "name in bad.test",
        "rule.text == other",
        "test.note.partition(':')[0]",
        "re.search(words, assumption.text)",
        "check.test.removesuffix(', exact').endswith(DECLARED)",
        "[note for note in notes if note.startswith('no loader')]",
    ],
)
def test_comparisons_of_words_are_found(line: str) -> None:
    assert compared_words(line)


@pytest.mark.parametrize("line", ["f'{test.title}: {test.check.note}'", "test.name == MOVED.name", "check.text"])
def test_printed_words_are_no_comparison(line: str) -> None:
    assert not compared_words(line)
