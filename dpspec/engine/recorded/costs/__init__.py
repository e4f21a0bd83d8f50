"""What the schedule that ran costs, and what the script's own accountant makes of what it was told."""
