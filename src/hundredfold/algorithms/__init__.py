"""Learning algorithms: PPO, DQN and PQN, their networks, distributions and policies."""
