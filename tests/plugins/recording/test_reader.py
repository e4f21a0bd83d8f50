"""The folder: one recorder alone, readable up to the step where its writer was killed, refused if it was changed."""

import os
import random
import resource
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.checked_runs import Question, check_run, checked
from support.edited_logs import edit, payloads, write_payloads
from support.plain_loop import plain_loop, rebuilt
from torch import nn

import dpspec
from dpspec.cli.app import main
from dpspec.errors import DpspecError, RecordingError, UsageError
from dpspec_recording.folder.events import LONGEST, InternalStep, PublicStep, Stopped, encode
from dpspec_recording.folder.facts import Facts, read_facts
from dpspec_recording.folder.reader import RunFolder, _require_sane, read_log
from dpspec_recording.folder.writer import INTERNAL, PUBLIC, LogWriter
from dpspec_recording.judge.recorded_run import _summed_norms
from dpspec_recording.observers.all import OBSERVERS


@pytest.fixture
def sound(recordings):
    return recordings["custom loop"]


def test_a_second_recorder_of_a_folder_is_refused_while_the_first_writes_and_after(tmp_path):
    model = nn.Linear(2, 2)
    first, second = (dpspec.record(tmp_path / "run", model=model) for _ in range(2))
    with first as run:
        with pytest.raises(UsageError, match="already holds a recording, or another recorder writes there"):
            second.__enter__()
        run.stepped()
    with pytest.raises(UsageError, match="already holds a recording"):
        dpspec.record(tmp_path / "run", model=model).__enter__()
    assert len(list(RunFolder.open(tmp_path / "run", OBSERVERS).steps())) == 2


def test_a_folder_of_something_else_and_the_loader_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 2)), batch_size=2)
    before = type(loader.batch_sampler)
    with pytest.raises(UsageError, match=r"already holds thesis.tex"):
        dpspec.record(tmp_path, model=nn.Linear(2, 2), loader=loader).__enter__()
    assert type(loader.batch_sampler) is before
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="is not a folder"):
        dpspec.record(tmp_path / "thesis.tex", model=nn.Linear(2, 2)).__enter__()


@pytest.mark.ci
def test_a_recording_without_its_internal_part_says_so(recordings, tmp_path):
    recordings.copy("custom loop", tmp_path / "run")
    (tmp_path / "run" / INTERNAL).unlink()
    checked = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0, accept=("not-replayed",)))
    assert checked.verdict == "open"
    assert "per-record-clipping" in checked.reason or "sampling" in checked.reason
    assert {one.name for one in checked.assumptions if one.status == "unchecked"} == {
        "sampling",
        "per-record-clipping",
        "model-state",
    }


def test_a_killed_recording_is_open(tmp_path):
    plain_loop(tmp_path / "run", steps=2, killed=True)
    without_end = checked(tmp_path / "run", epsilon=100.0)
    assert without_end.verdict == "open"
    assert "has no end after step" in without_end.doubts


def test_an_internal_part_of_another_run_is_refused(tmp_path):
    for seed in (1, 2):
        plain_loop(tmp_path / f"{seed}", 1, seed=seed)
    shutil.copy(tmp_path / "2" / INTERNAL, tmp_path / "1")
    with pytest.raises(RecordingError, match=r"internal.log: of another recording than .*public.log"):
        check_run(tmp_path / "1", Question())


def fuzzed(content, chance):
    """Write an edited file."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        kind = chance.choice(("flip", "cut", "insert", "repeat", "fill"))
        place = chance.randrange(len(data) + 1)
        if kind == "flip" and place < len(data):
            data[place] = chance.randrange(256)
        elif kind == "cut":
            del data[place : place + chance.randint(1, 60)]
        elif kind == "insert":
            data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 20)))
        elif kind == "repeat":
            data[place:place] = data[max(0, place - 80) : place]
        elif kind == "fill":
            data[place : place + 8] = b"\xff" * 8
    return bytes(data)


@pytest.mark.ci
def test_a_fuzzed_folder_is_read_or_refused_by_an_error_of_ours(sound, tmp_path):
    chance = random.Random(20)
    sound = {name: (sound / name).read_bytes() for name in (PUBLIC, INTERNAL)}
    target = tmp_path / "changed"
    target.mkdir()
    refused = []
    for _ in range(250):
        for name, content in sound.items():
            (target / name).write_bytes(content)
        name = chance.choice(list(sound))
        (target / name).write_bytes(fuzzed(sound[name], chance))
        try:
            check_run(target, Question(delta=1e-5, epsilon=1.0))
        except DpspecError as error:
            refused.append(error)
    assert all(str(target) in str(error) for error in refused)
    assert sum(error.exit_code == 3 for error in refused) > 180


HOSTILE = {
    "layers": lambda h, p, i: (replace(h, layers=(("0.weight", 2**47), ("0.bias", 1))), p, i),
    "rates": lambda h, p, i: (h, [replace(s, rate=1e-300 * (1 + s.step % 2)) for s in p], i),
    "noise": lambda h, p, i: (h, [replace(s, noise_squares=1e308, deviation=1e-300) for s in p], i),
    "one-noise": lambda h, p, i: (h, [replace(s, noise_squares=5e-324 if s.step == 4 else 1.0) for s in p], i),
    "divisors": lambda h, p, i: (h, [replace(s, measured_divisor=5e-324) if s.step == 1 else s for s in p], i),
    "factors": lambda h, p, i: (h, [replace(s, measured_divisor=(-1) ** s.step * 2e-307) for s in p], i),
    "infinite": lambda h, p, i: (h, [replace(s, noise_multiplier=float("inf"), deviation=float("inf")) for s in p], i),
    "norms": lambda h, p, i: (h, p, [replace(s, largest=-1e308, sum_norm=float("inf")) for s in i]),
    "many-noises": lambda h, p, i: (h, [replace(s, noise_multiplier=0.5 + 1e-3 * s.step) for s in p], i),
    "accountant": lambda h, p, i: (replace(h, accountant="\x1b[31mrdp", told_before=2**53), p, i),
}


#: Not refused, so that groups of three are bounded.
BOUNDED = ("layers", "many-noises")


@pytest.mark.family
@pytest.mark.parametrize(
    "change", [pytest.param(HOSTILE[name], marks=[pytest.mark.ci] * (name in BOUNDED), id=name) for name in HOSTILE]
)
def test_impossible_numbers_are_answered_or_refused_in_bounded_memory(change, sound, tmp_path, capsys):
    made = rebuilt(sound, tmp_path / "made", change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = main(["check", str(made), "--epsilon", "1", "--group-size", "3"])
    assert code in (1, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000
    printed = capsys.readouterr()
    assert "\x1b[31m" not in printed.out
    assert "bug" not in printed.err


def test_facts_that_no_recorder_writes_are_refused(sound, tmp_path, capsys):
    noted = next(one.written() for one in RunFolder.open(sound, OBSERVERS).steps() if isinstance(one, Facts))
    facts = {name: msgspec.msgpack.decode(fact) for name, fact in noted.observed.items()}
    others = [
        {"gradients": {"steps": 1, "summed": 1, "different": 1, "hidden": 2**64 - 1}},
        {"gradients": [1, 1, 1, 0.0]},
        {"batches": {"unused": -1, "passed_over": 0}},
        {"model_state": {**facts["model_state"], "buffers": [[]] * 1000}},
        {"accountant": {"history": [["a", {}, []]]}},
    ]
    never_none = ("parameters", "other_engines", "model_state")
    for number, other in enumerate([*others, *({name: None} for name in never_none)]):
        made = rebuilt(sound, tmp_path / f"{number}", end=other)
        assert main(["check", str(made), "--epsilon", "1"]) == 3
        assert f"{made}" in "".join(capsys.readouterr().err.split("\n"))
    for absent, probe in {probe.name: probe for probe in OBSERVERS if probe.name in never_none}.items():
        others = {name: fact for name, fact in noted.observed.items() if name != absent}
        with pytest.raises(RecordingError, match=f"{absent}: Expected `object`"):
            read_facts(msgspec.structs.replace(noted, observed=others), "here", [probe])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rate", float("nan"), r"Expected `float` >= 0.0 - at `\$.header.rate`"),
        ("records", -1, r"Expected `int` >= 1 - at `\$.header.records`"),
        ("layers", [["a", -1]], r"at `\$.header.layers"),
        ("notes", ["a" * 500], r"length <= 400 - at `\$.header.notes"),
        ("versions", {"a": 1}, r"at `\$.header.versions"),
        ("canaries", 600, "canaries times copies"),
        ("left_out", 500, "left_out must be at most"),
    ],
)
def test_the_header_is_read_key_by_key(key, value, message, sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "run")
    edit(copy / PUBLIC, lambda event: event.get("header", {}).update({key: value}))
    with pytest.raises(DpspecError, match=rf"public\.log: event 1 at byte 0: .*{message}") as error:
        RunFolder.open(copy, OBSERVERS)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("version", [0, 20, 22])
def test_other_formats_are_refused_by_their_number(version, sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "run")
    edit(copy / PUBLIC, lambda event: event.update(format=version) if event["event"] == "start" else None)
    with pytest.raises(RecordingError, match=rf"public\.log: format {version} is of another version of dpspec"):
        RunFolder.open(copy, OBSERVERS)


def test_folders_of_earlier_formats_must_be_recorded_again(tmp_path):
    (tmp_path / "run.json").write_text('{"dpspec-run": 20}')
    with pytest.raises(RecordingError, match="a recording of an earlier version of dpspec: record again"):
        RunFolder.open(tmp_path, OBSERVERS)
    with dpspec.record(tmp_path, model=nn.Linear(2, 2), overwrite=True):
        assert not (tmp_path / "run.json").exists()


def test_keys_of_later_formats_are_ignored(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "run")
    for name in (PUBLIC, INTERNAL):
        edit(copy / name, lambda event: event.update(later=[1]))
    found = RunFolder.open(copy, OBSERVERS)
    assert len(list(found.steps())) == len(list(RunFolder.open(sound, OBSERVERS).steps()))
    assert found.states() == RunFolder.open(sound, OBSERVERS).states()


@pytest.mark.parametrize(
    "order",
    [lambda e: [*e, e[1]], lambda e: [*e, e[-1]], lambda e: [e[0], e[2], *e[2:]], lambda e: [e[0], e[0], *e[1:]]],
    ids=["step after the end", "two ends", "step twice", "two starts"],
)
def test_events_in_another_order_are_refused(order, sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "run")
    write_payloads(copy / PUBLIC, order(payloads(copy / PUBLIC)))
    with pytest.raises(RecordingError, match=r"public\.log: event \d+ at byte \d+: "):
        list(RunFolder.open(copy, OBSERVERS).steps())


@pytest.mark.parametrize("content", [b"", b"\x93", b"\xc1", b"\x91" * 100_000, b"\x81\xa5event\x01"])
def test_bytes_that_are_no_event_are_refused_with_their_place(content, sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "run")
    first, *others = payloads(copy / PUBLIC)
    write_payloads(copy / PUBLIC, [first, content, *others])
    for read in (lambda found: list(found.steps()), lambda found: found.weights):
        with pytest.raises(RecordingError, match=r"public\.log: event 2 at byte \d+: "):
            read(RunFolder.open(copy, OBSERVERS))


def test_pipes_and_links_are_not_followed(tmp_path):
    plain_loop(tmp_path / "run", steps=1)
    (tmp_path / "run" / PUBLIC).unlink()
    os.mkfifo(tmp_path / "run" / PUBLIC)
    assert main(["check", str(tmp_path / "run")]) == 3
    (tmp_path / "run" / PUBLIC).unlink()
    (tmp_path / "run" / PUBLIC).symlink_to("/dev/zero")
    assert main(["check", str(tmp_path / "run")]) == 3


@pytest.mark.parametrize(("make", "code"), [(lambda p: None, 2), (Path.mkdir, 3), (Path.touch, 2)])
def test_what_is_no_folder_of_a_run_is_said(make, code, tmp_path, capsys):
    make(tmp_path / "run")
    assert main(["check", str(tmp_path / "run")]) == code
    assert str(tmp_path / "run") in capsys.readouterr().err


def test_a_recording_without_a_step_has_nothing_to_check(tmp_path, capsys):
    with dpspec.record(tmp_path / "run", model=nn.Linear(2, 2)):
        pass
    assert main(["check", str(tmp_path / "run")]) == 5
    assert "never stepped" in capsys.readouterr().err


EVENTS = [Stopped(reason="one"), Stopped(reason=""), Stopped(reason="three" * 40)]


@pytest.fixture
def log(tmp_path):
    writer = LogWriter(tmp_path / "a.log")
    for event in EVENTS:
        writer.append(event)
    writer.close()
    return tmp_path / "a.log"


def test_a_file_cut_anywhere_reads_up_to_its_last_whole_event(log):
    content = log.read_bytes()
    ends = np.cumsum([8 + len(encode(event)) for event in EVENTS])
    assert ends[-1] == len(content)
    for length in range(len(content)):
        log.write_bytes(content[:length])
        assert len(list(read_log(log))) == sum(end <= length for end in ends)


def test_a_changed_event_is_refused(log):
    changed = bytearray(log.read_bytes())
    changed[30 + len(encode(EVENTS[0]))] ^= 0x41
    log.write_bytes(bytes(changed))
    with pytest.raises(RecordingError, match=r"a\.log: event 2 at byte \d+: its checksum does not match"):
        list(read_log(log))


def test_long_events_are_refused_and_files_are_not_written_over(log, tmp_path):
    with pytest.raises(FileExistsError):
        LogWriter(log)
    writer = LogWriter(tmp_path / "b.log")
    with pytest.raises(ValueError, match="at most"):
        writer.append(bytes(LONGEST + 1))
    writer.close()
    (tmp_path / "huge.log").write_bytes(b"\xff\xff\xff\xff\x01" + b"0" * 64)
    with pytest.raises(RecordingError, match="at most"):
        list(read_log(tmp_path / "huge.log"))


def test_a_missing_log_is_named(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "run")
    (copy / PUBLIC).unlink()
    with pytest.raises(RecordingError, match=r"has no public\.log"):
        RunFolder.open(copy, OBSERVERS)


@pytest.mark.parametrize("name", ["rate", "told_rate"])
def test_subnormal_numbers_are_refused(name):
    _require_sane(PublicStep(step=1, **{name: 0.0}))
    with pytest.raises(ValueError, match=name):
        _require_sane(PublicStep(step=1, **{name: 5e-324}))


@pytest.mark.parametrize("divisor", [0.0, -64.0])
def test_a_divisor_is_above_0(divisor: float) -> None:
    _require_sane(PublicStep(step=1, divisor=5e-324))
    with pytest.raises(ValueError, match="divisor must be above 0"):
        _require_sane(PublicStep(step=1, divisor=divisor))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 9, 50])
def test_the_bound_on_summed_norms(rows):
    norms = torch.rand(rows, dtype=torch.float64)
    quartiles = torch.quantile(norms, torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)) if rows else [0.0] * 4
    named = dict(zip(("lower", "middle", "upper", "largest"), map(float, quartiles), strict=True))
    bound = _summed_norms(InternalStep(step=1, **named), float(rows))
    assert float(norms.sum()) <= bound + 1e-12 <= rows + 1e-9


@pytest.mark.ci
def test_a_sum_must_not_be_longer_than_the_reported_norms(tmp_path, sound):
    question = Question(delta=1e-5, epsilon=100.0, accept=("not-replayed",))
    assert check_run(sound, question).verdict == "proved"
    plain_loop(tmp_path / "run", 12, norm=1e-9)
    found = check_run(tmp_path / "run", question)
    assert found.verdict == "open"
    channel = found.channel("sensitivity")
    assert channel.status == "violated"
