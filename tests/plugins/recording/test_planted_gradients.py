"""Gradient canaries: their sums, their scores, and the resulting bounds of a run."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checked_runs import audit_by_spec, checked, run_page
from support.opacus_training import PrivateTraining, Training
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from dpspec.errors import ExitCode, UsageError
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.writer import CANARIES
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.planting.planted import MOST_COORDINATES, GradientCanaries

N, M, FEATURES = 60, 200, 400


class Made(PrivateTraining):
    """A training on N records and M gradient canaries, whose loss is multiplied by ``scale``; ``noiseless``: the step
    hook puts the sum without its noise in the place of the noisy one."""

    epochs, clip = 5, 1.0

    def __init__(self, seed, *, noise=3.0, batch=65, noiseless=False, physical=N + M, scale=1.0):
        torch.manual_seed(seed)
        self.noise, self.physical, self.scale = noise, physical, scale
        x = torch.randn(N, FEATURES)
        planted = dpspec.plant(TensorDataset(x, (x[:, 0] > 0).long()), kind="gradients", count=M, seed=seed)
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))
        self.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(planted, batch_size=batch))
        mean = self.criterion
        self.criterion = lambda scores, y: scale * mean(scores, y)
        if noiseless:
            step_hook = self.private.step_hook

            def hook(this):
                step_hook(this)
                for p in this.params:
                    p.grad = p.summed_grad / this.expected_batch_size

            self.private.attach_step_hook(hook)


def recorded(folder, seed, **options):
    made = Made(seed, **options)
    with made.recorder(folder) as run:
        made.train()
    return run, made


@pytest.mark.ci
def test_a_sound_run_shows_no_more_than_its_schedule_costs(tmp_path):
    """Five seeds; the clean attack shows something, as scores of canaries that are in are larger."""
    shown = []
    for seed in range(5):
        recorded(tmp_path / f"{seed}", seed)[0].score()
        found = checked(tmp_path / f"{seed}", epsilon=3.0, accept=("guessable-seed", "not-replayed"))
        assert found.canaries.lower <= found.costs[1].interval.upper
        assert (*found.status, found.exit_code) == ("proved", "no-deviation-found", ExitCode.OK)
        assert not found.canaries.contradicts
        shown.append(found.canaries.lower)
    assert max(shown) > 0.0


@pytest.mark.ci
@pytest.mark.parametrize(("seed", "access"), [(0, "all-iterates"), (1, "final-model")])
def test_removed_noise_is_contradicted_by_every_iterate(seed, access, tmp_path):
    """The bound of the schedule is for all iterates, and a claim about the final model depends on it too."""
    recorded(tmp_path / "run", seed, noiseless=True)[0].score()
    found = checked(tmp_path / "run", epsilon=2.5, accept=("not-replayed",))
    assert found.costs[1].interval.upper < 2.5 < found.canaries.lower
    assert found.verdict in ("refuted", "contradicted")
    assert "one run, all noisy gradients, 200 canaries of a recorded script" in found.reason
    assert "200 canaries (gradients), " in " ".join(run_page(found, 200, every=True).split())
    unreplayed = "  accept: {not-replayed: no step with gradient canaries can be replayed}\n"
    code, audit = audit_by_spec(tmp_path / "run", access=f"  access: {access}\n", training=unreplayed)
    assert (code, audit["verdicts"][0]["verdict"]) == (1, "contradicted")
    assert audit["conformance"]["status"] == "deviates"
    (evidence,) = audit["evidence"]
    scope = evidence["scope"]
    assert (scope["access"], scope["adversary"], scope["adjacency"]) == ("all-iterates", "gradient", "zero-out")


@pytest.mark.family
@pytest.mark.parametrize("physical", [N + M, 7])
def test_a_score_counts_the_steps_that_drew_a_canary(physical, tmp_path):
    """Without gradients and noise the score is clip norm * number of draws / divisor, by the log of draws.

    Also with physical batches of seven, some of them empty.
    """
    run, made = recorded(tmp_path / "run", 3, noise=0.0, physical=physical, scale=0.0)
    run.score()
    counts = np.zeros(M)
    folder = RunFolder.open(tmp_path / "run", OBSERVERS)
    for public, kept in zip(folder.steps(), folder.internal(), strict=False):
        drawn = kept.members[kept.members >= N] - N
        counts[drawn] += 1
        assert public.rows == public.drawn == len(kept.members)
        assert np.isnan(kept.largest) or 1.0 - 2e-6 <= kept.largest <= 1.0
        assert kept.sum_norm == pytest.approx(np.sqrt(len(drawn)), rel=1e-5)
    with np.load(tmp_path / "run" / CANARIES, allow_pickle=False) as file:
        coins, scores = file["coin"], file["score"]
    assert scores == pytest.approx(counts / made.private.expected_batch_size, rel=1e-5, abs=1e-9)
    assert (counts[coins == 0] == 0).all()
    assert counts[coins == 1].mean() == pytest.approx(20 * 0.25, abs=5 * np.sqrt(20 * 0.25 * 0.75 / coins.sum()))


def test_of_batches_that_were_passed_over_no_canary_enters(tmp_path):
    """With an early end of an epoch and skipped batches, each canary adds the clip norm at most once per step.

    (Opacus itself refuses to add up several Poisson batches in one step.)
    """
    made = Made(3, noise=0.0, scale=0.0)
    entered = []
    own = made.private.step_hook

    def hook(this):
        own(this)
        entered.append(float(torch.cat([p.summed_grad.reshape(-1) for p in this.params]).norm()))

    made.private.attach_step_hook(hook)
    with made.recorder(tmp_path / "run") as run:
        next(iter(made.loader))
        drawn = []
        for number, (x, y) in enumerate(made.loader):
            if number % 2:
                made.criterion(made.model(x), y).backward()
                drawn.append(run._training.samples.latest())
                made.private.step()
                made.private.zero_grad()
    assert len(entered) == 2
    assert entered == pytest.approx([np.sqrt((places >= N).sum()) for places in drawn], rel=1e-5)


@given(seed=st.integers(0, 2**63 - 1), clip=st.floats(1e-3, 1e3), count=st.integers(8, 30))
def test_directions_are_orthogonal_no_longer_than_the_clip_norm_and_follow_from_the_seed(seed, clip, count):
    def entered():
        planted = dpspec.plant([torch.zeros(1)] * 5, kind="gradients", count=count, seed=seed)
        rows = []
        parameters = [nn.Parameter(torch.zeros(6, 5)), nn.Parameter(torch.zeros(11))]
        for place in range(5, 5 + count):
            for p in parameters:
                p.summed_grad = torch.zeros_like(p)
            canaries = GradientCanaries(planted, parameters)
            assert len(canaries.enter(np.array([0, place]), clip)) == 1
            rows.append(torch.cat([p.summed_grad.reshape(-1) for p in parameters]))
        return torch.stack(rows).double()

    rows = entered()
    gram = (rows @ rows.T) / clip**2
    assert torch.allclose(gram, torch.eye(count, dtype=torch.float64), atol=3e-6)
    assert float(gram.max()) <= 1.0
    assert torch.equal(rows, entered())


def test_the_training_gets_records_alone_and_draws_the_random_numbers_that_it_drew(tmp_path):
    planted = dpspec.plant([(torch.tensor([1.0]), 0)] * 5, kind="gradients", count=8, seed=0)
    assert (len(planted), planted.count, planted.canaries) == (13, 8, [])
    assert planted.__getitems__(list(range(13))) == list(planted) == [planted[i] for i in range(5)]
    assert planted.__getitems__([-1, -13]) == planted.__getitems__([0])
    for place in (5, 12, -1):
        with pytest.raises(
            UsageError, match=f"place {place} of the planted dataset is empty, its canary is a gradient or nothing"
        ):
            planted[place]
    states = []
    for record in (False, True):
        made = Made(1)
        with made.recorder(tmp_path / "run") if record else contextlib.nullcontext():
            made.train()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ({"clipping": "ghost"}, "with ghost clipping no gradient of a single record is there"),
        ({"clipping": "per_layer"}, "with per-layer clipping no single clip norm"),
        ({"clipping": "adaptive"}, "with adaptive clipping no single clip norm"),
        ({"workers": 1}, "set num_workers=0"),
    ],
)
def test_trainings_that_they_cannot_enter_are_refused_by_name(way, why, tmp_path, monkeypatch):
    plant = dpspec.plant
    monkeypatch.setattr(dpspec, "plant", lambda data, **_: plant(data, kind="gradients", count=20, seed=0))
    made = Training(**way, canaries=20).build()
    with pytest.raises(UsageError, match=why):
        made.recorder(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loop_of_ones_own_a_second_recorder_and_a_small_model_are_refused(tmp_path):
    planted = dpspec.plant([(torch.zeros(1), 0)] * 5, kind="gradients", count=8, seed=0)
    with pytest.raises(UsageError, match="sums of a custom loop"):
        dpspec.record(tmp_path / "own", model=nn.Linear(3, 3), planted=planted)
    made = Made(0)
    with pytest.raises(UsageError, match="pass the loader over the dataset with canaries"):
        made.recorder(tmp_path / "a", loader=None, planted=planted)
    made_before = made.recorder(tmp_path / "two")
    with made.recorder(tmp_path / "one"):
        with pytest.raises(UsageError, match=r"add_noise .* was replaced"):
            made.recorder(tmp_path / "three")
        with pytest.raises(UsageError, match=r"add_noise .* was replaced"):
            made_before.__enter__()
    assert not (tmp_path / "two").exists()
    with pytest.raises(UsageError, match="8 gradient canaries need a coordinate each, and 4 are trained"):
        GradientCanaries(planted, [nn.Parameter(torch.zeros(4))])
    with pytest.raises(UsageError, match="half precision"):
        GradientCanaries(planted, [nn.Parameter(torch.zeros(40, dtype=torch.bfloat16))])
    wide = GradientCanaries(planted, [nn.Parameter(torch.zeros(8 * MOST_COORDINATES + 99))])
    assert wide.scores().tolist() == [0.0] * 8


def test_scores_are_compared_with_their_coins_and_made_once(tmp_path):
    run, made = recorded(tmp_path / "run", 0)
    with pytest.raises(UsageError, match=r"write run\.score\(\)"):
        run.score(made.model, lambda model, batch: torch.zeros(1))
    assert checked(tmp_path / "run", epsilon=3.0, accept=("not-replayed",)).verdict == "open"
    run.score()
    with pytest.raises(UsageError, match="scored once"):
        run.score()
    assert checked(tmp_path / "run", epsilon=3.0, accept=("not-replayed",)).verdict == "proved"
    made = Training(canaries=20, epochs=1).build()
    with made.recorder(tmp_path / "records") as run:
        made.train()
    with pytest.raises(UsageError, match=r"run\.score\(model, loss\)"):
        run.score()
