"""What the paper prints, reproduced beside what is certified. It decides no verdict; some of it is refuted."""
