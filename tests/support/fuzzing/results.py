"""Untrusted results and reports: read, shown in every format, compared and verified."""

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import yaml

from support.fuzzing.chance import mutate_bytes, mutate_tree, write

#: Text after the spec of bounds.
MORE = """\
  - {id: tight, kind: approx-dp, epsilon: 0.01, delta: 1e-6, expect: open}
threat_model: {group_size: [1, 2]}
"""


class Results:
    """``report``, ``diff`` and ``verify`` of a file in the format of a result or a page."""

    def warm(self, folder: Path) -> None:
        """Make results of trials and of bounds, and a hand-made one with figures."""
        from dpspec.engine.running.runner import run
        from dpspec.engine.storage.trial_store import Store
        from dpspec.language.load import load_specs
        from dpspec.registry.loader import load_catalog
        from dpspec.results import codec
        from support import counting, results, specs

        self._catalog = load_catalog()
        self.reporters = sorted(self._catalog.reporters)
        made = [results.result()]
        for text, catalog in ((counting.EXAMPLE, counting.catalog()), (specs.BOUNDS + MORE, self._catalog)):
            path = specs.written(folder, text)
            made.append(run(load_specs([path], catalog).specs, catalog, store=Store(folder / "store"), device="cpu"))
        self._base = made[0]
        self._texts = [codec.dump(result) for result in made]
        self.trees = [json.loads(text) for text in self._texts]
        for text in self._texts:  # as a page, which draws
            became = self.feed((_page(text), self.reporters.index("html")), folder)
            assert became in ("shown", "verified"), "a base is not readable"

    def case(self, chance: random.Random) -> tuple[bytes, int]:
        """Return the file's bytes, and a number that chooses the commands."""
        kind = chance.randrange(5)
        if kind == 0:
            text = mutate_bytes(chance, chance.choice(self._texts).encode())
        else:
            text = json.dumps(mutate_tree(chance, chance.choice(self.trees))).encode()
        if kind == 4:
            text = _page(text.decode("utf-8", "replace"))
            text = mutate_bytes(chance, text) if chance.randrange(2) else text
        return text, chance.randrange(1 << 16)

    def feed(self, case: tuple[bytes, int], folder: Path) -> str:
        """Read the file as the commands do, and show every readable result."""
        from dpspec.engine.verify import verify
        from dpspec.errors import DpspecError, ResultError
        from dpspec.registry.loader import resolve
        from dpspec.reporters.read_results import read_result
        from dpspec.results.diff import diff, regressions
        from dpspec.text import harmless

        data, choice = case
        write({"result.json": data}, folder)
        try:
            result = read_result(folder / "result.json")
        except ResultError:
            return "refused"
        diff(self._base, result)
        regressions(result, self._base)
        name = self.reporters[choice % len(self.reporters)]
        render = resolve(self._catalog.reporters[name].provider.render)
        shown = render(result, internal=bool(choice & 1024))  # type: ignore[operator]
        assert "<script>alert(1)" not in shown or name in _PLAIN, f"{name}: foreign text becomes markup"
        assert harmless(shown, commands=name == "github") == shown, f"{name}: a terminal or a runner obeys foreign text"
        if name in _PARSERS:
            _PARSERS[name](shown)
        try:
            verify(result, self._catalog, directory=str(folder))
        except DpspecError:
            return "shown"
        return "verified"


_PARSERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("json", "sarif"), json.loads),
    "junit": ET.fromstring,
    "registry": lambda text: list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))),
    "csv": lambda text: list(csv.reader(io.StringIO(text), strict=True)),
}

#: Formats in which markup is text.
_PLAIN = ("json", "text", "csv", "github", "sarif", "registry", "markdown", "statement", "statement-json")


def _page(text: str) -> bytes:
    from dpspec.reporters.read_results import embedded

    page = f"<!doctype html><html>{embedded(text)}</html>"
    return page.encode("utf-8", "replace")
