"""From findings and evidence to verdicts."""
