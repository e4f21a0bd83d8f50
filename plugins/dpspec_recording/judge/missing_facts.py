"""Facts that the recorder always notes, and an edited recording lacks: without them, a check would be omitted."""

from collections.abc import Iterator

from dpspec.contract import Assumption
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.outcomes.outcome import missing_of
from dpspec_recording.probes.builtin import PROBES

#: The open condition and the subject of the omitted test, by the name of a missing fact.
_LACKS = {probe.name: probe.lacks for probe in PROBES if probe.lacks is not None}


def missing_facts(run: RecordedRun) -> Iterator[Assumption]:
    """Yield an open assumption for each fact that a rank or a part lacks; none for a run without an end."""
    end = run.end
    if end is None:
        return
    yield from missing_of([_LACKS[name] for name in end.lacking])
    yield from missing_of(run.all_outcomes)
