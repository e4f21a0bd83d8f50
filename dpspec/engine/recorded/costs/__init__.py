"""What the schedule that ran costs, what the script's own accountant makes of what it was told, and what canaries show
that it costs at least."""
