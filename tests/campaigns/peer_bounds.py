"""Lower bounds of other programs on the scores of :mod:`campaigns.lower_bounds`, which prints dpspec's.

    python tests/campaigns/peer_bounds.py [--runs 200] [--canaries 500]

Needs jax-privacy and opake-auditing in the environment. Prints, for each mechanism and rule, the truth, the median of
bound / truth and the share of runs above the truth. A canary's score is its rank, so that all rules see the same order.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from campaigns.lower_bounds import DELTA, mechanisms

SIGNIFICANCE = 0.05

#: Opake's default rule with a tenth of its grid, evaluated on a tenth of the runs.
SLOW = "opake gdp"

Ranks = np.ndarray[Any, np.dtype[np.float64]]
Rule = Callable[[Ranks, Ranks], float]


def jax_privacy_rules() -> dict[str, Rule]:
    from jax_privacy.auditing import CanaryScoreAuditor

    def rule(name: str) -> Rule:
        method = f"epsilon_{name}"
        return lambda *scores: float(getattr(CanaryScoreAuditor(*scores), method)(SIGNIFICANCE, DELTA))

    return {f"jax-privacy {name}": rule(name) for name in ("one_run", "one_run_fdp", "from_gdp", "clopper_pearson")}


def opake_rules() -> dict[str, Rule]:
    from opake.api.auditing.one_run._estimate import OneRunEstimate
    from opake.api.auditing.one_run._roc import get_tn_fn_counts

    def estimate(present: Ranks, absent: Ranks) -> Any:
        thresholds, true_negatives, false_negatives = get_tn_fn_counts(present, absent)
        return OneRunEstimate(
            n_in=len(present),
            n_out=len(absent),
            thresholds=thresholds,
            tn_counts=true_negatives,
            fn_counts=false_negatives,
            tp_counts=(false_negatives[-1] - false_negatives)[::-1],
            fp_counts=(true_negatives[-1] - true_negatives)[::-1],
            in_scores=present,
            out_scores=absent,
        )

    at: dict[str, Any] = {"delta": DELTA, "significance": SIGNIFICANCE}
    return {
        "opake eps_delta": lambda *scores: float(estimate(*scores).eps_delta().epsilon_at(**at)),
        SLOW: lambda *scores: float(estimate(*scores).gdp(grid_size=1000).epsilon_at(**at)),
    }


def peer_bounds(rule: Rule, mechanism: Any, canaries: int, runs: int) -> Ranks:
    """Bounds on epsilon (runs,), seeds 0, 1, ..., on the scores of ``lower_bounds.bounds``."""
    bounds = []
    for seed in range(runs):
        coins = np.array(list(mechanism.outcomes(canaries, np.random.default_rng(seed)))) == "1"
        ranks = np.arange(canaries, dtype=np.float64)
        bounds.append(rule(ranks[coins], ranks[~coins]))
    return np.array(bounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--canaries", type=int, default=500)
    options = parser.parse_args()
    rules = jax_privacy_rules() | opake_rules()
    for mechanism in mechanisms():
        truth = mechanism.epsilon()
        for name, rule in rules.items():
            runs = -(-options.runs // 10) if name == SLOW else options.runs
            bounds = peer_bounds(rule, mechanism, options.canaries, runs)
            ratio, share = np.median(bounds) / truth, float((bounds > truth).mean())
            print(f"{mechanism.name:28} {truth:7.3f} {name:28} {ratio:6.2f} {share:6.3f}", flush=True)


if __name__ == "__main__":
    main()
