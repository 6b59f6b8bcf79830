"""Shared by all packages: batches, interfaces, random numbers, Numba decorators, errors."""
