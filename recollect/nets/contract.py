"""Whether an encoder and a core keep their contract: tried once, on zeros, when an agent is made.

Code of the user's own breaks it sooner or later; here that is one clear line instead of a crash in the first update.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recollect.config import described, place_of, resolve
from recollect.nets.config import NetConfig
from recollect.types import ObsSpec

T, N = 3, 2


def build(what: str, name: str, registry: Mapping[str, Any], *args: Any) -> Any:
    """The registered or outside class ``name``, built; ValueError where that cannot be done or it has no ``width``."""
    made = resolve(what, name, registry)
    part = _tried(f"{what} {name!r} cannot be built", made, *args)
    if not isinstance(getattr(part, "width", None), int):
        raise ValueError(f"{what} {name!r} must set width, the number of features that it gives out")
    return part


@torch.no_grad()
def check(torso: nn.Module, obs_spec: ObsSpec, config: NetConfig) -> None:
    """Raise ValueError for the first shape that is not as promised (see ``nets/cores/__init__.py``)."""
    torso.eval()  # a try must not move batch statistics
    _check_parts(torso.encoder, torso.core, obs_spec, config)
    torso.train()


def _check_parts(encoder: Any, core: Any, obs_spec: ObsSpec, config: NetConfig) -> None:
    obs = {name: torch.zeros(T * N, *spec.shape, dtype=spec.dtype) for name, spec in obs_spec.items()}
    what = f"encoder {config.encoder!r}"
    x_BD = _tried(f"{what}: forward", encoder, obs)
    _expect(f"{what}: forward", x_BD, (T * N, encoder.width))

    what, x_TND = f"core {config.core!r}", x_BD.unflatten(0, (T, N))
    reset_TN = torch.zeros(T, N, dtype=torch.bool)
    state = _tried(f"{what}: initial_state", core.initial_state, N, x_BD.device)
    if not isinstance(state, dict):
        raise ValueError(f"{what}: initial_state must give {{name: [N, ...]}}, got {_kind(state)}")
    for name, part in state.items():
        _expect(f"{what}: initial_state[{name!r}]", part, (N, *getattr(part, "shape", (N,))[1:]))
    stepped = _tried(f"{what}: step", core.step, x_TND[0], state, reset_TN[0])
    if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], dict)):
        raise ValueError(f"{what}: step must give (y_ND, state), got {_kind(stepped)}")
    _expect(f"{what}: step", stepped[0], (N, core.width))
    if stepped[1].keys() != state.keys():
        raise ValueError(f"{what}: step's state has {sorted(stepped[1])}, but initial_state has {sorted(state)}")
    for name, part in stepped[1].items():
        _expect(f"{what}: step's state[{name!r}]", part, state[name].shape)
    _expect(f"{what}: forward", _tried(f"{what}: forward", core, x_TND, state, reset_TN), (T, N, core.width))


def _tried(what: str, call: Callable, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:
        if isinstance(error, ValueError) and not place_of(error):
            raise  # one of ours, which says already what is wrong
        raise ValueError(f"{what}: {described(error)}") from error


def _expect(what: str, tensor: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor) or tensor.shape != shape:
        have = list(tensor.shape) if isinstance(tensor, Tensor) else _kind(tensor)
        raise ValueError(f"{what} must give {list(shape)} for {T} steps of {N} environments, got {have}")


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
