"""Correct recordings with one seed; by hand: ``python tests/campaigns/honest_recordings.py``.

``tests/recording`` recomputes the updates of every optimizer.
"""

import pytest
from campaigns import honest_recordings as campaign


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "words",
    [
        "^opacus, (one|batches|large|conv|emb|low|frozen|two|attr|recom|bfl|eval)",
        "^opacus, (aver|aug|subset|conc|func|exp|adafactor)",
        "^opacus, (clipping .* 7|accountant prv|small|sum|2 workers|20 can)",
        "^opacus, .*(LR|Scheduler|Restarts|Noise|GradClip)",
        "^plain loop, (sgd mom|adam fused|OneCycleLR|seed|sum|one|small)",
    ],
)
def test_correct_trainings_are_proved(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(words, seeds=1) == 0, capsys.readouterr().out
