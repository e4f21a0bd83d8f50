"""A privacy statement to publish, as Markdown and as JSON for registries.

Its lines follow NIST SP 800-226, the reporting list of "How to DP-fy ML" (Ponomareva et al. 2023, section 5.3) and the
OpenDP Differential Privacy Deployments Registry: docs/reference/statement.md maps each line to the clauses. Controls,
which are false by design, and data-dependent values are omitted.
"""

import json
import math
from dataclasses import asdict, replace

from dpspec import decimals
from dpspec.contract import Finding, Json
from dpspec.contract.results import AuditResult, Result, Verdict
from dpspec.reporters import disclosures, words
from dpspec.reporters.provenance import DATA_DIGEST, command, of_audit, of_judgement
from dpspec.reporters.summary import answer
from dpspec.results.evidence_weight import proven_curves
from dpspec.results.status import accepted_cautions, claim_block, open_cautions
from dpspec.results.void_bounds import for_readers
from dpspec.text import markdown
from dpspec.version import VERSION

#: The version of the JSON.
SCHEMA = "dpspec/statement/v1"

#: The maximum probability with which a curve may be below its Gaussian fit.
_MOST_FLOOR = 1e-3


def render(result: Result, *, internal: bool = False) -> str:
    """A published statement has no data-dependent value, so ``internal`` has no effect."""
    lines: list[str] = []
    result = for_readers(result)
    for audit in result.audits:
        lines += [f"# Privacy statement: {markdown(audit.name)}", ""]
        outcome = answer(replace(result, audits=(audit,)))
        lines += [f"**{markdown(outcome.headline)}.** {markdown(outcome.detail)}".rstrip(), ""]
        if description := audit.document.get("description"):
            lines += [markdown(str(description)), ""]
        if stated := disclosures.guarantees(audit):
            lines.append("| Claim | Statement | Verdict | Bounds | Rigor of the upper bound | Source |")
            lines.append("|---|---|---|---|---|---|")
            for verdict, upper in stated:
                origin = ("none", "none") if upper is None else (words.rigor(upper), f"{upper.method}; {upper.source}")
                cells = (
                    *(verdict.claim, verdict.text, words.headline(audit, verdict), str(words.bounds(audit, verdict))),
                    *origin,
                )
                lines.append(f"| {' | '.join(map(markdown, cells))} |")
            lines.append("")
        for rule in open_cautions(audit):
            lines.append(f"- **Open caution {markdown(rule.name)}**: {markdown(f'{rule.text} {rule.why} {rule.fix}')}")
        for rule in accepted_cautions(audit):
            lines.append(f"- {markdown(words.sentence(words.accepted(rule)))}")
        lines += [""] if lines[-1] else []
        if facts := [f"{text}." for text in curves_of(audit)]:
            lines += [*(f"- {markdown(text)}" for text in facts), ""]
        lines += ["| Subject | Coverage | |", "|---|---|---|"]
        for line in disclosures.lines(result, audit):
            lines.append(f"| {line.name} | **{line.coverage}** | {markdown(line.text)} |")
        lines.append("")
        if assumed := list(disclosures.assumptions(audit)):
            lines += ["The bounds hold under these assumptions:", ""]
            lines += [f"- {markdown(f'{name} ({status}): {text}')}" for name, status, text in assumed]
            lines.append("")
        lines += [
            "checked: a bound or a test of this audit carries the line. observed: the recording saw it. declared: the",
            "publisher or the spec states it. not met: a test rejects it. not covered: it is not stated.",
            "",
            f"Made by dpspec {VERSION} from the result of {markdown(result.created)}; spec digest "
            f"{markdown(audit.digest[:16])}.",
            "",
        ]
    return "\n".join(lines)


def render_json(result: Result, *, internal: bool = False) -> str:
    """The same as JSON, for registries and catalogs. No data-dependent value: ``internal`` has no effect."""
    result = for_readers(result)
    document = {
        "schema": SCHEMA,
        "dpspec": VERSION,
        "created": result.created,
        "statements": [_statement(replace(result, audits=(audit,)), audit) for audit in result.audits],
    }
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _statement(result: Result, audit: AuditResult) -> dict[str, Json]:
    outcome = answer(result)
    cautions = [*open_cautions(audit), *accepted_cautions(audit)]
    private = not disclosures.has_public_data(audit)
    rows = [*of_audit(audit), *of_judgement(result)]
    return {
        "name": audit.name,
        "passed": outcome.passed,
        "exit_code": int(outcome.exit_code),
        "headline": outcome.headline,
        "detail": outcome.detail,
        "description": str(audit.document.get("description") or ""),
        "claims": [_claim(audit, verdict, upper) for verdict, upper in disclosures.guarantees(audit)],
        "curves": curves_of(audit),
        "cautions": [asdict(rule) for rule in cautions],
        "lines": [
            {**asdict(line), "clauses": disclosures.CLAUSES[line.key]} for line in disclosures.lines(result, audit)
        ],
        "assumptions": [
            {"name": name, "status": status, "text": text} for name, status, text in disclosures.assumptions(audit)
        ],
        "provenance": {term: text for term, text in rows if not (private and term == DATA_DIGEST)},
        "spec_digest": audit.digest,
        "command": list(command(result)),
    }


def _claim(audit: AuditResult, verdict: Verdict, upper: Finding | None) -> dict[str, Json]:
    block = claim_block(audit, verdict)
    numbers = {key: value for key, value in block.items() if isinstance(value, int | float) and type(value) is not bool}
    return {
        "id": verdict.claim,
        "kind": verdict.kind,
        "text": verdict.text,
        "parameters": numbers,
        "verdict": words.headline(audit, verdict),
        "expected": verdict.expected,
        "quantity": verdict.quantity,
        "upper": _number(verdict.upper),
        "lower": _number(verdict.lower),
        "bounds": str(words.bounds(audit, verdict)),
        "rigor": None if upper is None else upper.rigor,
        "method": None if upper is None else upper.method,
        "source": None if upper is None else upper.source,
    }


def _number(value: float | None) -> Json:
    return value if value is None or math.isfinite(value) else str(value)


def curves_of(audit: AuditResult) -> list[str]:
    """Each proved curve as mu of Gaussian differential privacy, with the regret of this approximation."""
    from dpspec.accounting import fit_gdp

    sentences = []
    for curve in () if audit.conformance.status == "deviates" else proven_curves(audit):
        mu, regret, floor = fit_gdp(curve.polygon)
        if math.isfinite(mu) and floor < _MOST_FLOOR:
            but = f", except with probability {decimals.upper(floor)}" if floor else ""
            sentences.append(
                f"The proved curve{words.curve(curve) or f', single {disclosures.unit(audit)}s'}: "
                f"mu-GDP with mu at most {decimals.upper(mu)}{but}. "
                f"This approximation loses at most {decimals.upper(regret)} (regret)"
            )
    return sentences
