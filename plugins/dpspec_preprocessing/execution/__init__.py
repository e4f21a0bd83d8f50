"""Execution of the steps and private mechanisms on data, and the check of the declared collection."""
