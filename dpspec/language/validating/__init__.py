"""Documents held against the schemas of core and plugins."""
