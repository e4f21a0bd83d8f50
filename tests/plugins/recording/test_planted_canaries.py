"""What canaries show of a run, by its folder and by a spec, and folders of canaries that no recorder writes."""

import io
import shutil
import warnings
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import torch
from support.checked_runs import audit_by_spec, checked, run_page
from support.opacus_training import Training
from support.plain_loop import rebuilt
from support.planted_loop import RATE, SIGMA, STEPS, loss, planted_data, train
from torch import nn

import dpspec
from dpspec.cli.app import main
from dpspec.errors import ExitCode, RecordingError, UsageError
from dpspec.json_records import write
from dpspec.results import codec
from dpspec.stats.attacks import guess_counts, one_run
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.writer import CANARIES, INTERNAL, PUBLIC, RunWriter
from dpspec_recording.judge import assumptions
from dpspec_recording.judge.canaries import CanaryBound, doubts
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.sensitivity.replays import REMOVED

DELTA = 1e-5


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """The read-only folder of a run, the model and the data with canaries."""
    folder = tmp_path_factory.mktemp("scored") / "run"
    run, model, planted = train(folder, seed=5)
    run.score(model, loss, batch_size=37)
    return folder, model, planted


@pytest.fixture
def copy(scored, tmp_path):
    """Its folder, to be changed."""
    shutil.copytree(scored[0], tmp_path / "run")
    return tmp_path / "run"


def scored_run(folder, seed=0, **made):
    """A run whose canaries are scored by its parameters in another module, as a checkpoint gives them."""
    run, model, _ = train(folder, seed, **made)
    run.score(deepcopy(model), loss)


def notes(found, width=400):
    """The page above its table of the executed run."""
    return " ".join(run_page(found, width).partition("Executed run")[0].split())


@pytest.mark.ci
def test_a_sound_run_shows_no_more_than_its_schedule_costs(tmp_path):
    """Four seeds: each lower bound is right with probability 0.95, and the attack far from the worst case."""
    shown = []
    for seed in range(4):
        scored_run(tmp_path / f"{seed}", seed)
        found = checked(tmp_path / f"{seed}", epsilon=2.5)
        assert found.canaries.lower <= found.costs[1].interval.upper
        assert (found.verdict, found.exit_code) == ("proved", ExitCode.OK)
        shown.append(found.canaries.lower)
    assert max(shown) > 0.2


@pytest.mark.family
@pytest.mark.parametrize("seed", range(2))
def test_missing_noise_that_the_loop_reports_is_refuted(seed, recordings, tmp_path):
    folder = tmp_path / "run"
    if seed == 0:
        folder = recordings["leaking canaries"]
    else:
        scored_run(folder, seed, fault="no-noise", canaries=300)
    found = checked(folder, epsilon=2.5)
    assert found.conformance.status == "no-deviation-found"
    assert found.costs[1].interval.upper < 2.5 < found.canaries.lower
    assert (found.verdict, found.exit_code) == ("refuted", ExitCode.UNEXPECTED)
    assert checked(folder).exit_code == ExitCode.UNEXPECTED
    above = checked(folder, epsilon=100.0)
    assert (above.verdict, above.exit_code) == ("open", ExitCode.UNEXPECTED)


@pytest.mark.ci
def test_a_loop_that_leaks_more_than_its_schedule_allows_contradicts_its_recording(tmp_path):
    scored_run(tmp_path / "run", fault="no-noise", canaries=1000)
    found = checked(tmp_path / "run", epsilon=100.0)
    assert (*found.status, found.exit_code) == ("open", "deviates", ExitCode.UNEXPECTED)
    assert "nothing-unseen" in found.reason
    assert "lower bound by canaries, above the bound of the recorded schedule" in found.conformance.reason
    assert found.canaries.p_value <= 1e-6
    code, audit = audit_by_spec(tmp_path / "run")
    assert (code, audit["verdicts"][0]["verdict"]) == (
        1,
        "refuted",
    )  # its upper bound depends on an unobserved assumption
    assert audit["conformance"]["status"] == "deviates"
    assert "nothing-unseen (lower bound by canaries, above the bound of the" in audit["conformance"]["reason"]


@pytest.mark.ci
def test_a_model_that_was_trained_on_after_the_block_proves_and_refutes_nothing(tmp_path):
    scored_run(tmp_path / "run", fault="trained-on", canaries=300)
    found = checked(tmp_path / "run", epsilon=2.5)
    assert (found.verdict, found.exit_code) == ("open", ExitCode.UNEXPECTED)
    assert "scored-model: the scored model is the recorded one after its last step" in found.reason
    assert found.canaries.assumptions[0].name == "scored-model"
    assert "The scored model is not the recorded one" in notes(found)
    other, fresh, _ = train(tmp_path / "other")
    other.score(nn.Linear(fresh.in_features, 1, bias=False), loss)
    below = checked(tmp_path / "other", epsilon=2.5)
    assert (below.canaries.final, below.verdict, below.exit_code) == (False, "proved", ExitCode.OK)
    assert "do not apply to it" in notes(below)


@pytest.mark.ci
@pytest.mark.parametrize("raised", [False, True])
def test_canaries_without_scores_decide_no_claim_and_say_so_on_top(raised, tmp_path):
    """Missing scores of inserted canaries fail the check: a broken scoring script used to exit with 0."""
    run, model, _ = train(tmp_path / "run")
    if raised:
        with pytest.raises(ZeroDivisionError):
            run.score(model, lambda model, batch: 1 / 0)
    found = checked(tmp_path / "run", epsilon=2.5)
    assert (found.verdict, found.exit_code) == ("open", ExitCode.UNEXPECTED)
    assert "inserted canaries without a score" in found.conformance.reason
    assert checked(tmp_path / "run").exit_code == ExitCode.UNEXPECTED
    page = " ".join(run_page(found, 400).split())
    assert page.startswith("DEVIATES ")
    assert "400 canaries were inserted and not scored by run.score" in notes(found)
    assert "inserted canaries without a score" in page
    assert "Call run.score after the block" in page
    code, audit = audit_by_spec(tmp_path / "run")
    assert (code, audit["conformance"]["status"]) == (1, "deviates")
    assert "canaries (inserted canaries" in audit["conformance"]["reason"]
    if not raised:
        run.score(model, loss)
        assert checked(tmp_path / "run", epsilon=2.5).fine


@pytest.mark.ci
def test_every_coin_and_every_guess_is_accounted_for(scored):
    """The bound from the files, counted by hand: 16, 48, 144 and all guesses, half on either side."""
    folder, model, planted = scored
    with np.load(folder / CANARIES, allow_pickle=False) as file:
        coins, scores = file["coin"], file["score"]
        assert bytes(file["secret"]) == planted.source.secret
    assert coins.tolist() == planted.coins.tolist()
    with torch.no_grad():
        own = [-float(loss(model, (x[None], y[None]))) for x, y in planted.canaries]
    assert scores == pytest.approx(own, rel=1e-5)
    order = sorted(range(400), key=lambda i: (scores[i], i))
    correct = []
    for half in (8, 24, 72, 200):
        low, high = order[:half], order[400 - half :]
        correct.append(sum(coins[i] == 0 for i in low) + sum(coins[i] == 1 for i in high))
    found = checked(folder).canaries
    assert (found.guesses, found.correct) == ((16, 48, 144, 400), tuple(correct))
    assert int(coins.sum()) == 400 - RunFolder.open(folder, OBSERVERS).header.left_out
    assert found.lower == guess_counts.epsilon_lower(400, found.guesses, correct, DELTA, 0.95)
    single = [one_run.epsilon_lower(400, r, v, DELTA, 0.95) for r, v in zip(found.guesses, correct, strict=True)]
    assert found.lower <= max(single)


def test_who_was_drawn_is_who_was_there_and_the_sampling_is_tested_on_them(scored):
    folder, _, planted = scored
    out = set((200 + np.flatnonzero(planted.coins == 0)).tolist())
    seen: set[int] = set()
    for public, kept in zip(
        RunFolder.open(folder, OBSERVERS).steps(), RunFolder.open(folder, OBSERVERS).internal(), strict=False
    ):
        assert public.drawn == public.rows == len(kept.members)
        seen |= set(kept.members.tolist())
    assert not seen & out
    header = RunFolder.open(folder, OBSERVERS).header
    assert (header.records, header.present, header.canaries) == (600, 600 - len(out), 400)
    found = checked(folder)
    assert found.conformance.status == "no-deviation-found"
    assert [(phase.rate, phase.noise_multiplier, phase.steps) for phase in found.phases] == [(RATE, SIGMA, STEPS)]


def test_the_json_holds_the_attack(scored, capsys):
    main(["check", str(scored[0]), "--report", "json=-"])
    (evidence,) = write(codec.load(capsys.readouterr().out).audits[0].evidence)
    assert evidence["power"] == pytest.approx(4.884, abs=1e-3)
    assert evidence["scope"]["adjacency"] == "zero-out"
    assumed = {one["name"]: one["status"] for one in evidence["assumptions"]}
    assert assumed == dict.fromkeys(("blind-training", "fair-coins", "scored-once"), "declared")


def test_an_add_remove_claim_is_not_refuted_where_constants_count_the_records(recordings):
    """A zero-out pair is an add-remove pair only if the user chose the constants."""
    leaking = recordings["leaking canaries"]
    assert checked(leaking, adjacency="add-remove", epsilon=1.0).verdict == "refuted"
    with patch.object(assumptions, "_maybe_computed", return_value="the rate may be 1 over the number of batches"):
        assert checked(leaking, adjacency="add-remove", epsilon=1.0).verdict == "open"


def test_canaries_are_scored_once_and_after_the_block(tmp_path, monkeypatch):
    model = nn.Linear(405, 1)
    with pytest.raises(UsageError, match="nothing was planted"):
        dpspec.record(tmp_path / "none", model=model).score(model, loss)
    run = dpspec.record(tmp_path / "open", model=model, planted=planted_data(0))
    with pytest.raises(UsageError, match="the block is not over"):
        run.score(model, loss)
    with run:
        run.stepped()
        with pytest.raises(UsageError, match="the block is not over"):
            run.score(model, loss)
    with pytest.raises(UsageError, match=r"records, shape \(256,\), got shape \(\)"):
        run.score(model, lambda model, batch: loss(model, batch).mean())
    with pytest.raises(UsageError, match="got float"):
        run.score(model, lambda model, batch: 1.0)
    with pytest.raises(UsageError, match="batch_size"):
        run.score(model, loss, batch_size=0)
    assert not (tmp_path / "open" / CANARIES).exists()
    run.score(model, loss)
    content = (tmp_path / "open" / CANARIES).read_bytes()
    with pytest.raises(UsageError, match="canaries are scored once"):
        run.score(model, loss)
    assert (tmp_path / "open" / CANARIES).read_bytes() == content
    broken = dpspec.record(tmp_path / "broken", model=model, planted=planted_data(0))
    with warnings.catch_warnings(), broken:
        warnings.simplefilter("ignore")
        monkeypatch.setattr(RunWriter, "write", lambda *_: 1 / 0)
        broken.stepped()
    with pytest.raises(UsageError, match="the recording came to no end"):
        broken.score(model, loss)


def test_scoring_leaves_the_model_as_it_was_and_does_without_dropout(tmp_path):
    model = nn.Sequential(nn.Linear(405, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[1].eval()
    with dpspec.record(tmp_path / "run", model=model, planted=planted_data(0)) as run:
        run.stepped()
    modes = [module.training for module in model.modules()]
    seen = []

    def watched(given, batch):
        seen.append((given.training, torch.is_grad_enabled(), len(batch[1])))
        return loss(given, batch)

    run.score(model, watched, batch_size=150)
    assert seen == [(False, False, 150), (False, False, 150), (False, False, 100)]
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.ci
def test_scores_that_are_not_numbers_are_refused(tmp_path):
    """The folder has no scores then, and another loss may score the canaries."""
    run, model, _ = train(tmp_path / "run")

    def diverged(model, batch):
        return torch.where(torch.arange(len(batch[1])) % 3 == 2, float("nan"), loss(model, batch))

    with pytest.raises(UsageError, match="132 of 400 canaries have the score NaN, canary 2 first"):
        run.score(model, diverged, batch_size=200)
    assert not (tmp_path / "run" / CANARIES).exists()
    run.score(model, loss)
    assert checked(tmp_path / "run", epsilon=2.5).verdict == "proved"


@pytest.mark.ci
def test_equal_scores_are_noted_and_keep_the_order_of_their_places(scored, tmp_path):
    run, model, planted = train(tmp_path / "run")
    run.score(model, lambda model, batch: torch.zeros(len(batch[1])))
    found, coins = checked(tmp_path / "run", epsilon=2.5), planted.coins
    expected = [int((coins[:h] == 0).sum() + (coins[400 - h :] == 1).sum()) for h in (8, 24, 72, 200)]
    assert found.canaries.correct == tuple(expected)
    note = "All 400 canaries have the same score, so the attack shows nothing"
    assert (found.exit_code, note in notes(found)) == (ExitCode.OK, True)
    assert any(note in one for one in audit_by_spec(tmp_path / "run")[1]["recording"]["cautions"])
    assert "the same score" not in notes(checked(scored[0]))


@pytest.mark.ci
@pytest.mark.parametrize(
    "way",
    [
        {},
        {"physical": 10},
        {"workers": 1},
        pytest.param({"clipping": "per_layer"}, marks=pytest.mark.slow),
        {"clipping": "ghost"},
        {"poisson": False},
        pytest.param({"reduction": "sum", "noise": 2.0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_recorder_sees_of_planted_data_what_it_sees_of_other_data(way, tmp_path):
    """Status and open channels are the same, and each contribution comes from an included record.

    Batches without sampling have one size, so that only steps with omitted canaries can be replayed at another one.
    """
    answers = []
    for name, canaries in (("plain", 0), ("planted", 60)):
        Training(**way, canaries=canaries).run(tmp_path / name)
        found = checked(tmp_path / name, epsilon=100.0)
        doubts = {one.name for one in found.assumptions if one.status == "unchecked"}
        looked = sorted(
            one.assumption for one in found.tests if one.assumption != "canaries" and one.test != REMOVED.title
        )
        answers.append((found.verdict, found.conformance.status, doubts, looked))
        drawn, rows = found.run["drawn"], found.run["rows"]
        assert np.array_equal(drawn, rows) or way.get("clipping") == "ghost"
    assert answers[0] == answers[1]
    assert found.run.header.records == 360
    assert 0 < found.run.header.left_out < 60


@pytest.mark.ci
def test_a_spec_judges_a_planted_run_and_verify_compares_its_scores(copy, monkeypatch, capsys):
    code, audit = audit_by_spec(copy)
    monkeypatch.chdir(copy.parent)
    (bound,) = [one for one in audit["findings"] if one["bound"] == "lower" and one["rigor"] == "statistical"]
    assert (code, bound["value"]) == (0, checked(copy).canaries.lower)
    assert (bound["scope"]["adjacency"], bound["scope"]["access"]) == ("zero-out", "final-model")
    assert audit["evidence"][0]["statistics"]["canaries"] == 400
    copy.rename("elsewhere")
    assert main(["verify", "result.json"]) == 7
    Path("elsewhere").rename(copy)
    (copy / CANARIES).write_bytes(b"other")
    assert main(["verify", "result.json"]) == 1
    capsys.readouterr()


# Edited folders.


def archive(content):
    written = io.BytesIO()
    np.savez(written, **{name: value for name, value in content.items() if value is not None})
    return written.getvalue()


def refused(folder, message, capsys):
    with pytest.raises(RecordingError, match=message) as error:
        checked(folder)
    assert error.value.exit_code == ExitCode.INVALID_SPEC
    assert main(["check", str(folder), "--epsilon", "2.5"]) == 3
    assert str(folder) in "".join(capsys.readouterr().err.split("\n"))


OTHER = "its coins are not those fixed before training"
SECRET = np.zeros(32, dtype=np.uint8)


@pytest.mark.family
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {**c, "coin": 1 - c["coin"]}, OTHER),
        (lambda c: {**c, "secret": SECRET}, OTHER),
        (lambda c: {**c, "secret": None}, "has no column 'secret'"),
        (lambda c: {**c, "score": c["score"] * np.nan}, "a score is NaN"),
        (lambda c: {**c, "score": c["score"][:9], "coin": c["coin"][:9]}, "has 9 canaries instead of 400"),
        (lambda c: {**c, "score": c["score"].astype(object)}, "dtype object"),
    ],
)
def test_scores_that_no_recorder_writes_are_refused(change, message, scored, tmp_path, capsys):
    with np.load(scored[0] / CANARIES) as file:
        content = change({name: file[name] for name in file.files})
    refused(rebuilt(scored[0], tmp_path / "made", scores=archive(content)), message, capsys)


@pytest.mark.parametrize(
    ("content", "changed", "message"),
    [
        (None, {"canaries": 399}, "reports 399 scored canaries"),
        (None, {"canary_seed": 6}, OTHER),
        (b"PK\x03\x04", {}, CANARIES),
    ],
)
def test_scores_that_do_not_fit_the_header_are_refused(content, changed, message, scored, tmp_path, capsys):
    content = (scored[0] / CANARIES).read_bytes() if content is None else content
    canaries = changed.pop("canaries", 400)
    made = rebuilt(
        scored[0],
        tmp_path / "made",
        lambda header, *steps: (msgspec.structs.replace(header, **changed), *steps),
        scores=content,
        canaries=canaries,
    )
    refused(made, message, capsys)


def test_withheld_or_truncated_scores_are_reported(copy, capsys):
    (copy / CANARIES).rename(copy.parent / "kept.npz")
    found = checked(copy, epsilon=2.5)
    assert (found.canaries, found.verdict, found.exit_code) == (None, "open", ExitCode.UNEXPECTED)
    main(["check", str(copy), "--epsilon", "2.5"])
    assert "the folder lacks their scores" in " ".join(capsys.readouterr().out.split())
    (copy.parent / "kept.npz").rename(copy / CANARIES)
    steps = copy / PUBLIC
    steps.write_bytes(steps.read_bytes()[:-5])
    refused(copy, "scoring was cut short", capsys)
    (copy / CANARIES).unlink()
    (copy / INTERNAL).unlink()
    main(["check", str(copy), "--epsilon", "2.5"])
    assert "400 canaries were inserted and not scored" in " ".join(capsys.readouterr().out.split())


def test_a_file_of_scores_that_was_changed_or_is_a_link_is_refused(copy, capsys):
    content = archive({"coin": np.ones(400), "score": np.ones(400), "secret": SECRET})
    (copy / CANARIES).write_bytes(content)
    refused(copy, f"{CANARIES}: its digest is not the one", capsys)
    (copy / CANARIES).unlink()
    (copy / CANARIES).symlink_to("/dev/zero")
    refused(copy, "not a regular file", capsys)


@pytest.mark.parametrize(("lower", "upper", "above"), [(2.1, 2.0, True), (2.0, 2.0, False), (2.1, None, False)])
def test_a_lower_bound_above_the_certified_one_is_a_doubt(lower: float, upper: float | None, above: bool) -> None:
    bound = CanaryBound(
        delta=DELTA,
        canaries=40,
        guesses=(20,),
        correct=(19,),
        lower=lower,
        upper=upper,
        p_value=0.01,
        final=True,
        constant=False,
        further=(),
        assumptions=(),
    )
    assert (bound.above, bound.contradicts) == (above, False)
    assert [doubt.name for doubt in doubts(bound)] == ["canaries"] * above
