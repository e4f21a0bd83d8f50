"""Mistakes that the first step shows: Python warnings, so that the hours after it are not wasted."""

from collections.abc import Iterator

from dpspec_recording.folder.header import Header
from dpspec_recording.notices import notice
from dpspec_recording.watching.sampler_watch import SamplerWatch


def warn_at_first_step(header: Header, samples: SamplerWatch | None) -> None:
    """Warn once for each mistake; ``dpspec check`` reports them too.

    Args:
        header: The header of the recording.
        samples: The observer of the loader; None without one.
    """
    for text in _texts(header, samples):
        notice(f"dpspec.record: {text}", UserWarning)


def _texts(header: Header, samples: SamplerWatch | None) -> Iterator[str]:
    if header.source == "opacus" and samples is not None and not samples.drawn:
        yield (
            "the first step used no batch of the loader, so no claim will be proved: give dpspec.record the loader "
            "that the training loop iterates, as make_private returned it"
        )
    if header.accountant and not header.is_poisson and header.scheme not in ("none", "unknown"):
        yield (
            f"the loader's batches are {header.scheme}, and the accountant computes with Poisson samples: iterate the "
            "loader that make_private returned, with poisson_sampling=True"
        )
