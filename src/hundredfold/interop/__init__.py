"""Other libraries on built-in envs: Gymnasium, Stable-Baselines3, RLlib."""
