"""Environments: batches of envs stepped together."""
