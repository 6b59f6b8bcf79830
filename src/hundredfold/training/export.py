"""Export of a policy to ONNX or TorchScript.

The exported model maps observations, as the env returns them, to actions: one-hot encoding,
normalisation, image encoding, masks and bounds are part of it. Inputs are the arrays of an
observation by name, with `mask` where the env has masks; outputs are the network's output for every
action and the best allowed action, for any number of rows. A policy with memory also takes `memory`,
(rows, size) zeros at the beginning of an episode, and returns `next_memory`, which is its memory for
the next step. A file is kept only if it agrees with the original policy on random observations.

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
from hundredfold.core.files import replace_file

MASK: Final = "mask"
ACTION: Final = "action"
MEMORY, NEXT_MEMORY = "memory", "next_memory"
# Names of the network output, by kind of policy.
LOGITS, VALUES, MEANS = "logits", "q_values", "means"

# Rows of the check against the original policy, and its tolerance.
ROWS: Final = 64
TOLERANCE: Final = 1e-4
# Seed of these rows.
SEED: Final = 20

# From the inputs by name to the outputs.
Model = Callable[[Arrays], tuple[Array, ...]]


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

    @property
    def memory_size(self) -> int:
        """Size of the memory; 0 = none."""
        return self.network.memory_size if isinstance(self.network, ActorCritic) else 0

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order: observations, then mask and memory where there are any."""
        more = [MASK] if self.spec.has_mask else []
        return [*self.spec.policy_observation, *more, *([MEMORY] if self.memory_size else [])]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [self.output_name, ACTION, *([NEXT_MEMORY] if self.memory_size else [])]

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        named = dict(zip(self.input_names, inputs, strict=True))
        mask, memory = named.pop(MASK, None), named.pop(MEMORY, None)
        output, *next_memory = _network_output(self.network, named, memory)
        return (output, self._best(output, mask), *next_memory)

    def _best(self, output: Tensor, mask: Tensor | None) -> Tensor:
        """The best allowed action of each row."""
        if isinstance(self.network, ActorCritic) and self.network.bounds is not None:
            action: Tensor = self.network.bounds(output)
            return action.reshape(output.shape[0], *self.spec.action_shape)
        allowed = output if mask is None else torch.where(mask, output, -torch.inf)
        parts = torch.split(allowed, list(self.spec.action_nvec), dim=-1)
        best = torch.stack([part.argmax(dim=-1) for part in parts], dim=-1)
        return best.squeeze(-1) if len(parts) == 1 else best


class PositionalInputs(nn.Module):
    """An exported policy with positional inputs: ONNX has no dictionaries."""

    def __init__(self, exported: ExportedPolicy) -> None:
        super().__init__()
        self.exported = exported

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.exported(list(inputs))
        return outputs


class ByName(nn.Module):
    """A traced policy that takes its arrays by name, for envs without masks."""

    names: list[str]

    def __init__(self, traced: Any, names: list[str]) -> None:
        super().__init__()
        self.traced, self.names = traced, names

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.traced([observation[name] for name in self.names])  # type: ignore[no-any-return]


class ByNameMasked(ByName):
    """The same for envs with masks."""

    def forward(self, observation: dict[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.traced([observation[name] for name in self.names] + [mask])  # type: ignore[no-any-return]


class ByNameWithMemory(ByName):
    """The same for policies with memory."""

    def forward(self, observation: dict[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        return self.traced([observation[name] for name in self.names] + [memory])  # type: ignore[no-any-return]


class ByNameMaskedWithMemory(ByName):
    """The same for policies with memory and masks."""

    def forward(  # type: ignore[override]
        self, observation: dict[str, Tensor], mask: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.traced([observation[name] for name in self.names] + [mask, memory])  # type: ignore[no-any-return]


# By whether there are masks, and a memory.
BY_NAME: Final = {
    (False, False): ByName,
    (True, False): ByNameMasked,
    (False, True): ByNameWithMemory,
    (True, True): ByNameMaskedWithMemory,
}


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
    _check_names(exported, exported.input_names)
    names = list(spec.policy_observation)
    examples = [torch.from_numpy(array) for array in _random_rows(exported, 2).values()]
    with torch.no_grad(), _ignore_deprecation():
        traced = torch.jit.trace(exported, (examples,))  # type: ignore[no-untyped-call]
        kind = BY_NAME[spec.has_mask, exported.memory_size > 0]
        scripted = torch.jit.script(kind(traced, names))
        _write(path, scripted.save)
        restored = torch.jit.load(str(path))  # type: ignore[no-untyped-call]

    def model(inputs: Arrays) -> tuple[Array, ...]:
        arrays = {name: torch.from_numpy(array) for name, array in inputs.items()}
        observation = {name: arrays.pop(name) for name in names}
        with torch.no_grad():
            outputs = restored(observation, *arrays.values())
        return tuple(output.numpy() for output in outputs)

    return _checked(loaded, exported, model, path)


def export_onnx(loaded: LoadedPolicy, path: Path) -> Path:
    """Export to ONNX; checked where onnxruntime is installed.

    Args:
        loaded: The policy.
        path: File to write.

    Returns:
        The path.
    """
    require_export_extra()
    exported = ExportedPolicy(loaded.policy, loaded.spec).eval()
    _check_names(exported, exported.input_names + exported.output_names)
    inputs = _random_rows(exported, 2)
    rows = torch.export.Dim("rows")
    with torch.no_grad(), _quiet_exporter():
        program = torch.onnx.export(
            PositionalInputs(exported).eval(),
            tuple(torch.from_numpy(array) for array in inputs.values()),
            input_names=list(inputs),
            output_names=exported.output_names,
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

    def model(inputs: Arrays) -> tuple[Array, ...]:
        return tuple(np.asarray(output) for output in session.run(None, inputs))

    return _checked(loaded, exported, model, path)


def require_export_extra() -> None:
    """Raise MissingExtraError if the packages for ONNX export are not installed."""
    for package in ("onnx", "onnxscript"):
        if not is_installed(package):
            raise MissingExtraError(package, "export", "export to ONNX")


def _check_names(exported: ExportedPolicy, names: list[str]) -> None:
    """Raise a SettingsError if an observation has the name of another input or output of the model."""
    for name in exported.spec.policy_observation:
        if names.count(name) > 1:
            raise SettingsError(
                f"{exported.spec.name} observes an array {name!r}, which is also the name of another input or output "
                "of the exported model; rename this key of its observations."
            )


def _checked(loaded: LoadedPolicy, exported: ExportedPolicy, model: Model, path: Path) -> Path:
    """The path, if the exported model agrees with the policy on random observations."""
    policy = loaded.policy
    assert isinstance(policy, NetworkPolicy | QPolicy)
    # The number of rows must not matter.
    for rows in (ROWS, 1):
        inputs = _random_rows(exported, rows)
        output, action, *next_memory = model(inputs)
        mask, memory = inputs.pop(MASK, None), inputs.pop(MEMORY, None)
        with torch.no_grad():
            state = None if memory is None else torch.from_numpy(memory)
            expected, *states = (
                part.numpy() for part in _network_output(policy.network, tensors(inputs, torch.device("cpu")), state)
            )
        if memory is None:
            best = policy.act_deterministic(inputs, mask)
        else:
            assert isinstance(policy, NetworkPolicy)
            best, _ = policy.act_with_memory(inputs, mask, memory)
        pairs = zip((output, *next_memory), (expected, *states), strict=True)
        agrees = all(np.allclose(one, other, TOLERANCE, TOLERANCE) for one, other in pairs)
        if not agrees or not _equally_good(action, best, expected, loaded.spec):
            path.unlink()
            raise HundredfoldError(
                f"the exported model {path} does not agree with the policy of the run, so it was "
                "removed; try another version of torch or of the runtime."
            )
    return path


def _network_output(
    network: ActorCritic | QNetwork, observation: dict[str, Tensor], memory: Tensor | None
) -> tuple[Tensor, ...]:
    """(rows, num_logits) output for every action; with a memory also its next states."""
    if isinstance(network, QNetwork):
        return (network(observation),)
    if memory is None:
        return (network.logits(observation),)
    return network.logits_and_state(observation, memory)


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


def _random_rows(exported: ExportedPolicy, rows: int) -> Arrays:
    """Random inputs by name; masks forbid about half of the actions."""
    generator, spec = np.random.default_rng(SEED), exported.spec
    inputs = {name: _random(array, rows, generator) for name, array in spec.policy_observation.items()}
    if spec.has_mask:
        mask: BoolArray = generator.random((rows, spec.num_logits)) < 0.5
        first = 0
        for count in spec.action_nvec:
            mask[np.arange(rows), first + generator.integers(0, count, rows)] = True
            first += count
        inputs[MASK] = mask
    if exported.memory_size:
        inputs[MEMORY] = generator.normal(size=(rows, exported.memory_size)).astype(np.float32)
    return inputs


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
        save(str(temporary))
        replace_file(temporary, path)
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
