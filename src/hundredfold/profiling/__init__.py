"""Measure: ours beside the peers that are installed, in one run, with the yardstick named."""
