"""The pytest plugin: a marker that makes each claim of specs a test, and a fixture that checks a recorded training.

    @pytest.mark.dpspec("specs/*.yaml")
    def test_claim():
        pass


    def test_recorded_training(dpspec_check):
        train()
        dpspec_check("run", epsilon=8, delta=1e-5)

pytest imports this module at every start. Everything of dpspec is therefore imported at its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import pytest

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from dpspec.contract.results import Result
    from dpspec.results.checked_run import CheckedRun

_ARGUMENT = "_dpspec_claim"

#: The arguments of ``dpspec.run`` that the marker accepts.
_OPTIONS = ("device", "executor", "overrides", "store", "train", "workers")


class _MarkedSpecs:
    """The specs of one marker, which run together when the first of their tests runs."""

    def __init__(self, paths: list[Path], options: dict[str, Any]) -> None:
        self._paths, self._options = paths, options
        self._result: Result | None = None

    def load(self) -> list[tuple[int, str, str]]:
        """Of each claim the place of its spec, the spec's name and the claim's id, empty for a spec without a claim."""
        import dpspec
        from dpspec.api import project_catalog
        from dpspec.language.diagnostics import render

        catalog = project_catalog(self._paths, ())
        loaded = dpspec.load_specs(self._paths, catalog, self._options.get("overrides", ()))
        if not loaded.ok:
            raise pytest.Collector.CollectError(render(loaded.diagnostics, sources=loaded.sources))
        return [
            (number, spec.name, claim)
            for number, spec in enumerate(loaded.specs)
            for claim in [declared.id for declared in spec.claims] or [""]
        ]

    def failure_of(self, number: int, claim: str) -> str:
        """The verdict and the reason if the claim fails, if its audit deviates, lacks trials or has cautions."""
        import dpspec
        from dpspec.reporters import words
        from dpspec.results.redact import redact
        from dpspec.results.status import problems

        if self._result is None:
            self._result = redact(dpspec.run(self._paths, **self._options))
        audit = self._result.audits[number]
        return "\n".join(
            f"{audit.name}{f', claim {claim}' if problem.kind == 'claim' else ''}: {words.problem(audit, problem)}"
            for problem in problems(audit)
            if problem.claim in ("", claim)
        )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "dpspec(*specs, **options): a test for each claim of the spec files; options as for dpspec.run"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each claim of the specs that a marker names, relative to pytest's root folder."""
    marker = metafunc.definition.get_closest_marker("dpspec")
    if marker is None:
        return
    import glob
    from pathlib import Path

    from dpspec.errors import DpspecError

    root, paths = metafunc.config.rootpath, []
    for pattern in marker.args:
        matches = sorted(glob.glob(str(root / pattern), recursive=True))
        if not matches:
            raise pytest.Collector.CollectError(f"pytest.mark.dpspec: no spec matches {pattern!r} in {root}")
        paths += matches
    unknown = sorted(set(marker.kwargs) - set(_OPTIONS))
    if unknown or not paths:
        problem = f"unknown option {unknown[0]!r}; options: {', '.join(_OPTIONS)}" if unknown else "name spec files"
        raise pytest.Collector.CollectError(f"pytest.mark.dpspec: {problem}")
    specs = _MarkedSpecs([Path(path) for path in dict.fromkeys(paths)], dict(marker.kwargs))
    try:
        claims = specs.load()
    except DpspecError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.fixturenames.append(_ARGUMENT)
    ids = ["-".join(filter(None, (name, claim))) for _, name, claim in claims]
    metafunc.parametrize(_ARGUMENT, [(specs, number, claim) for number, _, claim in claims], indirect=True, ids=ids)


@pytest.fixture
def _dpspec_claim(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Judge the claim of a marked test, before its function is called."""
    parameters: Mapping[str, Any] = pyfuncitem.callspec.params if hasattr(pyfuncitem, "callspec") else {}
    if _ARGUMENT in parameters:
        specs, number, claim = parameters[_ARGUMENT]
        _fail(lambda: specs.failure_of(number, claim))
    return (yield)


@pytest.fixture
def dpspec_check() -> Callable[..., CheckedRun]:
    """A function with the arguments of ``dpspec.check``, which fails the test with the report unless the run passes."""

    def check(run: Any, **claim: Any) -> CheckedRun:
        __tracebackhide__ = True
        from dpspec import check
        from dpspec.reporters.summary import answer
        from dpspec.reporters.terminal import render_brief

        checked: list[CheckedRun] = []

        def report() -> str:
            checked.append(check(run, **claim))
            outcome = checked[0]
            return "" if outcome.passed else f"{answer(outcome.result).tally}\n{render_brief(outcome.result)}"

        _fail(report)
        return checked[0]

    return check


def _fail(report: Callable[[], str]) -> None:
    """Fail the test with the report, if it is not empty, or with the message of dpspec's error."""
    __tracebackhide__ = True
    from dpspec.errors import DpspecError

    try:
        message = report()
    except DpspecError as error:
        message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    if message:
        pytest.fail(message, pytrace=False)
