"""Trainings in several jobs: sound ones are proved as in one job, and faults between the parts are found."""

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from support.checked_runs import CheckedRun, Question, check_run
from support.edited_logs import edit, payloads, write_payloads
from support.jobs import Job, RankedJobs
from support.opacus_training import record_losses
from support.plain_loop import plain_loop
from support.ranks import Ranked

import dpspec
from dpspec.errors import RecordingError, UsageError
from dpspec_recording.folder.recording import next_part, open_run
from dpspec_recording.folder.writer import INTERNAL, PUBLIC, RunWriter
from dpspec_recording.judge import joined_checks, recorded_run
from dpspec_recording.judge.bounds import phases_of
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.gradient_parameters.passes import Passes
from dpspec_recording.observers.sampling.batches import Batches
from dpspec_recording.observers.sensitivity.replays import OTHERS_MOVED

pytestmark = pytest.mark.filterwarnings("ignore")

QUESTION = Question(delta=1e-5, epsilon=50.0)
ALL = ("model", "optimizer", "accountant", "scheduler")


def checked(folder: Path, **given: Any) -> CheckedRun:
    return check_run(folder, dataclasses.replace(QUESTION, **given))


def resumed(folder: Path, *jobs: dict[str, Any]) -> CheckedRun:
    """Jobs in one folder, each from the last checkpoint of the one before."""
    checkpoint = None
    for job in jobs:
        checkpoint = Job(folder, **job).run(checkpoint)
    return checked(folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A first part of 20 steps, and its checkpoint."""
    folder = tmp_path_factory.mktemp("first") / "run"
    return folder, Job(folder).run()


@pytest.fixture
def begun(first: tuple[Path, bytes], tmp_path: Path) -> Path:
    shutil.copytree(first[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.ci
def test_a_resumed_training_is_checked_as_one_that_was_not_interrupted(first: Any, begun: Path, tmp_path: Path) -> None:
    Job(begun, steps=20).run(first[1])
    Job(tmp_path / "whole", steps=40).run()
    parts, whole = checked(begun), checked(tmp_path / "whole")
    assert (parts.verdict, parts.fine, parts.rejected) == ("proved", True, set())
    assert phases_of(parts.run) == phases_of(whole.run)
    assert parts.costs[1] == whole.costs[1]
    assert parts.told == whole.told
    assert {one.assumption for one in parts.checks} == {one.assumption for one in whole.checks}
    assert {one.name for one in parts.assumptions} == {one.name for one in whole.assumptions} | {"joined-parts"}
    assert "Part 2 continues step 20 of part 1." in parts.cautions
    assert parts.run.fact(Batches).unused == 0
    assert parts.run.fact(Passes).steps == 40


def moved(job: Job) -> None:
    with torch.no_grad():
        next(job.model.parameters()).add_(0.01)


def moved_once(job: Job) -> None:
    if not job.given.get("moved"):
        job.given = {"moved": True}
        moved(job)


def momentum(job: Job) -> None:
    next(iter(job.private.original_optimizer.state.values()))["momentum_buffer"].mul_(2.0)


def frozen(job: Job) -> None:
    job.model._module.register_buffer("memory", torch.ones(3))


#: By name: the second part, the beginning of a doubt, and a rejected check.
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "parameters": ({"change": moved}, "part 2 starts with parameters that no earlier part ended with", ""),
    "momentum": ({"change": momentum}, "part 2 starts with another state of the optimizer than the checkpoint's", ""),
    "buffer": ({"change": frozen}, "part 2 starts with other buffers, frozen parameters or extra state", ""),
    "data": ({"data_seed": 1}, "part 2 has other records at the same places of the dataset", ""),
    "clip-norm": ({"clip": 2.0}, "clip_norm changed before step 21", ""),
    "noise": ({"noise": 0.8}, "noise_multiplier changed before step 21", ""),
    "learning-rate": (
        {"change": lambda job: job.private.param_groups[0].update(lr=0.5)},
        "lr of parameter group 0 changed before step 21",
        "",
    ),
    "scheduler": ({"restores": ("model", "accountant")}, "lr of parameter group 0 changed before step 21", ""),
    "accountant": ({"restores": ("model", "optimizer", "scheduler")}, "", joined_checks.RECOUNTED.title),
    "history": (
        {"change": lambda job: setattr(job.engine.accountant, "history", [(2.0, 0.1, 20)])},
        "",
        joined_checks.RECOUNTED.title,
    ),
    "shuffled": ({"poisson": False}, "", "assumed Poisson sampling, although the loader's batches are shuffled"),
    "inside": ({"during": moved_once}, "", "parameter changes outside the DP optimizer"),
}


@pytest.mark.family
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_later_part_is_found(name: str, first: Any, begun: Path) -> None:
    given, doubt, test = FAULTS[name]
    Job(begun, **given).run(first[1])
    found = checked(begun)
    assert found.status == ("open", "deviates" if test else "no-deviation-found")
    assert doubt in found.doubts
    assert not test or test in found.rejected


#: Parts that draw noise, or batches, from a generator of one seed.
SAME_NOISE = {"change": lambda job: setattr(job.private, "generator", torch.Generator().manual_seed(3))}
SAME_BATCHES = {"change": lambda job: setattr(job.loader.batch_sampler, "generator", torch.Generator().manual_seed(3))}

NOISE = "noise of all steps at one distance along each other"
BATCHES = "records in common with the batch 20 steps before"


AGAIN, EARLIER = "seed each part differently", "part 2 draws its noise as earlier steps did"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("parts", "tests", "doubt"),
    [
        ([{"seed": 5}, {"seed": 5}], {NOISE, BATCHES}, AGAIN),
        ([{"seed": 5}, {"seed": 5, "steps": 2}], {NOISE, BATCHES}, AGAIN),
        ([SAME_NOISE] * 2, {NOISE}, AGAIN),
        ([SAME_BATCHES] * 2, {BATCHES}, AGAIN),
        ([SAME_BATCHES, SAME_NOISE], None, EARLIER),
    ],
)
def test_repeated_seeds_and_random_numbers_are_found(parts, tests, doubt, tmp_path):
    found = resumed(tmp_path / "run", *parts)
    assert found.verdict == "open"
    assert doubt in found.doubts
    assert tests is None or (tests <= found.rejected and bool(tests) == bool(found.rejected))


@pytest.mark.ci
def test_repeated_noise_is_found_in_long_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long parts, the noise of some steps is kept in memory, at the beginning and the end of each part."""
    monkeypatch.setattr(recorded_run, "KEPT", 6)
    found = resumed(tmp_path / "run", {"seed": 5}, {"seed": 5, "steps": 30})
    assert len(found.run.rows) == 6 + 3 + 3 + 6
    assert "noise of two steps along each other" in found.rejected


@pytest.mark.ci
def test_a_restored_generator_goes_on_once(tmp_path: Path) -> None:
    checkpoint, restored = Job(tmp_path / "run", seed=5).run(), (*ALL, "generator")
    Job(tmp_path / "run", seed=5, restores=restored).run(checkpoint)
    assert checked(tmp_path / "run").verdict == "proved"
    Job(tmp_path / "run", seed=5, restores=restored).run(checkpoint)
    assert "part 3 draws its noise as earlier steps did" in checked(tmp_path / "run").doubts


@pytest.mark.ci
def test_a_public_change_of_the_clip_norm_begins_a_phase(first: Any, begun: Path) -> None:
    Job(begun, clip=2.0, noise=1.5).run(first[1])
    found = checked(begun, public=("clip_norm", "noise_multiplier"))
    assert found.verdict == "proved"
    assert [(one.steps, one.clip_norm, one.noise_multiplier) for one in found.phases] == [
        (20, 1.0, 1.0),
        (20, 2.0, 1.5),
    ]


@pytest.mark.ci
def test_steps_after_the_checkpoint_of_a_killed_part_are_charged(tmp_path: Path) -> None:
    """They count for the upper end alone: no later part continues their weights."""
    found = resumed(tmp_path / "run", {"saves": 15, "killed": True}, {})
    assert (found.verdict, found.fine) == ("proved", True)
    every, continued = (resumed(tmp_path / f"{steps}", {"steps": steps}).costs[1].interval for steps in (40, 35))
    assert every is not None
    assert continued is not None
    assert found.costs[1].interval == dataclasses.replace(every, lower=continued.lower)
    assert "Part 2 continues step 15 of part 1; the 5 steps of part 1 after it are charged too." in found.cautions
    (text,) = (one.text for one in found.assumptions if one.name == "joined-parts")
    assert "no model of the 5 steps after the last checkpoint of a killed part is released" in text


@pytest.mark.ci
def test_two_parts_from_one_checkpoint_are_both_charged(first: Any, begun: Path) -> None:
    for _ in range(2):
        Job(begun, steps=10).run(first[1])
    found = checked(begun)
    assert (found.verdict, found.run.steps) == ("proved", 40)
    assert "Part 3 continues step 20 of part 1; the 0" not in "".join(found.cautions)


@pytest.mark.ci
def test_a_killed_part_without_a_checkpoint_is_lost(tmp_path: Path) -> None:
    with contextlib.suppress(AssertionError):
        Job(tmp_path / "run", killed=True, seed=3).run()
    Job(tmp_path / "run", restores=()).run(Job(tmp_path / "other").run())
    found = checked(tmp_path / "run")
    assert (found.verdict, found.run.steps) == ("proved", 40)
    assert "Part 2 continues step 0 of part 1; the 20 steps of part 1 after it are charged too." in found.cautions


@pytest.mark.ci
def test_a_checkpoint_that_the_recorder_did_not_see_leaves_the_claim_open(tmp_path: Path) -> None:
    """Parameters that are copied without ``state_dict()``, by a process that was killed later."""
    kept: list[Any] = []

    def copy(job: Job) -> None:
        if len(job.engine.accountant.history) and job.engine.accountant.history[-1][2] == 10:
            kept[:] = [p.detach().clone() for p in job.model.parameters()]

    @torch.no_grad()
    def put(job: Job) -> None:
        for p, q in zip(job.model.parameters(), kept, strict=True):
            p.copy_(q)

    checkpoint = Job(tmp_path / "run", saves=5, killed=True, during=copy).run()
    Job(tmp_path / "run").run(checkpoint)
    assert checked(tmp_path / "run").verdict == "proved"  # step 10 was saved, by state_dict()
    shutil.rmtree(tmp_path / "run")
    checkpoint = Job(tmp_path / "run", saves=15, killed=True, during=copy).run()
    Job(tmp_path / "run", change=put).run(checkpoint)
    assert "part 2 starts with parameters that no earlier part ended with" in checked(tmp_path / "run").doubts


@torch.no_grad()
def put_weights_of_a_server(job: Job) -> None:
    for p in job.model.parameters():
        p.add_(0.1 * torch.randn_like(p))


@pytest.mark.ci
def test_an_engine_of_its_own_in_each_round_deviates(tmp_path: Path) -> None:
    """A client of a federation: other weights are loaded before each round, and its accountant starts again."""
    later: dict[str, Any] = {"change": put_weights_of_a_server, "restores": ("model",), "steps": 5}
    found = resumed(tmp_path / "run", {"steps": 5}, later, later, later)
    assert found.rejected == {joined_checks.RECOUNTED.title}
    assert "The accountant counted 5 of 20 steps" in " ".join(found.cautions)
    assert found.doubts.count("no earlier part ended with") == 1
    assert "part 2 starts with parameters" in found.doubts
    assert "(also 2 others)" in found.doubts


@pytest.mark.ci
def test_an_engine_over_all_rounds_asks_about_the_weights_alone(tmp_path: Path) -> None:
    later: dict[str, Any] = {"change": put_weights_of_a_server, "steps": 5}
    found = resumed(tmp_path / "run", {"steps": 5}, later, later)
    assert found.status == ("open", "no-deviation-found")
    assert "The accountant counted" not in " ".join(found.cautions)
    assert checked(tmp_path / "run", assume=("joined-parts",)).verdict == "proved"


@pytest.mark.ci
def test_an_optimizer_without_its_state_is_noted(tmp_path: Path) -> None:
    later = {
        "restores": ("model", "accountant", "scheduler"),
        "change": lambda job: job.private.param_groups[0].update(lr=0.01 * 0.99**20),
    }
    resumed(tmp_path / "run", {"optimizer": "adamw"}, {"optimizer": "adamw", **later})
    found = checked(tmp_path / "run", public=("learning_rate",))
    assert found.verdict == "proved"
    assert "The optimizer of part 2 starts without state, which costs no privacy." in found.cautions


KILLED = {"saves": 10, "killed": True}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("jobs", "doubts"),
    [
        ([{"ghost": True, **KILLED}, {"ghost": True}], ""),
        ([{"optimizer": "adamw", **KILLED}, {"optimizer": "adamw"}], ""),
        # its last steps waited to be written together
        ([{"resume": False, **KILLED}, {}], "part 1 was killed and recorded without resume=True"),
        ([{}, KILLED], "the recording has no end"),
    ],
)
def test_killed_parts_of_other_trainings_are_resumed(jobs: list[dict[str, Any]], doubts: str, tmp_path: Path) -> None:
    found = resumed(tmp_path / "run", *jobs)
    assert (found.verdict, found.rejected) == ("open" if doubts else "proved", set())
    assert doubts in found.doubts


@pytest.mark.ci
def test_evidence_of_one_part_is_kept(tmp_path: Path) -> None:
    """Replays find that the loss of the first part mixes records, and not the later one's."""

    def mixing(job: Job) -> None:
        job.criterion = lambda scores, y: torch.nn.functional.cross_entropy(scores - scores.mean(0), y)

    assert OTHERS_MOVED.title in resumed(tmp_path / "run", {"change": mixing}, {}).rejected


@pytest.mark.ci
def test_a_recorder_that_failed_leaves_the_claim_open(first: Any, begun: Path, monkeypatch: Any) -> None:
    """The second job trains without a record, and the third one continues it."""

    def fail(*_: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "write", fail)
        job = Job(begun)
        checkpoint = job.run(first[1])
    Job(begun).run(checkpoint)
    found = checked(begun)
    assert (found.verdict, found.run.steps) == ("open", 40)
    assert "part 3 starts with parameters that no earlier part ended with" in found.doubts


@pytest.mark.ci
def test_canaries_keep_their_inclusion_bits(tmp_path: Path) -> None:
    def planted(seed: int | None) -> Any:
        x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
        data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        return dpspec.plant(data, kind="mislabelled", count=40, classes=2, seed=seed)

    checkpoint = Job(tmp_path / "run", planted=planted(1)).run()
    with pytest.raises(UsageError, match="the first part has another commitment"):
        Job(tmp_path / "run", planted=planted(None)).run(checkpoint)
    job = Job(tmp_path / "run", planted=planted(1))
    job.run(checkpoint)
    job.recording.score(job.model, record_losses)
    found = checked(tmp_path / "run")
    assert found.verdict == "proved"
    assert found.canaries is not None
    assert found.canaries.canaries == 40


@pytest.mark.ci
def test_a_plain_loop_is_resumed(tmp_path: Path) -> None:
    for saves in (True, False):
        folder = tmp_path / str(saves)
        kept = plain_loop(folder, saves=saves, killed=True, resume=True)
        plain_loop(folder, start=kept, seed=2, saves=True, resume=True)
        found = checked(folder, accept=("not-replayed",))  # its sums follow from no record
        assert (found.verdict, found.run.steps) == ("proved" if saves else "open", 40)
        assert ("part 2 starts with parameters that no earlier part ended with" in found.doubts) is not saves


@pytest.mark.ci
def test_parts_that_cannot_be_joined_are_refused(first: Any, begun: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already holds a recording"):
        Job(begun, resume=False).run(first[1])
    Job(begun, steps=2).run(first[1])
    with pytest.raises(RecordingError, match="part 2 of a run: check the folder that holds all parts"):
        open_run(begun / "part-2", OBSERVERS)
    shutil.copytree(begun / "part-2", begun / "part-4")
    with pytest.raises(RecordingError, match="parts 1, 2, 4: one is missing"):
        open_run(begun, OBSERVERS)
    (begun / "part-4").rename(begun / "part-3")
    with pytest.raises(RecordingError, match="not the recording of this part"):
        open_run(begun, OBSERVERS)
    shutil.rmtree(begun / "part-3")
    (begun / "part-3").mkdir()
    assert checked(begun).verdict == "proved"  # the process was killed before it wrote anything
    assert next_part(begun) == 4
    edit(begun / "part-2" / PUBLIC, lambda event: event.get("header", {}).update(records=401))
    with pytest.raises(RecordingError, match="has another records than the first part"):
        open_run(begun, OBSERVERS)


@pytest.mark.ci
def test_a_part_of_another_run_or_without_states_leaves_the_claim_open(first: Any, begun: Path, tmp_path: Path) -> None:
    Job(begun, steps=5).run(first[1])
    checkpoint = Job(tmp_path / "other", steps=5).run()
    Job(tmp_path / "other", steps=5).run(checkpoint)
    shutil.copytree(begun, tmp_path / "mixed")
    shutil.rmtree(tmp_path / "mixed" / "part-2")
    shutil.copytree(tmp_path / "other" / "part-2", tmp_path / "mixed" / "part-2")
    assert "part 2 starts with parameters" in checked(tmp_path / "mixed").doubts
    edit(begun / "part-2" / INTERNAL, lambda event: event["event"] == "state")
    assert "part 2 has no state of its start" in checked(begun).doubts


@pytest.mark.ci
def test_an_interrupted_part_that_goes_on_is_proved(first: Any, begun: Path) -> None:
    job = Job(begun)
    job.build()
    job.load(first[1])
    with contextlib.suppress(KeyboardInterrupt), job.recorder(resume=True):
        for x, y in job.loader:
            job.criterion(job.model(x), y).backward()
            job.private.step()
            raise KeyboardInterrupt
    Job(begun).run(job.save())
    assert checked(begun).verdict == "proved"


@pytest.mark.ci
def test_ranks_are_resumed_after_a_kill(tmp_path: Path) -> None:
    jobs = RankedJobs(tmp_path)
    assert jobs.run() == [0, 0]
    assert jobs.run(epochs=5, killed=(1, 13)) != [0, 0]
    assert jobs.run() == [0, 0]
    found = checked(jobs.folder)
    assert (found.verdict, found.fine, found.rejected) == ("proved", True, set())
    assert "Part 3 continues step 10 of part 2; the 3 steps of part 2 after it are charged too." in found.cautions
    assert found.run.steps == 6 + 13 + 6
    shutil.rmtree(jobs.folder / "part-2" / "rank-1")
    with pytest.raises(RecordingError, match="rank 1 of 2 is missing"):
        open_run(jobs.folder, OBSERVERS)


@pytest.mark.ci
def test_jobs_that_are_killed_before_their_first_step_are_omitted(tmp_path: Path) -> None:
    jobs = RankedJobs(tmp_path)
    (jobs.folder / "rank-0").mkdir(parents=True)
    (jobs.folder / "rank-0" / PUBLIC).write_text("")  # killed while it wrote
    assert next_part(jobs.folder) == 2
    assert jobs.run(epochs=1) == [0, 0]
    (jobs.folder / "part-3" / "rank-1").mkdir(parents=True)
    for name in (PUBLIC, INTERNAL):
        start, *_ = payloads(jobs.folder / "part-2" / "rank-1" / name)
        write_payloads(jobs.folder / "part-3" / "rank-1" / name, [start])
    assert checked(jobs.folder).run.folder.numbers == (2,)
    write_payloads(
        jobs.folder / "part-3" / "rank-1" / INTERNAL, payloads(jobs.folder / "part-2" / "rank-1" / INTERNAL)[:2]
    )
    with pytest.raises(RecordingError, match="rank 0 of 2 is missing"):  # the part may have trained
        open_run(jobs.folder, OBSERVERS)
    assert jobs.run(epochs=1) == [0, 0]
    found = checked(jobs.folder)
    assert (found.verdict, found.run.folder.numbers) == ("proved", (2, 4))
    assert "Part 4 continues step 3 of part 2." in found.cautions


@pytest.mark.ci
@pytest.mark.parametrize(
    ("seeds", "tests", "doubt"),
    [
        ((1, 2), set(), "rank 0 of part 2 draws its noise as earlier steps did"),  # the seed of another rank
        ((7, 7), {NOISE}, "rank 1 of part 2 draws its batches"),
    ],
)
def test_ranks_with_seeds_of_an_earlier_part_are_not_proved(seeds, tests, doubt, tmp_path):
    jobs = RankedJobs(tmp_path)
    assert [jobs.run(seed_of=seed) for seed in seeds] == [[0, 0]] * 2
    found = checked(jobs.folder)
    assert found.verdict == "open"
    assert tests <= found.rejected
    assert doubt in found.doubts


@pytest.mark.ci
def test_ranks_that_record_other_steps_in_each_part_are_not_proved(tmp_path: Path) -> None:
    """The numbers of recorded steps are equal over both parts."""
    jobs = RankedJobs(tmp_path)
    assert [jobs.run(recorded=steps) for steps in ((5, 3), (3, 5))] == [[0, 0]] * 2
    assert joined_checks.SHORTER.title in checked(jobs.folder).rejected


@pytest.mark.ci
def test_a_part_that_the_recorder_gave_up_counts(tmp_path: Path) -> None:
    jobs = RankedJobs(tmp_path)

    def unreadable(training: Ranked, rank: int) -> None:
        jobs.prepare(training, rank)
        training.private.secure_mode = 0

    assert [jobs.run(epochs=1), jobs.run(epochs=1, prepare=unreadable)] == [[0, 0]] * 2
    shutil.rmtree(jobs.folder / "part-2" / "rank-1")
    with pytest.raises(RecordingError, match="rank 1 of 2 is missing"):
        open_run(jobs.folder, OBSERVERS)


@pytest.mark.ci
def test_options_of_one_rank_in_a_later_part_leave_the_claim_open(tmp_path: Path) -> None:
    jobs = RankedJobs(tmp_path)

    def other(training: Ranked, rank: int) -> None:
        jobs.prepare(training, rank)
        training.model.max_grad_norm = 50.0 + rank  # larger than all norms

    made: dict[str, Any] = {"ghost": True, "clip": 50.0}
    assert [jobs.run(**made), jobs.run(**made, prepare=other)] == [[0, 0]] * 2
    found = checked(jobs.folder)
    assert found.verdict == "open"
    assert "rank 1 of part 2 starts with other options than the first rank" in found.doubts


@pytest.mark.ci
@pytest.mark.parametrize("restores_random_state", [False, True])
def test_a_script_that_goes_back_to_a_checkpoint_charges_all_steps(tmp_path: Path, restores_random_state: bool) -> None:
    """One engine counts the steps after the checkpoint too; with the state of its generator, their noise returns."""
    x = torch.randn(600, 10)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    with torch.random.fork_rng():
        torch.seed()
        engine, module = PrivacyEngine(accountant="rdp"), torch.nn.Linear(10, 2)
        model, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.2),
            data_loader=torch.utils.data.DataLoader(data, batch_size=60),
            noise_multiplier=1.5,
            max_grad_norm=1.0,
        )

        def train(epochs: int) -> None:
            for _ in range(epochs):
                for features, labels in loader:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(features), labels).backward()
                    optimizer.step()

        parts = {"model": model, "optimizer": optimizer, "loader": loader, "engine": engine, "resume": True}
        with dpspec.record(tmp_path / "run", **parts):
            train(3)
            saved, random_state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
            train(2)
        model.load_state_dict(saved)
        if restores_random_state:
            torch.set_rng_state(random_state)
        with dpspec.record(tmp_path / "run", **parts):
            train(3)
    run = checked(tmp_path / "run")
    assert run.status == (("open", "deviates") if restores_random_state else ("proved", "no-deviation-found"))
    assert joined_checks.RECOUNTED.title not in run.rejected
    assert (NOISE in run.rejected) is restores_random_state
