"""What a recording shows of each channel between records and the released model, and what a claim assumes."""
