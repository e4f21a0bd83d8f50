"""The version of the distribution."""

VERSION = "0.2.0"
