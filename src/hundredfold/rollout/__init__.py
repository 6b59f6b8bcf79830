"""Gather steps, keep them, look back over them."""
