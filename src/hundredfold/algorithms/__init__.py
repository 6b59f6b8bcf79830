"""Learning algorithms: PPO and DQN, their networks, distributions and policies."""
