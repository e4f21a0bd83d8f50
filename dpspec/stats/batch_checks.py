"""Checks of the batches that the backend says it drew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.contract import Check, FrozenMap
from dpspec.stats import checking, sampling


def sampling_log(phase: FrozenMap, number: int, logs: Sequence[FrozenMap]) -> Iterator[Check]:
    """The batches of one phase: rate, sizes, inclusions per record, and independence across steps."""
    logs = [log for log in logs if log["batches"][number]["steps"]]  # a run that ended early is told of by its steps
    if not logs:
        return
    scheme, where = phase["sampling"]["scheme"], f"phase {number + 1}"
    batches = [log["batches"][number] for log in logs]
    if scheme == "poisson":
        rate = float(phase["sampling"]["rate"])
        chances = sum(log["records"] * batch["steps"] for log, batch in zip(logs, batches, strict=True))
        included = sum(batch["total"] for batch in batches)
        yield checking.check("sampling", sampling.inclusions(included, chances, rate), "reported", f"rate, {where}")
        tested = list(zip(logs, batches, strict=True))
        sizes = [sampling.batch_variance(b["steps"], b["total"], b["squares"], g["records"], rate) for g, b in tested]
        yield checking.worst("sampling", sizes, "reported", f"variance of the batch size, {where}")
        even = [
            sampling.record_spread(g["records"], b["total"], b["spread"], b["steps"], rate)
            for g, b in tested
            if "spread" in b
        ]
        if even:
            yield checking.worst("sampling", even, "reported", f"inclusions per record, {where}")
        yield from _overlaps(batches, [rate] * len(batches), where)
        return
    records = [int(log["records"]) for log in logs]
    size = int(phase["sampling"]["batch_size"]) if scheme == "fixed" else records[0]
    same = [size if scheme == "fixed" else n for n in records]
    right = all(
        b["total"] == n * b["steps"] and b["squares"] == n * n * b["steps"] for b, n in zip(batches, same, strict=True)
    )
    realised = batches[0]["total"] / batches[0]["steps"]
    note = f"batch size, {where}"
    yield checking.exact("sampling", "batch sizes", "reported", right, size, realised, note)
    if scheme == "fixed":
        yield from _overlaps(batches, [size / n for n in records], where)


def _overlaps(batches: Sequence[FrozenMap], rates: Sequence[float], where: str) -> Iterator[Check]:
    found = [
        sampling.overlap(lag, common, chances, rate)
        for batch, rate in zip(batches, rates, strict=True)
        if 0.0 < rate < 1.0
        for lag, common, chances in batch.get("overlaps", ())
        if chances
    ]
    if found:
        yield checking.worst("sampling", found, "reported", f"independence across steps, {where}")


def repeats(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    """No record stands in a batch twice."""
    if logs:
        found = sum(log.get("repeats", 0) for log in logs)
        test = "records drawn twice into one batch"
        yield checking.exact("sampling", test, "reported", found == 0, 0, found, detectable=None)
