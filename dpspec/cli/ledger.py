"""``dpspec ledger``: all releases on one dataset, their composed epsilon, and the remaining budget."""

from __future__ import annotations

import datetime as dt
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dpspec import decimals
from dpspec.cli.arguments import Plugins, Reports, command_group, load_project, loaded_specs
from dpspec.cli.output import emit, failures_in_reports, page_width, parse_reports, write_file, write_reports
from dpspec.errors import ExitCode, LedgerError, UsageError

if TYPE_CHECKING:
    from dpspec.contract import Json, Scope
    from dpspec.contract.catalog import Catalog
    from dpspec.contract.results import AuditResult, Result
    from dpspec.engine.ledger import Entry, Evidence, Fitting

LedgerFile: TypeAlias = Annotated[Path, typer.Option("--ledger", metavar="FILE", help="The ledger, a spec in YAML.")]

Again: TypeAlias = Annotated[
    bool, typer.Option("--again", help="Enter a spec or a recording that was entered before: another release.")
]

SameData: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--same-data", help="Enter a release whose data have another digest or number of records, as of a part."
    ),
]

ledger = command_group(
    "ledger", "Add up all releases on one dataset: their certified epsilon, and the remaining budget."
)


@ledger.command("add", short_help="Enter releases, if the budget admits them.")
def add(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="Folders of recorded trainings, results (JSON or HTML), or specs (YAML) that declare a release.",
        ),
    ],
    file: LedgerFile = Path("ledger.yaml"),
    epsilon: Annotated[float | None, typer.Option(metavar="E", help="The budget of a new ledger.")] = None,
    delta: Annotated[float | None, typer.Option(metavar="D", help="The delta of a new ledger's budget.")] = None,
    rho: Annotated[float | None, typer.Option(metavar="R", help="A budget in rho (zCDP) instead of both.")] = None,
    again: Again = False,
    same_data: SameData = False,
    released: Annotated[
        bool, typer.Option("--released", help="The releases have happened: enter them also beyond the budget.")
    ] = False,
    plugins: Plugins = [],  # noqa: B006 - typer copies it
) -> int:
    """Enter releases into a ledger. Without the file, --epsilon and --delta, or --rho, begin one.

    All are entered or none. Ends with 1 if one is refused (its audit deviates, or has an open caution) or exceeds
    the budget, and then says what would fit. --released enters releases beyond the budget, and the code is 1 as well.
    """
    from dpspec.engine import ledger as ledgers
    from dpspec.engine.stated_claim import spec_name
    from dpspec.language.yaml_source import to_yaml

    begins = not file.exists()
    if any(source.exists() and source.samefile(file) for source in sources if not begins):
        raise UsageError(f"{file} is the ledger: name the releases only, and another ledger by --ledger")
    before = "" if begins else _text_of(file)
    catalog = load_project([] if begins else [file], plugins)
    if begins:
        budget = [name for name, value in (("epsilon", epsilon), ("delta", delta), ("rho", rho)) if value is not None]
        if budget not in [[*numbers] for numbers in ledgers.BUDGETS.values()]:
            raise UsageError(f"{file} does not exist: give --epsilon and --delta of its budget, or --rho alone")
        if not ((epsilon is None or epsilon > 0.0) and (delta is None or 0.0 < delta < 1.0)):
            raise UsageError("--epsilon must be above 0, and --delta above 0 and below 1")
        if rho is not None and not 0.0 < rho < math.inf:
            raise UsageError("--rho must be above 0")
        entries = [*_entries(sources, delta, catalog)]
        first = entries[0]
        document = ledgers.new_ledger(
            name=spec_name(file.stem) or "ledger",
            records=first.records,
            scope=first.scope,
            epsilon=epsilon,
            delta=delta,
            rho=rho,
        )
    else:
        if (epsilon, delta, rho) != (None, None, None):
            raise UsageError(f"{file} has a budget: change its claim, or try another one by `dpspec ledger check`")
        document, entries = _ledger_and_entries(file, (), sources, catalog)
    _require_belonging(document, entries, again=again, same_data=same_data)
    today = dt.datetime.now(dt.UTC).date()
    longer = ledgers.with_entries(document, entries, today)
    result = ledgers.judge(longer, catalog)
    if result.exit_code is not ExitCode.OK and not released:
        nothing = "Nothing was entered. If the release has happened, it counts: --released enters it."
        raise LedgerError("\n".join([*_excess(document, entries, result, catalog), nothing]))
    text = to_yaml(longer) if begins else ledgers.text_with_entries(before, entries, today)
    if (_text_of(file) if file.exists() else "") != before:  # the sum is of the text that was read
        raise UsageError(f"{file} was changed meanwhile: run the command again")
    write_file(file, text)
    for entry in entries:
        emit(_wrapped(f"entered {entry.name}: {_described(entry)}"))
    emit(_wrapped(_total(result)))
    return result.exit_code


@ledger.command("check", short_help="Compose all entries; show the remaining budget.")
def check(
    file: LedgerFile = Path("ledger.yaml"),
    epsilon: Annotated[float | None, typer.Option(metavar="E", help="Another budget than the ledger's.")] = None,
    delta: Annotated[float | None, typer.Option(metavar="D", help="Another delta than the budget's.")] = None,
    rho: Annotated[float | None, typer.Option(metavar="R", help="Another rho than the budget's.")] = None,
    planned: Annotated[
        list[Path],
        typer.Option("--with", metavar="SOURCE", help="Also count this release, as `add` would; repeatable."),
    ] = [],  # noqa: B006 - typer copies it
    again: Again = False,
    same_data: SameData = False,
    reports: Reports = [],  # noqa: B006
    plugins: Plugins = [],  # noqa: B006
) -> int:
    """Compose all entries of a ledger, and show the remaining budget. The file does not change.

    Ends with 0 if the composition is certified to be within the budget, with 1 if not. A ledger is a spec: `dpspec run`
    gives the same verdict, in every format.
    """
    from dpspec.engine import ledger as ledgers

    if not file.exists():
        raise UsageError(f"{file} does not exist: `dpspec ledger add SOURCE --epsilon E --delta D` begins it")
    catalog = load_project([file], plugins)
    report_files = parse_reports(reports, catalog, [file])
    with failures_in_reports(report_files):
        budget_changes = [
            f"claims.{ledgers.BUDGET}.{key}={value!r}"
            for key, value in (("epsilon", epsilon), ("delta", delta), ("rho", rho))
            if value is not None
        ]
        document, entries = _ledger_and_entries(file, budget_changes, planned, catalog)
        _require_belonging(document, entries, again=again, same_data=same_data)
        longer = ledgers.with_entries(document, entries, dt.datetime.now(dt.UTC).date())
        result = ledgers.judge(longer, catalog, remedies=True)
        fits = result.exit_code is ExitCode.OK
        if not any(report.to_stdout for report in report_files):
            for line in _table(longer, result):
                emit(line)
            emit(_wrapped(_total(result)))
            if fits:
                emit(_wrapped(_remaining([*ledgers.left(longer, catalog)])))
            else:
                for line in _excess(document, entries, result, catalog)[1:]:
                    emit(_wrapped(line))
    write_reports(report_files, result, internal=False)
    return result.exit_code


def _ledger_and_entries(
    file: Path, overrides: Sequence[str], sources: Sequence[Path], catalog: Catalog
) -> tuple[dict[str, Json], list[Entry]]:
    """The document of a ledger, and the entries of sources for its budget and adjacency."""
    from dpspec.engine import ledger as ledgers
    from dpspec.results.evidence_weight import claim_scope

    with loaded_specs([file], catalog, overrides) as loaded:
        spec = ledgers.ledger_of(loaded.specs, file)
    budget = ledgers.budget_of(spec)
    assert budget is not None
    entries = _entries(sources, budget.options.get("delta"), catalog, claim_scope(spec, budget))
    return spec.to_json(), [*entries]


def _entries(
    sources: Sequence[Path], delta: float | None, catalog: Catalog, claimed: Scope | None = None
) -> Iterator[Entry]:
    from dpspec.engine.ledger import entry_of, first_scope

    for source in sources:
        result = _result_of(source, delta, None if claimed is None else claimed.adjacency, catalog)
        if len(result.audits) != 1:
            names = ", ".join(audit.name for audit in result.audits)
            raise UsageError(f"{source} has {len(result.audits)} audits ({names}): give the result of the released one")
        (audit,) = result.audits
        evidence: Evidence = "run" if audit.trials else "declared"
        claimed = claimed or first_scope(audit)
        yield entry_of(audit, evidence, source.as_posix(), delta, catalog, claimed)


def _result_of(source: Path, delta: float | None, adjacency: str | None, catalog: Catalog) -> Result:
    """The result in a file, or of a recorded training, or of the bounds of a spec."""
    if source.is_dir():
        from dpspec.engine.ledger import DELTA_OF_RHO
        from dpspec.engine.preparing.providers import run_folders

        # many guarantees fit into a budget only at smaller deltas
        smaller = DELTA_OF_RHO if delta is None else 0.1 * delta
        return run_folders(catalog).judge(source, catalog, smaller, adjacency or "zero-out")
    if source.suffix in (".yaml", ".yml"):
        from dpspec.engine.ledger import bounds

        with loaded_specs([source], catalog, ()) as loaded:
            return bounds(loaded.specs, catalog)
    from dpspec.engine.verify import missing_recordings, verify
    from dpspec.reporters.read_results import read_result

    result = read_result(source)
    mismatches = verify(result, catalog)
    differing = [
        f"{mismatch.what}: {mismatch.before} is {mismatch.after}" for mismatch in mismatches if mismatch.differs
    ]
    absent = [f"the recording {folder} is not here" for _, folder in missing_recordings(result, mismatches)]
    if differing or absent:
        raise LedgerError(f"{source} does not verify: {'; '.join([*differing, *absent][:3])}")
    return result


def _require_belonging(document: dict[str, Json], entries: Sequence[Entry], *, again: bool, same_data: bool) -> None:
    from dpspec.engine.ledger import doubts

    reasons = [*doubts(document, entries, again=again, same_data=same_data)]
    if reasons:
        raise UsageError("\n".join(reasons))


def _text_of(file: Path) -> str:
    from dpspec.language.yaml_source import MAX_BYTES
    from dpspec.regular_files import read_text

    return read_text(file, MAX_BYTES)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, page_width(), subsequent_indent="  ", break_long_words=False)


#: Relative difference of deltas that is too small for any release.
_USED_UP = 1e-6

#: The words for the numbers of a release; ``rate`` 1 and ``times`` 1 are omitted.
_WORDS = {
    "sigma": "noise {}",
    "scale": "scale {}",
    "sensitivity": "sensitivity {}",
    "rate": "rate {}",
    "batch_size": "{} records a batch",
    "epsilon": "epsilon {}",
    "delta": "delta {}",
    "rho": "rho {}",
    "mu": "mu {}",
    "sample": "of sample {}",
    "times": "{} times",
}


def _in_words(release: Mapping[str, Json]) -> str:
    said = [key for key in _WORDS if key in release and (key not in ("rate", "times") or release[key] != 1)]
    numbers = [_WORDS[key].format(_number(release[key])) for key in said]
    return f"{release['kind']} ({', '.join(numbers)})" if numbers else str(release["kind"])


def _number(value: Json) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else decimals.given(float(value))


def _described(entry: Entry) -> str:
    by = f", certified by {entry.certified_by}" if entry.certified_by else ""
    return f"{'; '.join(map(_in_words, entry.releases))} [{entry.evidence}{by}]"


def _total(result: Result) -> str:
    """The verdict on the budget."""
    from dpspec.engine.ledger import BUDGET

    (audit,) = result.audits
    verdict = next(verdict for verdict in audit.verdicts if verdict.claim == BUDGET)
    if verdict.verdict == "proved":
        return f"WITHIN BUDGET: {verdict.text}. {verdict.reason}"
    certified = f"no finite {verdict.quantity} is certified"
    if verdict.upper is not None and math.isfinite(verdict.upper):
        certified = f"certified: {verdict.quantity} <= {decimals.upper(verdict.upper, against=verdict.claimed)}"
    return f"NOT WITHIN BUDGET: {verdict.text}; {certified}"


def _table(document: Mapping[str, Json], result: Result) -> Iterator[str]:
    """The entries: name, numbers, evidence, date, and the epsilon of each alone for a budget in epsilon."""
    from dpspec.engine.ledger import BUDGET

    (audit,) = result.audits
    releases = document["mechanism"]["releases"]
    alone_at = _by_release(audit, "epsilon")
    in_rho = any(verdict.claim == BUDGET and verdict.quantity == "rho" for verdict in audit.verdicts)
    shares = None if in_rho else alone_at
    yield _wrapped(
        f"{document['name']}: {len(releases)} release{'s' * (len(releases) != 1)}, adjacency "
        f"{document['threat_model']['adjacency']}, {document['data']['records']:,} records"
    )
    for number, release in enumerate(releases):
        origin = release.get("origin") or {}
        alone = f"epsilon {decimals.upper(shares[number])} alone" if shares is not None else ""
        by = f"certified by {origin['certified_by']}" if origin.get("certified_by") else ""
        assumed = f"assuming {', '.join(origin['assumes'])}" if origin.get("assumes") else ""
        details = [str(origin.get("added") or ""), str(origin.get("evidence") or "declared"), assumed, by, alone]
        yield _wrapped(f"- {release.get('name') or number}: {_in_words(release)}; {', '.join(filter(None, details))}")


def _remaining(fits: Sequence[Fitting]) -> str:
    if not fits:
        return "Left: nothing; no further release of the tried kinds fits."
    return f"Left: one more release fits, for example {', or '.join(map(_allowed, fits))}."


def _allowed(fit: Fitting) -> str:
    value = decimals.lower(fit.value) if fit.at_most else decimals.upper(fit.value)
    return f"{fit.kind} with {fit.key} {'at most' if fit.at_most else 'at least'} {value}"


def _by_release(audit: AuditResult, name: str) -> Sequence[Json] | None:
    """A column of the composition's table of its releases, which has no table if they are few or many."""
    return next((series.columns[name] for series in audit.series if series.name == "epsilon-by-release"), None)


def _spent_delta(document: Mapping[str, Json], result: Result) -> Iterator[str]:
    """Why no epsilon is finite: guarantees use up the delta of the budget."""
    (audit,) = result.audits
    budget = next((claim for claim in document["claims"] if "delta" in claim), None)
    if budget is None or any(verdict.upper is not None for verdict in audit.verdicts):
        return
    spent = math.fsum(_by_release(audit, "delta") or ())
    if spent >= budget["delta"] * (1.0 - _USED_UP):
        yield (
            f"The deltas of the entries add up to {decimals.nearest(spent)} of {decimals.exact(budget['delta'])}: "
            "nothing is left for the delta of a release with Gaussian noise, or of a zCDP guarantee."
        )


def _excess(document: Mapping[str, Json], entries: Sequence[Entry], result: Result, catalog: Catalog) -> list[str]:
    """The verdict, and with which numbers each of the entries would fit alone."""
    from dpspec.engine.ledger import fitting, judge

    lines = [_total(result), *_spent_delta(document, result)]
    if document["mechanism"]["releases"] and judge(document, catalog).exit_code is not ExitCode.OK:
        return [*lines, "Left: nothing; the entered releases exceed the budget."]
    for entry in entries:
        fits = [*fitting(document, entry, catalog)] if document["mechanism"]["releases"] else []
        if fits:
            lines.append(
                f"{entry.name} would fit alone, its other numbers unchanged: {', or '.join(map(_allowed, fits))}."
            )
    return lines
