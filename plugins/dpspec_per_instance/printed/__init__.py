"""Results of the paper, reproduced, repaired or refuted. They support no verdict."""
