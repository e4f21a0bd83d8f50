"""Audits of scores that another program made: nothing is trained here, and what they rest on is named."""
