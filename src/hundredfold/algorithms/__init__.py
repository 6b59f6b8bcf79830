"""Turn experience into a better policy."""
