"""Black-box conversions from single records to groups, for comparison. They change no bound and no verdict."""
