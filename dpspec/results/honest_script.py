"""The assumption of every recorded proof: a recording finds mistakes, not malice."""

#: Its name.
HONEST_SCRIPT = "honest-script"

#: Its statement.
HONEST_SCRIPT_TEXT = (
    "the script does not replace code of torch, Opacus or dpspec, does not write into tensors while a "
    "library's call runs, and does not act on whether it is observed"
)

#: The advice for readers who doubt it: as a backend, dpspec owns the loop.
UNTRUSTED = "In doubt, run it as a training.backend"
