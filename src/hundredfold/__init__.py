"""hundredfold: train agents on hundreds of parallel environments.

    import hundredfold

    run = hundredfold.train("CartPole-v1", steps=100_000)
    policy = hundredfold.load(run.path)
    envs = hundredfold.make_vec("cartpole", num_envs=256)

Functions that need torch are imported when they are used, so that `import hundredfold` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hundredfold.interop.gymnasium import make_vec, register

if TYPE_CHECKING:
    from hundredfold.algorithms.loaded_policy import LoadedPolicy
    from hundredfold.api import TrainedRun, evaluate, export, export_policy_folder, load, record_video, train
    from hundredfold.training.video import Video

__version__ = "0.1.0"

_MODULES = {
    "LoadedPolicy": "hundredfold.algorithms.loaded_policy",
    "TrainedRun": "hundredfold.api",
    "Video": "hundredfold.training.video",
    "evaluate": "hundredfold.api",
    "export": "hundredfold.api",
    "export_policy_folder": "hundredfold.api",
    "load": "hundredfold.api",
    "record_video": "hundredfold.api",
    "train": "hundredfold.api",
}

__all__ = [
    "LoadedPolicy",
    "TrainedRun",
    "Video",
    "__version__",
    "evaluate",
    "export",
    "export_policy_folder",
    "load",
    "make_vec",
    "record_video",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'hundredfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


register()
