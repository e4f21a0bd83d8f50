"""What all formats show of a result: its words, tables, limits and recipes."""
