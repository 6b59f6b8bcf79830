"""Other people's trainers on built-in envs."""
