"""HTML reports, drawn from run folders alone."""
