"""CAGE Challenge 2 as a batch env: exact rules, compiled, with its true state in plain sight."""
