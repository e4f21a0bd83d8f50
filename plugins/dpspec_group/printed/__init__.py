"""What is known of groups from single records alone, for comparison: it changes no bound and no verdict."""
