"""The chain of digests: a file that was cut is read up to its last whole frame, one that was changed is not."""

from __future__ import annotations

import hashlib

import pytest

from dpspec.errors import RecordingError
from dpspec.recording.folder.run_folder import LONGEST, JournalWriter, read_frames

FIRST = hashlib.sha256(b"header").digest()
PAYLOADS = [b"one", b"", b"three" * 40]


@pytest.fixture
def journal(tmp_path):
    writer = JournalWriter(tmp_path / "a.log", FIRST)
    digests = [writer.append(kind, payload)[0] for kind, payload in enumerate(PAYLOADS, start=1)]
    writer.close()
    return tmp_path / "a.log", digests


def test_the_digest_is_that_of_the_format(journal):
    path, _ = journal
    head = b"\x03\x00\x00\x00\x01"
    digest = hashlib.sha256(FIRST + head + b"one").digest()
    assert path.read_bytes().startswith(head + b"one" + digest)


def test_a_file_cut_anywhere_reads_up_to_its_last_whole_frame(journal):
    path, _ = journal
    content = path.read_bytes()
    ends = [5 + 3 + 32, 2 * 37 + 3, len(content)]
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert len(list(read_frames(path, FIRST, "a.log"))) == sum(end <= length for end in ends)


def test_no_byte_can_be_changed_without_being_seen(journal):
    path, _ = journal
    content = path.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x41
        path.write_bytes(bytes(changed))
        told, read = "", []
        try:
            read = [f.payload for f in read_frames(path, FIRST, "a.log")]
        except RecordingError as error:
            told = str(error)
        if told:
            assert told.startswith("a.log: frame")
            continue
        # A length that now reaches beyond the end looks like a frame cut short: less is read, never anything else.
        assert read == PAYLOADS[: len(read)]
        assert len(read) < 3


def test_other_frames_are_refused_and_files_are_not_written_over(journal, tmp_path):
    path, _ = journal
    with pytest.raises(RecordingError, match="frame 1 at byte 0"):
        list(read_frames(path, hashlib.sha256(b"other").digest(), "a.log"))
    with pytest.raises(FileExistsError):
        JournalWriter(path, FIRST)
    writer = JournalWriter(tmp_path / "b.log", FIRST)
    with pytest.raises(ValueError, match="at most"):
        writer.append(1, bytes(LONGEST + 1))
    writer.close()
    (tmp_path / "huge.log").write_bytes(b"\xff\xff\xff\xff\x01" + b"0" * 64)
    with pytest.raises(RecordingError, match="at most"):
        list(read_frames(tmp_path / "huge.log", FIRST, "huge.log"))
