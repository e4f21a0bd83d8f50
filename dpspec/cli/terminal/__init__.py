"""Where a command meets its terminal: what it writes, how it shows progress, and the ways in which it ends."""
