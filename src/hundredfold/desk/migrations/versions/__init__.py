"""Versions of the tables, in order of their numbers."""
