"""`--engine sb3`: our worlds and settings, trained by Stable-Baselines3.

`engine` runs the training and keeps our books, `envs` shows worlds as vector envs, `options`
translates settings, `networks` brings weights home. Only `hundredfold.training.engines` comes here,
when someone chooses this engine by name.
"""
