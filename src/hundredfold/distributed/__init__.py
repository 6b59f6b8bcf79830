"""Ray: step backend and rollout collectors in actors, with placement and recovery."""
