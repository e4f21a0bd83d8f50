"""One small file per report format, each a pure function of a result; none of them computes a number of its own."""
