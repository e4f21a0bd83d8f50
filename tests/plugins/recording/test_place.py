"""The recording that a folder stands for, if a script's trainings have numbers in it."""

import pytest

from dpspec.errors import UsageError
from dpspec_recording.folder.place import the_recording


@pytest.mark.parametrize("names", [["public.log", "1"], ["part-2"], ["rank-0"], ["1", "notes.txt"], []])
def test_other_folders_stand_for_themselves(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
    assert the_recording(tmp_path) == tmp_path
    assert the_recording(tmp_path / "absent") == tmp_path / "absent"


def test_the_only_training_is_meant_and_of_several_none(tmp_path):
    (tmp_path / "3").mkdir()
    assert the_recording(tmp_path) == tmp_path / "3"
    (tmp_path / "10").mkdir()
    with pytest.raises(UsageError, match=r"has the recordings of 2 trainings, 3, 10: name one, such as .*3"):
        the_recording(tmp_path)
