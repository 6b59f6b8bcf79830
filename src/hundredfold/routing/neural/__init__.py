"""Neural oracle: an attention policy that constructs the routes of a whole batch of instances."""
