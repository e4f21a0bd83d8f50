"""Every script of ``tests/e2e/scripts``: what a recording adds to it, what is said of it, and what finds each break.

    python tests/campaigns/team_scripts.py [--only opacus_tabular] [--repeats 3]

For each script the lines that a recording adds, what ``dpspec check`` says of it, the time of the process with and
without a recorder (of one thread, the least of several runs, trained in turn), what is kept, and for each break the
check that finds it, with how many others do. Scripts whose libraries are not installed are named. These models are
small, so that the recorder's share of a step is larger than of a network worth training:
``tests/benchmarks/recording.py`` measures that. Ends with 1 where a break that can be found was not, or a sound script
is not proved.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from support.attacks import spec_at
from support.checked_runs import CheckedRun, Question, check_run, run_page
from support.team_scripts import EXTRAS, FAULTS, RECORDED, SCRIPTS, load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.running.runner import run as run_specs
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog

SCORES = SCRIPTS.parents[2] / "specs" / "attacks" / "scores.yaml"

#: How the script that only writes scores is broken, and whether its table can show it.
OF_SCORES = {
    "noise-forgotten": True,
    "clip-skipped": True,
    "noise-on-the-mean": True,
    "coins-leaked": True,
    "one-coin-leaked": False,
}

#: Why a break cannot be found by what looks at it.
UNSEEN = {
    "one-coin-leaked": "one guess more that is right among a thousand is what luck gives; blind-scores is declared",
    "private-normalisation": "one run does not show where its records were prepared",
}

#: Names that only a recording brings into a script.
_OURS = {"dpspec", "run", "recording"}


def added(name: str) -> list[str]:
    """The statements of a script that are there for the recording alone, each by its first line."""
    source = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    return [source.splitlines()[node.lineno - 1].strip() for node in _added(ast.parse(source))]


def _added(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = any(one.name == "dpspec" for one in node.names)
        elif isinstance(node, ast.With):
            ours = any(_calls(item.context_expr) for item in node.items)
        else:
            ours = isinstance(node, ast.Expr | ast.Assign) and _calls(node.value)
        if ours and isinstance(node, ast.stmt):
            yield node


def _calls(node: ast.expr) -> bool:
    """Whether an expression is one that a recording needs: a call of the recorder's, or the recorder itself."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return isinstance(node, ast.Name) and node.id in _OURS


def seconds(script: ModuleType, repeats: int, **options: Any) -> tuple[float, float]:
    """Of the process, without a recorder and with one: the least of several runs."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for name, where in (("without", None), ("with", Path(folder) / "run")):
                begun = time.process_time()
                script.main(where, **options)
                times[name].append(time.process_time() - begun)
    return min(times["without"]), min(times["with"])


def checked(script: ModuleType, fault: str = "", **options: Any) -> tuple[CheckedRun, int, int]:
    """What is said of a run, the parameters that the recorder kept a copy of, and the bytes of the folder."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        model, _ = script.main(where, fault, **options)
        kept = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        size = sum(path.stat().st_size for path in where.iterdir())
        return check_run(where, Question(delta=1e-5, epsilon=4.0)), kept, size


def found_by(found: CheckedRun, assumption: str, words: str) -> str:
    """The check that should be rejected, and how many others are; "" where it is not."""
    bad = [check for check in found.checks if rejected(check, len(found.checks))]
    told = [one for one in bad if one.assumption == assumption and words in f"{one.test} {one.note}"]
    if not told:
        return ""
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    note = f" ({told[0].note})" if told[0].note else ""
    return f"{assumption}: {told[0].test}{note}{more}"


def of_recorded(name: str, repeats: int, **options: Any) -> bool:
    """Tell of one script; whether all is as it should be."""
    script = load(name)
    lines = added(name)
    found, kept, size = checked(script, **options)
    without, recorded = seconds(script, repeats, **options)
    page = [line.strip() for line in run_page(found, 120).splitlines()]
    print(f"\n{name}{''.join(f' ({value})' for value in options.values())}")
    print(f"  lines added    {len(lines)}: {'; '.join(lines)}")
    print(f"  dpspec check   {' '.join(page[: page.index('Executed run') - 1])}")
    more, each = 1e3 * (recorded - without) / found.run.steps, size / found.run.steps
    print(f"  time           {without:.2f} s without, {recorded:.2f} s with: {more:.1f} ms more a step")
    print(f"  memory         {kept / 1e3:.0f} kB of parameters are kept; the folder has {each:.0f} bytes a step")
    right = found.fine
    for of, fault, assumption, words in FAULTS:
        if of == name:
            told = found_by(checked(script, fault, **options)[0], assumption, words)
            right = right and bool(told)
            print(f"  {fault:25} {told or 'NOT FOUND'}")
    return right


def of_scores() -> bool:
    """The script that only writes scores, by the spec that ships with dpspec."""
    lines = len([line for line in SCORES.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")])
    print(f"\nnumpy_scores\n  lines added    0: the script writes a table, and a spec of {lines} lines names it")
    right = True
    catalog = load_catalog()
    for fault, seen in {"": True, **OF_SCORES}.items():
        with tempfile.TemporaryDirectory() as folder:
            load("numpy_scores").main(Path(folder) / "scores.csv", 1, fault)
            (Path(folder) / "scores.yaml").write_text(SCORES.read_text(encoding="utf-8"), encoding="utf-8")
            store = Store(Path(folder) / "store")
            (audit,) = run_specs([spec_at(Path(folder) / "scores.yaml")], catalog, store=store, device="cpu").audits
        (verdict,) = [one for one in audit.verdicts if one.claim == "one"]
        wanted = "refuted" if fault and seen else "supported"
        right = right and verdict.verdict == wanted
        said = f"{verdict.verdict}: {verdict.text}"
        print(f"  {fault or 'dpspec run':25} {said}{'' if seen else f'; not found: {UNSEEN[fault]}'}")
    return right


def of_preparation() -> bool:
    """What no recording shows, and a replay does: records that are standardised by statistics of their own."""
    script = load("opacus_tabular")

    def make(data: Any, private: bool) -> dict[str, Any]:
        from opacus import PrivacyEngine

        x, y = data.tensors
        prepared = TensorDataset((x - x.mean(0)) / x.std(0) if private else x, y)
        model: Any = nn.Linear(24, 2)
        model, optimizer, _ = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(prepared, batch_size=100),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        optimizer.expected_batch_size = 100
        return {"model": model, "optimizer": optimizer, "dataset": prepared}

    told = {private: dpspec.replay(lambda data, p=private: make(data, p), script.rows()) for private in (False, True)}
    names = dict.fromkeys(one.name for one in told[True].differences)
    print("\nopacus_tabular, records standardised by their own mean")
    print(f"  dpspec check   not found: {UNSEEN['private-normalisation']}")
    print(f"  dpspec.replay  {', '.join(names) or 'NOT FOUND'}")
    print(f"  sound          {told[False]}")
    return bool(names) and told[False].same


def main() -> int:
    """Tell of all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", default="", help="one script")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    right = True
    for name in RECORDED:
        kinds: list[dict[str, str]] = [{}, {"kind": "peft"}] if name == "opacus_lora" else [{}]
        for options in kinds if given.only in ("", name) else []:
            try:
                for extra in EXTRAS.get(options.get("kind", name), []):
                    __import__(extra)
            except ImportError as error:
                print(f"\n{name}{''.join(options.values())}\n  not run: {error}")
                continue
            right &= of_recorded(name, given.repeats, **options)
    if given.only in ("", "numpy_scores"):
        right &= of_scores()
    if given.only in ("", "replay"):
        right &= of_preparation()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
