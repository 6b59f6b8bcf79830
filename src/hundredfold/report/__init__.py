"""Draw what was measured, from run folders alone."""
