"""Export of a policy to ONNX or TorchScript.

The exported model maps observations, as the env returns them, to actions: one-hot encoding,
normalisation, image encoding, masks and bounds are part of it. Inputs are the arrays of an
observation by name, with `mask` where the env has masks; outputs are the network's output for every
action and the best allowed action, for any number of rows. A file is kept only if it agrees with
the original policy on random observations.

TorchScript's compiler reads annotations as objects, so this module does not postpone them.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import ActorCritic, tensors
from hundredfold.algorithms.loaded_policy import LoadedPolicy
from hundredfold.algorithms.policies import NetworkPolicy, QPolicy
from hundredfold.algorithms.protocols import EvaluationPolicy
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.core.batch import Array, Arrays, ArraySpec, BoolArray, EnvSpec
from hundredfold.core.errors import HundredfoldError, MissingExtraError, SettingsError, is_installed

MASK: Final = "mask"
ACTION: Final = "action"
# Names of the network output, by kind of policy.
LOGITS, VALUES, MEANS = "logits", "q_values", "means"

# Rows of the check against the original policy, and its tolerance.
ROWS: Final = 64
TOLERANCE: Final = 1e-4
# Seed of these rows.
SEED: Final = 20

Model = Callable[[Arrays, BoolArray | None], tuple[Array, Array]]


class ExportedPolicy(nn.Module):
    """Network output and best allowed action from observation arrays in the order of the spec."""

    def __init__(self, policy: EvaluationPolicy, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        assert isinstance(policy, NetworkPolicy | QPolicy)
        # A frozen copy: its users need not disable gradients.
        self.network = deepcopy(policy.network).cpu().eval().requires_grad_(False)

    @property
    def output_name(self) -> str:
        """Name of the first output."""
        if isinstance(self.network, QNetwork):
            return VALUES
        return LOGITS if self.network.bounds is None else MEANS

    def forward(self, arrays: list[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output = _network_output(self.network, dict(zip(self.spec.observation, arrays, strict=True)))
        if isinstance(self.network, ActorCritic) and self.network.bounds is not None:
            action = self.network.bounds(output)
            return output, action.reshape(output.shape[0], *self.spec.action_shape)
        allowed = output if mask is None else torch.where(mask, output, -torch.inf)
        parts = torch.split(allowed, list(self.spec.action_nvec), dim=-1)
        best = torch.stack([part.argmax(dim=-1) for part in parts], dim=-1)
        return output, best.squeeze(-1) if len(parts) == 1 else best


class PositionalInputs(nn.Module):
    """An exported policy with positional inputs, the mask last: ONNX has no dictionaries."""

    def __init__(self, exported: ExportedPolicy) -> None:
        super().__init__()
        self.exported = exported
        self.count = len(exported.spec.observation)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        mask = inputs[self.count] if len(inputs) > self.count else None
        outputs: tuple[Tensor, Tensor] = self.exported(list(inputs[: self.count]), mask)
        return outputs


class ByName(nn.Module):
    """A traced policy that takes its arrays by name, for envs without masks."""

    names: list[str]

    def __init__(self, traced: Any, names: list[str]) -> None:
        super().__init__()
        self.traced, self.names = traced, names

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.traced([observation[name] for name in self.names])  # type: ignore[no-any-return]


class ByNameMasked(nn.Module):
    """A traced policy that takes its arrays by name, for envs with masks."""

    names: list[str]

    def __init__(self, traced: Any, names: list[str]) -> None:
        super().__init__()
        self.traced, self.names = traced, names

    def forward(self, observation: dict[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.traced([observation[name] for name in self.names], mask)  # type: ignore[no-any-return]


def export_torchscript(loaded: LoadedPolicy, path: Path) -> Path:
    """Export to TorchScript, for `torch.jit.load` in Python or C++.

    Args:
        loaded: The policy.
        path: File to write.

    Returns:
        The path, after the file was checked against the policy.
    """
    spec = loaded.spec
    exported = ExportedPolicy(loaded.policy, spec).eval()
    observation, mask = _random_rows(spec, 2)
    names = list(spec.observation)
    examples: tuple[object, ...] = ([torch.from_numpy(observation[name]) for name in names],)
    if mask is not None:
        examples = (*examples, torch.from_numpy(mask))
    with torch.no_grad(), _ignore_deprecation():
        traced = torch.jit.trace(exported, examples)  # type: ignore[no-untyped-call]
        kind = ByName if mask is None else ByNameMasked
        scripted = torch.jit.script(kind(traced, names))
        _write(path, scripted.save)
        restored = torch.jit.load(str(path))  # type: ignore[no-untyped-call]

    def model(observation: Arrays, mask: BoolArray | None) -> tuple[Array, Array]:
        arrays = {name: torch.from_numpy(array) for name, array in observation.items()}
        masks = () if mask is None else (torch.from_numpy(mask),)
        with torch.no_grad():
            output, action = restored(arrays, *masks)
        return output.numpy(), action.numpy()

    return _checked(loaded, model, path)


def export_onnx(loaded: LoadedPolicy, path: Path) -> Path:
    """Export to ONNX; checked where onnxruntime is installed.

    Args:
        loaded: The policy.
        path: File to write.

    Returns:
        The path.
    """
    require_export_extra()
    spec = loaded.spec
    exported = ExportedPolicy(loaded.policy, spec).eval()
    observation, mask = _random_rows(spec, 2)
    inputs = dict(observation) if mask is None else {**observation, MASK: mask}
    rows = torch.export.Dim("rows")
    with torch.no_grad(), _quiet_exporter():
        program = torch.onnx.export(
            PositionalInputs(exported).eval(),
            tuple(torch.from_numpy(array) for array in inputs.values()),
            input_names=list(inputs),
            output_names=[exported.output_name, ACTION],
            dynamic_shapes=[tuple({0: rows} for _ in inputs)],
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    _write(path, lambda file: program.save(file, external_data=False))
    if not is_installed("onnxruntime"):
        warnings.warn(
            f"{path} was not checked: onnxruntime is not installed (pip install 'hundredfold[export]').", stacklevel=2
        )
        return path
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def model(observation: Arrays, mask: BoolArray | None) -> tuple[Array, Array]:
        arrays = observation if mask is None else {**observation, MASK: mask}
        output, action = session.run(None, arrays)
        return np.asarray(output), np.asarray(action)

    return _checked(loaded, model, path)


def require_export_extra() -> None:
    """Raise MissingExtraError if the packages for ONNX export are not installed."""
    for package in ("onnx", "onnxscript"):
        if not is_installed(package):
            raise MissingExtraError(package, "export", "export to ONNX")


def _checked(loaded: LoadedPolicy, model: Model, path: Path) -> Path:
    """The path, if the exported model agrees with the policy on random observations."""
    # The number of rows must not matter.
    for rows in (ROWS, 1):
        observation, mask = _random_rows(loaded.spec, rows)
        output, action = model(observation, mask)
        assert isinstance(loaded.policy, NetworkPolicy | QPolicy)
        with torch.no_grad():
            inputs = tensors(observation, torch.device("cpu"))
            expected = _network_output(loaded.policy.network, inputs).numpy()
        best = loaded.policy.act_deterministic(observation, mask)
        agrees = np.allclose(output, expected, TOLERANCE, TOLERANCE)
        if not agrees or not _equally_good(action, best, expected, loaded.spec):
            path.unlink()
            raise HundredfoldError(
                f"the exported model {path} does not agree with the policy of the run, so it was "
                "removed; try another version of torch or of the runtime."
            )
    return path


def _network_output(network: ActorCritic | QNetwork, observation: dict[str, Tensor]) -> Tensor:
    """(rows, num_logits) output for every action."""
    return network(observation) if isinstance(network, QNetwork) else network.logits(observation)


def _equally_good(action: Array, best: Array, output: Array, spec: EnvSpec) -> bool:
    """Whether actions are the same, or have the same value up to rounding."""
    if action.shape != best.shape:
        return False
    if spec.continuous_action is not None:
        return np.allclose(action, best, TOLERANCE, TOLERANCE)
    rows = np.arange(len(output))
    exported, original = (array.reshape(len(output), -1) for array in (action, best))
    first = 0
    for dim, count in enumerate(spec.action_nvec):
        values = output[:, first : first + count]
        gap = values[rows, exported[:, dim]] - values[rows, original[:, dim]]
        if np.abs(gap).max() > TOLERANCE:
            return False
        first += count
    return True


def _random_rows(spec: EnvSpec, rows: int) -> tuple[Arrays, BoolArray | None]:
    """Random observations, and masks that forbid about half of the actions."""
    generator = np.random.default_rng(SEED)
    observation = {name: _random(array, rows, generator) for name, array in spec.observation.items()}
    if not spec.has_mask:
        return observation, None
    mask = generator.random((rows, spec.num_logits)) < 0.5
    first = 0
    for count in spec.action_nvec:
        mask[np.arange(rows), first + generator.integers(0, count, rows)] = True
        first += count
    return observation, mask


def _random(array: ArraySpec, rows: int, generator: np.random.Generator) -> Array:
    shape = (rows, *array.shape)
    if array.categories is not None:
        counts = np.reshape(array.categories, array.shape)
        return generator.integers(0, counts, shape).astype(array.dtype)
    kind = np.dtype(array.dtype)
    if kind.kind == "f":
        return generator.normal(size=shape).astype(kind)
    return generator.integers(0, 2 if kind.kind == "b" or array.dtype == "int8" else 200, shape).astype(kind)


def _write(path: Path, save: Callable[[str], object]) -> None:
    """Write a file under a temporary name and rename it."""
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
def _ignore_deprecation() -> Iterator[None]:
    """Without torch's warnings that TorchScript is deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the exporter's messages about shared axis names and torchvision."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*The axis name", UserWarning)
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
