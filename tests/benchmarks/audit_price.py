"""What a white-box audit costs, in plain trainings of the same model: by what the adversary is told of other records.

    python tests/benchmarks/audit_price.py [--steps 60] [--models mlp] [--rates 0.2] [--ways transcript]

By hand. CPU time of one thread, the least of three, contenders in turn. The training is the run alone, with nobody
looking on; the audit is its one trial, with 1,000 gradient canaries, their twin and all that conformance measures.
``estimated`` is ``all-iterates`` with the mean update estimated from as many records as a batch holds, and ``alone``
says ``canary_free_run: false``. What a trial does once takes about a tenth of a second, which the fewer steps of a
small model do not hide.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from dpspec import kit
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.training import limited

CATALOG = load_catalog()

SPEC = """\
dpspec: 1
name: price
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {{scheme: poisson, rate: {rate}}}
  steps: {steps}
data: {{kind: synthetic, pattern: images, records: {records}, features: 784, classes: 10}}
model: {model}
training: {{learning_rate: 0.1}}
threat_model: {{access: {access}}}
claims: [{{id: one, kind: approx-dp, epsilon: 100.0, delta: 1e-5}}]
audit: {{method: one-run, canary: {{space: gradient, count: 1000}}, seed: 1{more}}}
"""

MODELS = {"mlp": "{kind: mlp, hidden: [64]}", "cnn-small": "{kind: cnn-small}"}


#: By name, the access and what else the audit block holds; ``{batch}`` is what a batch holds on average.
WAYS = {
    "all-iterates": ("all-iterates", ""),
    "estimated": ("all-iterates", ", expected_from: {batch}"),
    "transcript": ("transcript", ""),
    "estimated-alone": ("all-iterates", ", expected_from: {batch}, canary_free_run: false"),
    "transcript-alone": ("transcript", ", canary_free_run: false"),
}

ROUNDS = 3


def seconds(text: str) -> tuple[float, float]:
    """CPU seconds of the training, and of the audit's trial."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "price.yaml"
        file.write_text(text, encoding="utf-8")
        loaded = load_specs([file], CATALOG)
    if not loaded.ok:
        raise SystemExit(str(loaded.diagnostics))
    prepared = prepare(loaded.specs[0], CATALOG)
    inputs = prepared.audit.trial_inputs(loaded.specs[0])
    context = RunContext(prepared, CATALOG, inputs, device="cpu")
    job = kit.training_job(inputs, context, 0, "training", resumable=False)
    began = time.process_time()
    context.trainer.train(job)
    trained = time.process_time()
    list(prepared.audit.trials(inputs, context, [0]))
    found = trained - began, time.process_time() - trained
    context.close()
    return found


def main() -> None:
    """Print a line per model and rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rates", nargs="+", type=float, default=[0.2, 0.04, 0.01])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asked = parser.parse_args()
    print(f"{'model':10}{'rate':>7}{'training':>12}" + "".join(f"{way:>18}" for way in asked.ways))
    with limited(1):
        for name in asked.models:
            for rate in asked.rates:
                setting = {"rate": rate, "steps": asked.steps, "records": asked.records, "model": MODELS[name]}
                batch = round(rate * asked.records)
                plain, best = float("inf"), dict.fromkeys(asked.ways, float("inf"))
                for way in asked.ways * ROUNDS:
                    access, more = WAYS[way]
                    trained, audit = seconds(SPEC.format(**setting, access=access, more=more.format(batch=batch)))
                    plain, best[way] = min(plain, trained), min(best[way], audit)
                ratios = "".join(f"{audit / plain:18.1f}" for audit in best.values())
                print(f"{name:10}{rate:7}{plain:10.2f} s{ratios}", flush=True)


if __name__ == "__main__":
    main()
