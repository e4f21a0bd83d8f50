"""Tables with named columns: what they have in common, and the files ``csv`` and ``parquet``."""
