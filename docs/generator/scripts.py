"""The page of the names that ``dpspec record`` replaces or hooks."""

from dpspec_recording.scripts.patched_names import PATCHED_NAMES
from generator.markdown import table, tidy

HEAD = """# Names that `dpspec record` replaces

While [a script is recorded](../how-to/record-a-script.md), these public names of libraries are replaced or hooked, and
no others. A replaced method calls the original one with the same arguments and returns its result. torch and Opacus are
patched when the script imports them; dpspec does not import them first. The end of the script undoes all of it.
"""


def page() -> str:
    """A row for each name."""
    rows = [
        (f"`{name.package}.{name.name}`", "replaced" if name.is_replaced else "called, for a hook", name.purpose)
        for name in PATCHED_NAMES
    ]
    return tidy("\n".join([HEAD, *table(("name", "how", "what the recorder learns"), rows)]))
