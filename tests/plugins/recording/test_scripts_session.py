"""Private trainings that a session finds in a script: one, several, in turn, and next to other trainings."""

import contextlib
import copy
import dataclasses
import gc
import sys
import warnings
from types import SimpleNamespace

import opacus
import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from support.checked_runs import Question, check_run
from support.opacus_training import FEATURES, RECORDS, Training
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from dpspec.errors import UsageError
from dpspec_recording.folder.place import the_recording
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.recording import open_run
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.sampling.batches import Batches
from dpspec_recording.scripts import session as sessions
from dpspec_recording.scripts.session import OTHER_LIBRARIES, start

CLAIM = Question(delta=1e-5, epsilon=100.0)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A function that runs a part of a script in a session, ends it, and returns the session."""
    warnings.simplefilter("ignore")
    for library in OTHER_LIBRARIES:  # which other tests may have imported
        monkeypatch.delitem(sys.modules, library, raising=False)

    def run(call, *, whole=True, error=None, client=False, folder="run"):
        session = start(tmp_path / folder, whole=whole, summary=False, client=client)
        try:
            call()
        finally:
            session.error = error
            session.end()
        return session

    return run


def rows(count=RECORDS):
    x = torch.randn(count, FEATURES)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Private:
    """A training of a script that can go on later."""

    def __init__(self, data, *, model=None, optimizer=None, batch=30):
        model = model or nn.Linear(FEATURES, 2)
        made = PrivacyEngine(accountant="rdp").make_private(
            module=model,
            optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.05),
            data_loader=DataLoader(data, batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        self.model, self.optimizer, self.loader = made

    def train(self):
        for x, y in self.loader:
            self.step(x, y)
        return self

    def step(self, x, y):
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def facts_of(session, number=1):
    return RunFolder.open(session.folder / str(number), OBSERVERS).script


def plainly(model, steps=3):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, FEATURES)).sum().backward()
        optimizer.step()


def confirmed(session, number=1):
    (audit,) = check_run(session.folder / str(number), CLAIM).result.audits
    return " ".join(audit.recording.confirm)


def statuses(session, number=1):
    (audit,) = check_run(session.folder / str(number), CLAIM).result.audits
    return {channel.name: channel for channel in audit.recording.channels}


def test_a_training_is_recorded_with_the_same_bits_and_nothing_is_left_behind(script):
    before = PrivacyEngine.make_private, PrivacyEngine.make_private_with_epsilon, DataLoader.__iter__
    finders, found = list(sys.meta_path), []
    session = script(lambda: found.extend(Training().run()))
    assert all(torch.equal(a, b) for a, b in zip(Training().run(), found, strict=True))
    assert before == (PrivacyEngine.make_private, PrivacyEngine.make_private_with_epsilon, DataLoader.__iter__)
    assert (sys.meta_path, sessions._current, session.failures) == (finders, [], [])
    result = check_run(session.folder / "1", CLAIM)
    assert result.result.exit_code == 0
    assert the_recording(session.folder) == session.folder / "1"
    assert facts_of(session).whole
    assert "by other means than an optimizer of torch (no other one stepped)" in confirmed(session)


@pytest.mark.ci
def test_a_training_by_make_private_with_epsilon_is_one_training(script):
    def call():
        model = nn.Linear(FEATURES, 2)
        made = PrivacyEngine(accountant="rdp").make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            data_loader=DataLoader(rows(), batch_size=30),
            target_epsilon=8.0,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
        )
        for x, y in made[2]:
            cross_entropy(made[0](x), y).backward()
            made[1].step()
            made[1].zero_grad()

    assert [folder.name for folder in script(call).folders] == ["1"]


def test_a_function_that_is_called_twice_makes_two_recordings_that_know_each_other(script):
    data = rows()
    session = script(lambda: [Private(data).train() for _ in range(2)])
    assert [folder.name for folder in session.folders] == ["1", "2"]
    for number, other in ((1, "2"), (2, "1")):
        assert check_run(session.folder / str(number), CLAIM).result.exit_code == 0
        (fact,) = facts_of(session, number).peers
        assert (fact.folder, fact.common) == (other, True)
        assert f"the models of training {other} of the script" in confirmed(session, number)
        assert "no other one stepped" not in confirmed(session, number)
    with pytest.raises(UsageError, match="has the recordings of 2 trainings, 1, 2"):
        the_recording(session.folder)


@pytest.mark.family
@pytest.mark.parametrize("kind", ["disjoint", "unknown"])
def test_trainings_on_other_records_are_told_apart_only_if_the_recorder_knows_them(script, kind):
    data = rows()
    halves = [Subset(data, range(150)), Subset(data, range(150, 300))] if kind == "disjoint" else [rows(), rows()]
    session = script(lambda: [Private(half).train() for half in halves])
    assert facts_of(session).peers[0].common is {"disjoint": False, "unknown": None}[kind]
    question = "training 2 of the script had none of these records, or the model is not released"
    assert (question in confirmed(session)) == (kind == "unknown")


@pytest.mark.ci
def test_a_training_that_goes_on_after_another_one_is_recorded_in_parts(script):
    def call():
        first = Private(rows()).train()
        second = Private(rows()).train()
        first.train()
        second.train()

    session = script(call)
    for number in (1, 2):
        run = open_run(session.folder / str(number), OBSERVERS)
        assert run.numbers == (1, 2)
        assert statuses(session, number)["released-model"].status != "violated"


@pytest.mark.ci
def test_two_networks_of_one_training_are_recorded_at_the_same_time(script):
    def call():
        first, second = Private(rows()), Private(rows())
        for (x, y), (u, v) in zip(first.loader, second.loader, strict=True):
            first.step(x, y)
            second.step(u, v)

    session = script(call)
    assert [(session.folder / str(n) / "part-2").exists() for n in (1, 2)] == [False, False]
    assert "other private optimizers made 10 steps" in statuses(session)["released-model"].text


@pytest.mark.ci
def test_an_engine_for_each_round_continues_the_recording_of_the_model(script):
    data = rows()

    def call():
        model = nn.Linear(FEATURES, 2)
        for _ in range(2):
            Private(data, model=model).train().model.to_standard_module()

    session = script(call)
    assert [folder.name for folder in session.folders] == ["1"]
    assert open_run(session.folder / "1", OBSERVERS).numbers == (1, 2)


@pytest.mark.ci
def test_weights_that_are_set_before_the_first_gradients_are_the_initial_ones(script):
    def call():
        training = Private(rows())
        with torch.no_grad():
            training.model.eval()(torch.randn(3, FEATURES))
            for p in training.model.train().parameters():
                p.uniform_(-0.1, 0.1)
        training.train()

    assert check_run(script(call).folder / "1", CLAIM).result.exit_code == 0


@pytest.mark.ci
def test_steps_of_other_optimizers_before_and_after_are_asked_about(script):
    def call():
        model = nn.Linear(FEATURES, 2)
        plainly(model)
        Private(rows(), model=model).train()
        Private(rows())  # prepared, and never begun
        later = nn.Linear(FEATURES, 2)
        Private(rows()).train()
        plainly(later, steps=2)

    session = script(call)
    (before,) = facts_of(session).before
    assert (before.optimizer, before.steps, before.on_model) == ("Adam", 3, True)
    (after,) = facts_of(session).after
    assert (after.optimizer, after.steps, after.on_model) == ("Adam", 2, False)
    asked = confirmed(session)
    assert "3 steps of Adam on tensors of the model before this training and 2 steps of Adam after" in asked
    assert "no other one stepped" not in asked


def test_steps_that_no_recording_has_leave_the_released_model_open(script):
    def call():
        training = Private(rows())
        training.optimizer.original_optimizer.zero_grad()
        for p in training.model.parameters():
            p.grad = torch.ones_like(p)
        training.optimizer.original_optimizer.step()
        training.train()

    channel = statuses(script(call))["released-model"]
    assert channel.status == "open"
    assert "its optimizer made one step in the script that the recording does not have" in channel.text


def test_the_script_s_reads_of_the_weights_are_listed(script):
    def call(each_epoch):
        training = Private(rows())
        for _ in range(2):
            training.train()
            if each_epoch:
                training.model.state_dict()
        training.model.state_dict()

    assert "the script read its state_dict() after step 10 and step 20" in confirmed(script(lambda: call(True)))


@pytest.mark.ci
def test_a_late_session_claims_less(script):
    session = script(lambda: Training().run(), whole=False)
    asked = confirmed(session)
    assert "nothing was trained on these records in the script before it imported dpspec.auto" in asked
    assert "no other one stepped" not in asked


@pytest.mark.family
@pytest.mark.parametrize(
    ("error", "noted"), [(KeyboardInterrupt(), "KeyboardInterrupt"), (ValueError(), "ValueError"), (SystemExit(3), "")]
)
def test_an_end_by_an_error_is_noted_and_by_exit_is_not(script, error, noted):
    session = script(lambda: Training(epochs=1).run(), error=error)
    *_, end = RunFolder.open(session.folder / "1", OBSERVERS).steps()
    assert end.error == noted


def test_what_the_recorder_does_not_support_is_said_and_the_script_goes_on(script, capsys, monkeypatch):
    class Other(opacus.optimizers.DPOptimizer):
        pass

    monkeypatch.setattr("opacus.privacy_engine.get_optimizer_class", lambda **_: Other)
    session = script(lambda: Private(rows()).train())
    assert session.folders == []
    assert "a training is not recorded: the recorder does not know" in capsys.readouterr().err
    assert session.summary() == "nothing was recorded"


def test_a_fault_of_the_session_never_ends_the_script(script, capsys, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr("dpspec_recording.scripts.training.PreparedTraining.begin", broken)
    finished = []
    session = script(lambda: finished.append(Private(rows()).train()))
    assert finished
    assert session.folders == []
    assert "a training is not recorded: an error of the recorder, RuntimeError: broken" in capsys.readouterr().err


@pytest.mark.ci
def test_a_script_that_turns_warnings_into_errors_goes_on_and_gets_the_cautions(script, capsys):
    def call():
        torch.manual_seed(0)
        with warnings.catch_warnings():
            training = Private(rows())
            training.model(torch.randn(2, FEATURES)).sum().backward()  # torch warns of its hooks, once
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "Full backward hook")
            training.train()

    session = script(call)
    assert "dpspec, rule guessable-seed: " in capsys.readouterr().err
    (audit,) = check_run(session.folder / "1", CLAIM).result.audits
    assert "guessable-seed" in [rule.name for rule in audit.recording.rules]


def test_an_own_loop_is_told_the_three_calls(script):
    session = script(lambda: plainly(nn.Linear(FEATURES, 2)))
    for call in ("run.clipped", "run.summed", "run.noised"):
        assert call in session.summary()
    prepared = script(lambda: Private(rows()))
    assert "and none began" in prepared.summary()


def test_a_script_that_failed_is_not_told_how_to_write_a_loop(script):
    failed = script(lambda: None, error=ZeroDivisionError())
    assert failed.summary() == "nothing was recorded: ZeroDivisionError ended the script before a private training"


def test_a_second_session_is_the_first_one(tmp_path):
    with contextlib.ExitStack() as stack:
        first = start(tmp_path / "run", whole=True, summary=False)
        stack.callback(first.end)
        assert start(tmp_path / "other", whole=False) is first


@pytest.mark.ci
def test_public_data_is_found_by_the_name_of_its_variable(tmp_path, capsys):
    session = start(tmp_path / "run", whole=True, summary=False, public=("public_rows", "missing"))

    def train():
        public_rows = rows()
        assert public_rows
        Private(rows()).train()

    try:
        train()
    finally:
        session.end()
    assert "--public-data missing: no variable" in capsys.readouterr().err
    session = start(tmp_path / "again", whole=True, summary=False, public=("public_rows",))
    try:
        train()
    finally:
        session.end()
    assert check_run(session.folder / "1", CLAIM).assumption("public-data").status == "declared"


@pytest.mark.ci
@pytest.mark.parametrize("last", ["trains", "stops"])
def test_the_last_cell_of_a_notebook_that_trains_decides_about_an_error(tmp_path, last):
    interrupted, completed = SimpleNamespace(error_in_exec=KeyboardInterrupt()), SimpleNamespace(error_in_exec=None)
    session = start(tmp_path / "run", whole=False, summary=False)
    try:
        training = Private(rows()).train()
        session.after_cell(interrupted)
        if last == "trains":
            training.train()
        session.after_cell(completed)
    finally:
        session.end()
    found = check_run(session.folder / "1", CLAIM)
    assert found.run.end.error == ("" if last == "trains" else "KeyboardInterrupt")


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "common"), [("same", True), ("copy", True), ("other", False), ("none", None)])
def test_steps_on_the_recorded_records_are_no_steps_on_others(script, kind, common):
    def call():
        data = rows()
        copied = TensorDataset(*(tensor.clone() for tensor in data.tensors))
        others = {"same": data, "copy": copied, "other": rows()}
        baseline = nn.Linear(FEATURES, 2)
        optimizer = torch.optim.SGD(baseline.parameters(), lr=0.1)
        batches = DataLoader(others[kind], batch_size=100) if kind in others else [(torch.randn(4, FEATURES), None)] * 3
        for x, _ in batches:
            baseline(x).sum().backward()
            optimizer.step()
        Private(data).train()

    session = script(call)
    (steps,) = facts_of(session).before
    assert (steps.steps, steps.common) == (3, common)
    said = "3 steps of SGD before this training"
    asked = confirmed(session)
    assert (f"these steps in the script read none of these records: {said}" in asked) is (common is not True)
    assert ("nothing that these steps learned is released or used" in asked) is (common is True)
    released = check_run(session.folder / "1", CLAIM).assumption("released-model")
    assert (f"an exception is what {said} learned" in released.text) is (common is True)


def test_a_training_that_an_exception_ends_before_its_first_step_is_none(script):
    def call():
        for _ in Private(rows()).loader:
            raise ValueError

    ended = []
    with contextlib.suppress(ValueError):
        script(lambda: (ended.append(sessions._current[0]), call()), error=ValueError())
    assert ended[0].summary() == "no step of a private training was recorded: ValueError ended the script"


@pytest.mark.ci
def test_steps_of_an_optimizer_that_is_gone_count_next_to_a_private_one_that_is_gone(script):
    def call():
        data = rows()
        plainly(nn.Linear(FEATURES, 2))
        Private(data).train()
        gc.collect()
        Private(data).train()

    session = script(call)
    assert [steps.optimizer for steps in facts_of(session, 2).before] == ["Adam"]
    assert "3 steps of Adam before this training" in confirmed(session, 2)


def test_steps_of_an_optimizer_before_it_was_made_private_count(script):
    def call():
        model = nn.Linear(FEATURES, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model(torch.randn(4, FEATURES)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        Private(rows(), model=model, optimizer=optimizer).train()

    (before,) = facts_of(script(call)).before
    assert (before.optimizer, before.steps, before.on_model) == ("SGD", 1, True)


def client_of_one_engine(*, best):
    """Rounds of one engine, whose model loads the server's weights, or weights of its own earlier step."""

    def call():
        private = Private(rows())
        for _ in range(2):
            private.train()
            sent = copy.deepcopy(private.model.state_dict())
            private.train()
            averaged = {name: tensor + 0.1 for name, tensor in private.model.state_dict().items()}
            private.model.load_state_dict(sent if best else averaged)

    return call


@pytest.mark.ci
def test_a_client_of_one_engine_is_one_training_with_a_part_for_each_load(script):
    session = script(client_of_one_engine(best=False), client=True)
    found = check_run(session.folder / "1", CLAIM)
    assert (found.verdict, found.fine, len(session.folders)) == ("proved", True, 1)
    assert len(open_run(session.folder / "1", OBSERVERS).parts) == 2
    without = script(client_of_one_engine(best=False), folder="without")
    assert check_run(without.folder / "1", CLAIM).status[1] == "deviates"


@pytest.mark.ci
def test_a_client_that_goes_back_to_weights_of_an_earlier_step_is_open(script):
    session = script(client_of_one_engine(best=True), client=True)
    found = check_run(session.folder / "1", CLAIM)
    assert found.verdict == "open"
    assert "the script loaded weights of an earlier step 2 times" in found.doubts


@pytest.mark.ci
def test_models_that_are_gone_share_no_tensors_with_later_ones(script):
    def call():
        for _ in range(6):
            Private(rows(90)).train()
            gc.collect()

    assert [folder.name for folder in script(call).folders] == ["1", "2", "3", "4", "5", "6"]


def trained_by_a_trainer(data, *, reads_before=False):
    """A trainer builds its own private loader, and calls the module inside of Opacus' wrapper, as Lightning does."""

    def call():
        private = Private(data)
        if reads_before:
            for x, _ in DataLoader(data, batch_size=30):
                x.mean()
        for x, y in DPDataLoader.from_data_loader(DataLoader(data, batch_size=30)):
            private.optimizer.zero_grad()
            cross_entropy(private.model._module(x), y).backward()
            private.optimizer.step()

    return call


@pytest.mark.family
@pytest.mark.parametrize("reads_before", [False, True])
def test_a_trainer_with_its_own_loader_is_recorded(script, reads_before):
    session = script(trained_by_a_trainer(rows(), reads_before=reads_before))
    assert check_run(session.folder / "1", CLAIM).verdict == "open"  # no pass of the private model was seen
    run = check_run(session.folder / "1", dataclasses.replace(CLAIM, accept=("not-replayed",)))
    assert (run.verdict, run.fine, facts_of(session).missed) == ("proved", True, 0)
    assert run.run.fact(Batches).unused == 0


@pytest.mark.parametrize(
    ("package", "word"),
    [
        ("jax_privacy", "steps.report"),
        ("fastDP", "under no public name"),
        ("flwr", "RecordedStrategy"),
        ("", "run.clipped"),
    ],
)
def test_a_refusal_says_what_a_training_of_another_library_needs(script, monkeypatch, package, word):
    if package:
        monkeypatch.setitem(sys.modules, package, object())
    assert word in script(lambda: plainly(nn.Linear(FEATURES, 2))).summary()


def test_an_optimizer_of_opacus_without_make_private_is_named(script):
    def call():
        model = GradSampleModule(nn.Linear(FEATURES, 2))
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
        model(torch.randn(4, FEATURES)).sum().backward()
        optimizer.step()

    assert "without make_private" in script(call).summary()


def test_an_engine_without_make_private_is_named(script, monkeypatch):
    monkeypatch.delattr(PrivacyEngine, "make_private")
    session = script(lambda: None)
    assert "Opacus 1.0 and newer ones" in session.summary()


@pytest.mark.ci
def test_a_model_that_is_prepared_again_is_recorded_with_its_last_engine_alone(script):
    data = rows()

    def call():
        model = nn.Linear(FEATURES, 2)
        Private(data, model=model).model.to_standard_module()
        Private(data, model=model).train()

    session = script(call)
    assert [folder.name for folder in session.folders] == ["1"]
    assert (open_run(session.folder / "1", OBSERVERS).header.part, session.failures) == (0, [])
