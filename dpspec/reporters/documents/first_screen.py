"""The top of a page: the answer, the risk for one person, the deciding claim, next steps and untested properties."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpspec import decimals
from dpspec.contract.results import AuditResult, Result, Verdict, accepted_cautions, open_cautions
from dpspec.reporters import matrices, words
from dpspec.reporters.blocks import (
    Answer,
    Block,
    Cards,
    Drawing,
    Fold,
    Item,
    Items,
    Section,
    Sentence,
    Span,
    Text,
    items,
)
from dpspec.reporters.charts import interval_chart, people
from dpspec.reporters.deviations import next_steps
from dpspec.reporters.documents.parts import worse
from dpspec.reporters.provenance import in_short
from dpspec.reporters.risk import HighestRate, highest_rate, rate_of
from dpspec.reporters.summary import answer, missing_trials, principal, remedies_by_audit, untested
from dpspec.results.status import is_control

#: The warning of a page with all values.
INTERNAL_MARK = "Internal: this page contains values that depend on the data. Do not publish it."

#: Of more failing audits than this the remedies are folded.
_MOST_REMEDIES = 5


def name_of(result: Result) -> str:
    """The names of up to two matrices or audits, or the number of audits."""
    names = dict.fromkeys([matrix.name for matrix in result.matrices] or [audit.name for audit in result.audits])
    return ", ".join(names) if len(names) <= 2 else f"{len(result.audits)} audits"


def opening(result: Result, *, internal: bool) -> Section:
    """The first blocks of a page. ``internal``: whether to warn that values depend on the data."""
    title = (f"{name_of(result)} ", Span(result.created[:10], "quiet"))
    return Section(title, tuple(_blocks(result, internal)), level=1)


def _blocks(result: Result, internal: bool) -> Iterator[Block]:
    audits, titles = result.audits, matrices.titles(result)
    names = {matrix.name for matrix in result.matrices} or {audit.name for audit in audits}
    if len(names) == 1 and (description := audits[0].document.get("description")):
        yield Sentence(str(description), "lead")
    yield Sentence(f"Data: {in_short(result)}.", "lead")
    outcome = answer(result)
    yield Answer(outcome.headline, outcome.tone, tuple(filter(None, (outcome.detail, *result.notes))))
    if internal:
        yield Sentence(INTERNAL_MARK, "warning")
    yield from worse(result)
    decisive, highest = _claim_and_risk(audits, titles)
    cards = [Section(_risk_title(highest), tuple(_risk(highest)), kind="card")]
    if decisive is not None and (card := _decisive_claim(*decisive, result, titles)) is not None:
        cards.append(card)
    yield Cards(tuple(cards))
    if missing := missing_trials(audits):
        text = (
            f"{missing}. Run the same command again: it keeps the finished trials. Publish no number of an unfinished "
            "audit."
        )
        yield Section(_for("What is missing", "for the engineer"), (Sentence(text),))
    if groups := remedies_by_audit(audits, titles):
        title = _for("What would meet the claims: one of these", "for the engineer")
        yield Section(title, tuple(_remedies(groups)), kind="remedies")
    yield from _lists(audits, titles)


def _for(title: str, reader: str) -> Text:
    return (f"{title} ", Span(reader, "quiet"))


def _risk_title(highest: HighestRate) -> str:
    size = 1 if highest.rate is None else highest.rate.group_size
    return f"Risk for {'one person' if size == 1 else f'a group of {size}'}{highest.condition}"


def _risk(highest: HighestRate) -> Iterator[Block]:
    yield from map(Sentence, highest.caveats)
    if highest.rate is None:
        return
    title = f"{'Highest in' if highest.is_highest else 'In'} {highest.title}. " if highest.title else ""
    yield Sentence(f"{title}{highest.rate.of_hundred()}")
    yield Drawing(people(highest.rate.identified, 1))
    yield from (Sentence(rate.short) for rate in highest.larger)


def _decisive_claim(audit: AuditResult, verdict: Verdict, result: Result, titles: Sequence[str]) -> Section | None:
    """The claim with its bounds on an axis; None if no axis has room for them."""
    bounds = words.bounds(audit, verdict)
    chart = interval_chart(verdict, bounds)
    if not chart:
        return None
    sentences = []
    if verdict.quantity == "epsilon":
        sentences.append("Epsilon limits how much one person's data can change what is released: 0 is no change.")
    if bounds.upper and bounds.is_approximate:
        sentences.append("The value is an estimate without a guarantee.")
    elif bounds.attack:
        most = ", the upper bound what can be lost at most" if bounds.upper else ""
        confidence = decimals.exact(result.confidence)
        sentences.append(f"The attack shows a loss that occurred (at confidence {confidence}){most}.")
    elif bounds.upper:
        sentences.append("The upper bound is what can be lost at most.")
    title = next(title for candidate, title in zip(result.audits, titles, strict=True) if candidate is audit)
    claim = verdict.text if len(result.audits) == 1 else f"{title}: {verdict.text}"
    return Section(claim, (Sentence(" ".join(sentences)), Drawing(chart, str(bounds))), kind="card")


def _remedies(groups: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Block]:
    yield Sentence(
        "Release nothing under a claim that failed. After one of these changes a new run can prove the claims for a "
        "release."
    )
    yield Items(tuple(_changes(groups[:_MOST_REMEDIES])))
    if len(groups) > _MOST_REMEDIES:
        yield Fold(f"{len(groups) - _MOST_REMEDIES} more", (Items(tuple(_changes(groups[_MOST_REMEDIES:]))),))


def _changes(groups: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Item]:
    for title, changes in groups:
        if title:
            yield Item((Span(title, "strong"), f": {'; or '.join(changes)}"))
        else:
            yield from map(Item, changes)


def _lists(audits: Sequence[AuditResult], titles: Sequence[str]) -> Iterator[Section]:
    """Causes, cautions, and sentences that a person must confirm or accept."""
    recordings = [audit.recording for audit in audits if audit.recording]
    lists: list[tuple[Text, list[Text]]] = [
        (_for("What to fix in the training", "for the engineer"), [*_causes(audits, titles)]),
        (
            _for("Cautions: the check fails until each is fixed or accepted", "for the engineer"),
            [
                (Span(rule.name, "strong"), f": {rule.text} {rule.fix}")
                for audit in audits
                for rule in open_cautions(audit)
            ],
        ),
        (
            _for("Accepted cautions", "for the privacy officer: judge each reason"),
            [
                (Span(rule.name, "strong"), f": {rule.text} Reason: {rule.accepted}")
                for audit in audits
                for rule in accepted_cautions(audit)
            ],
        ),
        ("Notes on the recording", [note for recording in recordings for note in recording.cautions]),
        (
            _for("To confirm: this number also says that", "for the owner of the system"),
            [sentence for recording in recordings for sentence in recording.confirm],
        ),
        (
            _for("What this does not cover", "for the privacy officer: accept each, or have it tested"),
            [*untested(audits)] if audits else [],
        ),
    ]
    yield from (Section(title, (items(*dict.fromkeys(texts)),)) for title, texts in lists if texts)


#: The caveat of a risk that does not follow from the bound of the shown claim.
_OTHER_RISK = "This risk follows from other proved bounds: the bound of the shown claim gives no rate."


def _claim_and_risk(
    audits: Sequence[AuditResult], titles: Sequence[str]
) -> tuple[tuple[AuditResult, Verdict] | None, HighestRate]:
    """The claim and the risk that a page shows side by side.

    The risk follows from the claim's bound, or a caveat says that it does not. A higher risk under another scope is
    shown after it. If no claim fails, the claim is about the audit with the highest risk and its smallest groups; of
    several failures it is the one with the highest risk.
    """
    decisive, highest = principal(audits), highest_rate(audits, titles)
    if decisive is None or highest.rate is None:
        return decisive, highest
    if decisive[1].expected:
        riskiest = [a for a, title in zip(audits, titles, strict=True) if title == highest.title or len(audits) == 1]
        decisive = principal(riskiest) or decisive
        rate = rate_of(*decisive)
        if rate is None or rate.group_size > highest.rate.group_size:
            decisive = next((pair for pair in _private(riskiest) if rate_of(*pair) == highest.rate), decisive)
    elif len(audits) > 1:
        decisive = max(_alike(audits, decisive[1]), key=_order, default=decisive)  # a control is not private
    rate = rate_of(*decisive)
    if rate == highest.rate:
        return decisive, highest
    if rate is None:
        return decisive, replace(highest, caveats=(*highest.caveats, _OTHER_RISK))
    title = next(title for candidate, title in zip(audits, titles, strict=True) if candidate is decisive[0])
    elsewhere = highest.rate
    if highest.title not in ("", title):
        elsewhere = replace(elsewhere, scope=", ".join(filter(None, (highest.title, elsewhere.scope))))
    shown_title = title if highest.title else ""
    return decisive, replace(highest, rate=rate, title=shown_title, larger=(elsewhere,), is_highest=False)


def _alike(audits: Sequence[AuditResult], failed: Verdict) -> list[tuple[AuditResult, Verdict]]:
    """The private claims of all audits that failed by the same verdict."""
    alike = (failed.verdict, failed.expected)
    return [pair for pair in _private(audits) if (pair[1].verdict, pair[1].expected) == alike]


def _order(pair: tuple[AuditResult, Verdict]) -> tuple[float, float]:
    rate = rate_of(*pair)
    return (-1.0, 0.0) if rate is None else rate.order


def _private(audits: Sequence[AuditResult]) -> Iterator[tuple[AuditResult, Verdict]]:
    """The claims about privacy without controls."""
    for audit in audits:
        for verdict in audit.verdicts:
            if verdict.kind != "metric" and not is_control(audit, verdict):
                yield audit, verdict


def _causes(audits: Sequence[AuditResult], titles: Sequence[str]) -> Iterator[str]:
    """Facts of recordings, and the next steps for runs that deviate."""
    for audit, title in zip(audits, titles, strict=True):
        if audit.recording is not None:
            yield from audit.recording.faults
        for step in next_steps(audit):
            yield step if len(audits) == 1 else f"{title}: {step}"
