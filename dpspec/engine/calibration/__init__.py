"""The extreme value of one number of a spec for which its claims are proved."""
