"""A policy for programs that know nothing of hundredfold: ONNX, or TorchScript.

What goes out is the whole way from an observation, as the env gives it, to an action: category
numbers, scales, pictures, masks and bounds are part of it. Inputs are the arrays of an observation
by name, with `mask` where the env has masks; outputs are what the network says of every action
and the best allowed one. Any number of rows. Before a file is called done it has played beside our
own policy, and agreed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import (
    MAX_NORMALISED_INPUT,
    ActorCritic,
    InputLayer,
    tensors,
)
from hundredfold.algorithms.loaded_policy import LoadedPolicy
from hundredfold.algorithms.policies import NetworkPolicy, QPolicy
from hundredfold.algorithms.protocols import EvaluationPolicy
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.core.batch import Array, Arrays, ArraySpec, BoolArray, EnvSpec
from hundredfold.core.errors import HundredfoldError, MissingExtraError, SettingsError, is_installed
from hundredfold.training.torchscript import ByName, ByNameMasked

MASK: Final = "mask"
ACTION: Final = "action"
# What a network says of every action, by kind.
LOGITS, VALUES, MEANS = "logits", "q_values", "means"

# Rows a file plays beside our own policy, and how far its numbers may be from ours.
ROWS: Final = 64
TOLERANCE: Final = 1e-4
# The draws of these rows: any will do, and always the same.
SEED: Final = 20

Play = Callable[[Arrays, BoolArray | None], tuple[Array, Array]]


class Exported(nn.Module):
    """From the arrays of an observation, in the order of the spec, to the best allowed action."""

    def __init__(self, policy: EvaluationPolicy, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        assert isinstance(policy, NetworkPolicy | QPolicy)
        # A copy that learns no more: who plays it need not think of gradients.
        self.network = deepcopy(policy.network).cpu().eval().requires_grad_(False)

    @property
    def says(self) -> str:
        """What the first output is called."""
        if isinstance(self.network, QNetwork):
            return VALUES
        return LOGITS if self.network.bounds is None else MEANS

    def forward(self, arrays: list[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found = self._all_actions(dict(zip(self.spec.observation, arrays, strict=True)))
        if isinstance(self.network, ActorCritic) and self.network.bounds is not None:
            action = self.network.bounds(found)
            return found, action.reshape(found.shape[0], *self.spec.action_shape)
        allowed = found if mask is None else torch.where(mask, found, -torch.inf)
        parts = torch.split(allowed, list(self.spec.action_nvec), dim=-1)
        best = torch.stack([part.argmax(dim=-1) for part in parts], dim=-1)
        return found, best.squeeze(-1) if len(parts) == 1 else best

    def _all_actions(self, observation: dict[str, Tensor]) -> Tensor:
        network = self.network
        row = _side_by_side(network.inputs, observation)
        if isinstance(network, QNetwork):
            return network.values(row)
        if network.policy_encoder is not None:
            row = torch.cat([row, network.policy_encoder(observation)], dim=-1)
        logits: Tensor = network.policy_head(network.policy_layers(row))
        bias = network.logit_bias
        return logits if bias is None else logits + observation[bias]


class Flat(nn.Module):
    """One input after another, the mask last: ONNX has no dictionaries."""

    def __init__(self, exported: Exported) -> None:
        super().__init__()
        self.exported = exported
        self.count = len(exported.spec.observation)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        mask = inputs[self.count] if len(inputs) > self.count else None
        found: tuple[Tensor, Tensor] = self.exported(list(inputs[: self.count]), mask)
        return found


def export_torchscript(loaded: LoadedPolicy, path: Path) -> Path:
    """Write a policy that `torch.jit.load` reads, in Python or C++: (observation by name, mask)."""
    spec = loaded.spec
    exported = Exported(loaded.policy, spec).eval()
    observation, mask = _some_rows(spec, 2)
    names = list(spec.observation)
    examples: tuple[object, ...] = ([torch.from_numpy(observation[name]) for name in names],)
    if mask is not None:
        examples = (*examples, torch.from_numpy(mask))
    with torch.no_grad(), _torchscript_asked_for():
        traced = torch.jit.trace(exported, examples)  # type: ignore[no-untyped-call]
        kind = ByName if mask is None else ByNameMasked
        scripted = torch.jit.script(kind(traced, names))
        _write(path, scripted.save)
        played = torch.jit.load(str(path))  # type: ignore[no-untyped-call]

    def play(observation: Arrays, mask: BoolArray | None) -> tuple[Array, Array]:
        given = {name: torch.from_numpy(array) for name, array in observation.items()}
        masks = () if mask is None else (torch.from_numpy(mask),)
        with torch.no_grad():
            said, action = played(given, *masks)
        return said.numpy(), action.numpy()

    return _checked(loaded, play, path)


def export_onnx(loaded: LoadedPolicy, path: Path) -> Path:
    """Write a policy for ONNX runtimes, and play it where one is installed."""
    require_export_extra()
    spec = loaded.spec
    exported = Exported(loaded.policy, spec).eval()
    observation, mask = _some_rows(spec, 2)
    inputs = dict(observation) if mask is None else {**observation, MASK: mask}
    rows = torch.export.Dim("rows")
    with torch.no_grad(), _less_talk():
        made = torch.onnx.export(
            Flat(exported).eval(),
            tuple(torch.from_numpy(array) for array in inputs.values()),
            input_names=list(inputs),
            output_names=[exported.says, ACTION],
            dynamic_shapes=[tuple({0: rows} for _ in inputs)],
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    _write(path, lambda file: made.save(file, external_data=False))
    if not is_installed("onnxruntime"):
        warnings.warn(
            f"{path} was not played: onnxruntime is not installed "
            "(pip install 'hundredfold[export]').",
            stacklevel=2,
        )
        return path
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def play(observation: Arrays, mask: BoolArray | None) -> tuple[Array, Array]:
        given = observation if mask is None else {**observation, MASK: mask}
        said, action = session.run(None, given)
        return np.asarray(said), np.asarray(action)

    return _checked(loaded, play, path)


def require_export_extra() -> None:
    """Refuse ONNX early, in one line, when it cannot be written."""
    for package in ("onnx", "onnxscript"):
        if not is_installed(package):
            raise MissingExtraError(package, "export", "export to ONNX")


def _checked(loaded: LoadedPolicy, play: Play, path: Path) -> Path:
    """The file, once it has chosen as our own policy does on random observations."""
    # Another number of rows than it was written with: that must not matter.
    for rows in (ROWS, 1):
        observation, mask = _some_rows(loaded.spec, rows)
        said, action = play(observation, mask)
        wanted = _our_word(loaded.policy, observation)
        best = loaded.policy.act_deterministic(observation, mask)
        if not np.allclose(said, wanted, TOLERANCE, TOLERANCE) or not _as_good(
            action, best, wanted, loaded.spec
        ):
            path.unlink()
            raise HundredfoldError(
                f"{path} was written but does not choose as the policy of the run does, so it was "
                "removed; another version of torch or of the runtime may do better."
            )
    return path


def _our_word(policy: EvaluationPolicy, observation: Arrays) -> Array:
    """What our own network says of every action."""
    assert isinstance(policy, NetworkPolicy | QPolicy)
    given = tensors(observation, torch.device("cpu"))
    with torch.no_grad():
        network = policy.network
        found = network(given) if isinstance(network, QNetwork) else network.logits(given)
        said: Array = found.numpy()
    return said


def _as_good(action: Array, best: Array, said: Array, spec: EnvSpec) -> bool:
    """The same actions, or others that are valued the same up to rounding."""
    if action.shape != best.shape:
        return False
    if spec.continuous_action is not None:
        return np.allclose(action, best, TOLERANCE, TOLERANCE)
    rows = np.arange(len(said))
    theirs, ours = (array.reshape(len(said), -1) for array in (action, best))
    first = 0
    for part, count in enumerate(spec.action_nvec):
        worth = said[:, first : first + count]
        gap = worth[rows, theirs[:, part]] - worth[rows, ours[:, part]]
        if np.abs(gap).max() > TOLERANCE:
            return False
        first += count
    return True


def _side_by_side(inputs: InputLayer, observation: dict[str, Tensor]) -> Tensor:
    """What `Inputs` does, in words that keep the number of rows open in a trace."""
    some = next(iter(observation.values()))
    pieces = [some.new_zeros((some.shape[0], 0), dtype=torch.float32)]
    pieces += [_flat(observation[name], spec) for name, spec in inputs.specs.items()]
    row = torch.cat(pieces, dim=-1)
    if not inputs.normalise:
        return row
    return ((row - inputs.mean) / inputs.std).clamp(-MAX_NORMALISED_INPUT, MAX_NORMALISED_INPUT)


def _flat(array: Tensor, spec: ArraySpec) -> Tensor:
    entries = array.reshape(array.shape[0], spec.size)
    if spec.categories is None:
        return entries.float()
    hot = [
        entries[:, place : place + 1] == torch.arange(count)
        for place, count in enumerate(spec.categories)
    ]
    return torch.cat(hot, dim=-1).float()


def _some_rows(spec: EnvSpec, rows: int) -> tuple[Arrays, BoolArray | None]:
    """Random observations of this shape and type, and masks that forbid half of everything."""
    luck = np.random.default_rng(SEED)
    observation = {name: _random(array, rows, luck) for name, array in spec.observation.items()}
    if not spec.has_mask:
        return observation, None
    mask = luck.random((rows, spec.num_logits)) < 0.5
    first = 0
    for count in spec.action_nvec:
        mask[np.arange(rows), first + luck.integers(0, count, rows)] = True
        first += count
    return observation, mask


def _random(array: ArraySpec, rows: int, luck: np.random.Generator) -> Array:
    shape = (rows, *array.shape)
    if array.categories is not None:
        counts = np.reshape(array.categories, array.shape)
        return luck.integers(0, counts, shape).astype(array.dtype)
    kind = np.dtype(array.dtype)
    if kind.kind == "f":
        return luck.normal(size=shape).astype(kind)
    return luck.integers(0, 2 if kind.kind == "b" or array.dtype == "int8" else 200, shape).astype(
        kind
    )


def _write(path: Path, save: Callable[[str], object]) -> None:
    """All of a file or nothing, as far as its name goes."""
    temporary = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(str(temporary))
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"cannot write {path}: {error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _torchscript_asked_for() -> Iterator[None]:
    """Torch calls TorchScript deprecated at every turn; whoever asks for it by name knows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield


@contextmanager
def _less_talk() -> Iterator[None]:
    """Without what the exporter says of itself: axes that share a name, torchvision's absence."""
    talker = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = talker.level
    talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*The axis name", UserWarning)
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            yield
    finally:
        talker.setLevel(level)
