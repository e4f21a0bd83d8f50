"""What the paper prints, reproduced beside what is proved. It decides no verdict; some of it is refuted."""
