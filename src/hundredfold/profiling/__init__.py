"""Profiling: repeated measurements, CPU steal time, and where the time of a batch of envs goes."""
