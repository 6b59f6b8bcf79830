"""CAGE Challenge 2 as a batch world: exact rules, compiled, with its true state in plain sight."""
