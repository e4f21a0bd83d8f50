"""Where trials run: in this process, in several of this machine, or on a Ray cluster."""
