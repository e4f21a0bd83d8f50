"""Training scripts with mistakes that public threads and packages report, each with its honest twin.

A script takes the folder of its recording and whether it makes the mistake. It trains and returns the epsilon that its
own accountant prints. Its docstring names the mistake.
"""
