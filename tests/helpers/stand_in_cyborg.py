"""Stand-in for CybORG with the parts of its interface that the example uses, played by the env of this package.

Episode e is the first one of env e under seed 0, so that its returns can be compared with those of the env.
"""

from pathlib import Path
from types import ModuleType

import numpy as np

from hundredfold.envs.cage2.env import Cage2, Cage2Settings


class CybORG:
    """The simulator."""

    def __init__(self, path, environment, agents):
        assert Path(path).parts[-3:] == ("Shared", "Scenarios", "Scenario2.yaml")
        assert environment == "sim"
        self.settings = Cage2Settings(red=agents["Red"].name_here, horizons=(1000,))
        self.episodes = 0

    def start(self):
        self.env = Cage2(np.array([self.episodes]), self.settings)
        self.episodes += 1
        return self.env.reset(0)

    def get_observation(self, agent):
        """Ten connections to SSH on User3, whatever happened."""
        assert agent == "Blue"
        return {"success": True, "User3": {"Processes": [{"Connections": [{"local_port": 22, "remote_port": 1}] * 10}]}}


class ChallengeWrapper:
    """52 bits and 145 actions; `step` returns four values, as in gym."""

    def __init__(self, env, agent_name):
        assert agent_name == "Blue"
        self.cyborg = env

    def reset(self):
        return self.cyborg.start().observation["bits"][0].astype(int)

    def step(self, action):
        out = self.cyborg.env.step(np.array([action]))
        return out.observation["bits"][0].astype(int), float(out.reward[0]), False, {}


def modules():
    """The modules of CybORG by name, for `sys.modules`."""
    parts = {
        "CybORG": {"CybORG": CybORG},
        "CybORG.Agents": {
            "B_lineAgent": type("B_lineAgent", (), {"name_here": "b_line"}),
            "RedMeanderAgent": type("RedMeanderAgent", (), {"name_here": "meander"}),
        },
        "CybORG.Agents.Wrappers": {"ChallengeWrapper": ChallengeWrapper},
    }
    made = {name: ModuleType(name) for name in parts}
    for name, contents in parts.items():
        vars(made[name]).update(contents)
    return made
