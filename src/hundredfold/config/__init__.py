"""Compose the parts' own settings, read and write them."""
