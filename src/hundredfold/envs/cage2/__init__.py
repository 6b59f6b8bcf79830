"""CAGE Challenge 2 (CybORG, Scenario2) as a compiled batch env that exposes its true state."""
