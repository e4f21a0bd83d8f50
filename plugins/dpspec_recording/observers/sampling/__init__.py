"""Who is drawn: whether batches are the samples that the accounting assumes."""
