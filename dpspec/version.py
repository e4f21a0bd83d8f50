"""The version of the distribution."""

VERSION = "0.3.0"
