"""From specs to a result: preparing, running, storing, judging, verifying and comparing audits."""
