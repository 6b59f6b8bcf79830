"""Other libraries on the same envs: Gymnasium, Stable-Baselines3, RLlib."""
