"""``dpspec epsilon``: the table, JSON and errors."""

import json

import pytest

import dpspec as package


def test_the_table_fits_a_terminal_and_rounds_outward(dpspec):
    done = dpspec("epsilon", "--noise", 1.1, "--rate", 0.01, "--steps", 1000, "--group-size", "1,8")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    bounds = package.epsilon(noise_multiplier=1.1, rate=0.01, steps=1000, group_size=[1, 8])
    for line, lower, upper in zip(lines[3:5], bounds.lower, bounds.upper, strict=True):
        shown = [float(word) for word in line.split()[1:4:2]]
        assert shown[0] <= upper
        assert lower <= shown[1]
        assert shown[1] - shown[0] < 2e-3 * shown[1]
        assert "remove" in line


def test_a_rate_may_be_a_quotient(dpspec):
    schedule = ("epsilon", "--noise", 1.1, "--steps", 1000, "--json")
    assert dpspec(*schedule, "--rate", "600/60000").out == dpspec(*schedule, "--rate", 0.01).out
    for wrong in ("600/0", "a/b", "x"):
        done = dpspec(*schedule, "--rate", wrong)
        assert done.code == 2
        assert "such as 256/60000" in " ".join(done.err.split())


@pytest.mark.ci
def test_a_batch_size_gives_the_rate_and_epochs_the_steps(dpspec):
    sizes = ("epsilon", "--noise", 1.1, "--batch-size", 256, "--records", 60000)
    done = dpspec(*sizes, "--epochs", 10)
    assert "Poisson batches at rate 0.00426667, 2350 steps" in done.out  # the last of 235 batches is smaller
    same = dpspec("epsilon", "--noise", 1.1, "--rate", "256/60000", "--steps", 2350)
    assert same.out == done.out
    assert "2350 steps" in dpspec(*sizes, "--epochs", 10, "--sampling", "fixed").out
    table = package.epsilon(noise_multiplier=1.1, batch_size=[256, 600], records=60000, epochs=[[1], [10]])
    plain = package.epsilon(noise_multiplier=1.1, rate=[256 / 60000, 0.01], steps=[[235, 100], [2350, 1000]])
    assert table.upper.tolist() == plain.upper.tolist()


@pytest.mark.recorder
def test_the_list_of_rules_fits_a_terminal(dpspec):
    lines = dpspec("rules").out.splitlines()
    assert "  why: " in "\n".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.ci
@pytest.mark.recorder
def test_group_sizes_have_one_form_in_every_command(dpspec, tmp_path):
    (tmp_path / "history.json").write_text(json.dumps({"mechanism": "rdp", "history": [[2.0, 1.0, 3]]}))
    schedule = ("epsilon", "--noise", 2, "--rate", 1, "--steps", 3, "--json")
    for sizes in (("--group-size", "1,4,2"), ("--group-size", 1, "--group-size", "4,2")):
        groups = json.loads(dpspec(*schedule, *sizes).out)["groups"]
        assert [group["group_size"] for group in groups] == [1, 4, 2]
        audit = json.loads(dpspec("check", "--history", "history.json", *sizes, "--report", "json=-").out)["audits"][0]
        assert sorted(f["at"]["group_size"] for f in audit["findings"] if f["bound"] == "upper") == [1, 2, 4]
    assert "--group-size must be integers" in dpspec("check", "--history", "history.json", "--group-size", "x").err


def test_json_has_unrounded_ends(dpspec):
    arguments = ("--steps", 100, "--sampling", "fixed", "--batch-size", 64, "--records", 6400)
    content = json.loads(dpspec("epsilon", "--noise", 1.1, *arguments, "--json").out)
    (group,) = content["groups"]
    assert (content["batch_size"], content["records"], content["delta"]) == (64, 6400, 1e-5)
    assert "rate" not in content
    assert group["epsilon"] == [max(ends) for ends in zip(group["epsilon_remove"], group["epsilon_add"], strict=True)]
    assert 0.01 < group["true_positives_at_1_percent"][0] <= group["true_positives_at_1_percent"][1] < 1


@pytest.mark.parametrize(("target", "ends"), [(1e6, True), (1.0, False)])
def test_the_end_of_the_search_for_a_target_is_named(dpspec, target, ends):
    done = dpspec("epsilon", "--target", target, "--rate", 1, "--steps", 1)
    assert ("The search ends at noise 0.01" in done.err) is ends


def test_a_target_gives_noise_that_reaches_it(dpspec):
    arguments = ("--rate", 0.1, "--steps", 10, "--group-size", "1,3")
    done = dpspec("epsilon", "--target", 8, *arguments)
    assert max(map(len, done.out.splitlines())) <= 80
    assert len(done.out.splitlines()) <= 12
    groups = json.loads(dpspec("epsilon", "--target", 8, *arguments, "--json").out)["groups"]
    for group in groups:
        bounds = package.epsilon(noise_multiplier=group["noise"], rate=0.1, steps=10, group_size=group["group_size"])
        assert bounds.lower <= 8
        assert 7.99 < group["epsilon"][1] <= 8
    assert groups[0]["noise"] < groups[1]["noise"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--noise nan --rate 0.1 --steps 3", "--noise must be a finite number above 0, got nan"),
        ("--noise 1 --rate 2 --steps 3", "--rate must be above 0 and at most 1, got 2.0"),
        ("--noise 1 --rate 0.1 --steps 0", "--steps must be at least 1, got 0"),
        ("--noise 1 --rate 0.1 --steps 3 --delta 1", "--delta must be above 0 and below 1, got 1.0"),
        ("--noise 1 --rate 0.1 --steps 3 --group-size 1,", "--group-size must be integers with commas"),
        ("--rate 0.1 --steps 3", "--noise, --laplace or --target is required: give one"),
        ("--noise 1 --target 8 --rate 0.1 --steps 3", "--target finds the noise: remove --noise and --laplace"),
        ("--target 1e-9 --rate 1 --steps 1000000", "--target must be reachable with noise up to 1e+06"),
        ("--noise 1 --rate 1e400 --steps 3", "--rate must be above 0 and at most 1, got inf"),
        ("--noise 1 --rate 0.1", "--steps or --epochs must be set, and not both"),
        ("--noise 1 --steps 3", "--rate is required for Poisson batches, or batch_size and records"),
        ("--noise 1 --steps 3 --batch-size 6", "--records is required: batch_size and records define the batches"),
        ("--noise 1 --rate 0.1 --epochs 3", "--epochs cannot be combined with rate, which leaves the number of"),
        ("--noise 1 --rate 0.1 --steps 3 --records 9", "--rate must be removed: records define the batches"),
        ("--noise 1 --epochs 1 --batch-size 6 --records 5", "--batch-size must be at most records = 5, got 6"),
        ("--noise 1 --sampling fixed --batch-size 9 --records 9 --steps 1", "--batch-size must be at most records"),
    ],
)
def test_an_error_is_one_line_that_names_the_option(dpspec, arguments, message):
    done = dpspec("epsilon", *arguments.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("\n") == 1


def test_an_unknown_choice_lists_the_known_ones(dpspec):
    done = dpspec("epsilon", "--noise", "1", "--rate", "0.1", "--steps", "3", "--sampling", "shuffle")
    assert done.code == 2
    assert "'--sampling': 'shuffle' is not one of 'poisson', 'fixed'" in done.err


def test_a_delta_of_one_over_the_records_is_named_as_in_check_and_run(dpspec):
    schedule = ("epsilon", "--noise", "1", "--batch-size", "6", "--records", "600", "--steps", "3")
    assert "caution large-delta: delta = 0.002 is not below 1 over the 600" in dpspec(*schedule, "--delta", "2e-3").err
    assert dpspec(*schedule, "--delta", "1e-4").err == ""


def test_right_guesses_about_several_people(dpspec):
    schedule = ("epsilon", "--noise", 1, "--rate", 0.01, "--steps", 1000)
    done = dpspec(*schedule, "--targets", 100)
    assert max(map(len, done.out.splitlines())) <= 80
    shown = [line.split() for line in done.out.splitlines() if line.startswith(("on average", "except"))]
    assert [row[-2:] for row in shown] == [["58.1", "50"], ["62", "50"], ["75", "58"], ["81", "62"]]
    # the mean share is (1 + total variation) / 2, by another routine
    advantage = float(done.out.partition("16.2%")[1].rstrip("%"))
    assert 50.0 + advantage / 2.0 == pytest.approx(58.1, abs=0.06)
    content = json.loads(dpspec(*schedule, "--targets", 100, "--baseline", 0.001, "--json").out)["right_guesses"]
    assert content["of"] == "content"
    assert content["mean_share"] >= 0.001
    assert [row["right"] >= row["without_release"] for row in content["at_most"]] == [True, True, True]


def test_a_single_target_is_one_person(dpspec):
    schedule = ("epsilon", "--noise", 1.1, "--rate", 0.01, "--steps", 100, "--targets", 1)
    text = " ".join(dpspec(*schedule).out.split())
    assert "Of 1 person with one record, who takes part or not by a fair coin, an attacker" in text
    text = " ".join(dpspec(*schedule, "--baseline", 0.1).out.split())
    assert "Of 1 person with one record, which an attacker guesses with probability 0.1" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--noise", 1, "--baseline", 0.1), "needs --targets"),
        (("--noise", 1, "--targets", 3, "--group-size", "1,2"), "needs one --group-size"),
        (("--noise", 1, "--targets", 1001), "at most 1000"),
        (("--noise", 1, "--targets", 3, "--baseline", 1), "--baseline"),
        (("--laplace", 1, "--targets", 3, "--baseline", 0.1), "requires Gaussian noise"),
    ],
)
def test_targets_without_a_bound_are_refused(options, text, dpspec):
    done = dpspec("epsilon", "--rate", 0.01, "--steps", 10, *options)
    assert done.code == 2
    assert text in " ".join(done.err.split())
