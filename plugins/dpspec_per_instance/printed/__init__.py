"""What the paper prints, reproduced, repaired or refuted. Nothing here decides a verdict."""
