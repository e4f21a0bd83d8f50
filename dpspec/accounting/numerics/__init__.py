"""What everything rests on: intervals, arguments, float64, monotone search, and how accurate libraries are."""
