"""Collecting transitions: collector, rollout and replay buffers, GAE, episode statistics."""
