"""From an observation to features. An encoder is built from (obs_spec, config), has ``width``, maps Obs to [B, width].

Add one: a class here and a line in ``ENCODERS``; or in your own file, named ``--encoder mine.py:MyEncoder``.
"""

import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.init import orthogonal
from recollect.types import Obs, ObsSpec


def part(obs_spec: ObsSpec, name: str, encoder: str) -> tuple[int, ...]:
    """The shape of the part that an encoder reads, or an error that says what the environment has."""
    if name not in obs_spec:
        raise ValueError(f"encoder {encoder!r} reads {name!r}, but the observation has {', '.join(obs_spec)}")
    return obs_spec[name].shape


def with_clock(feature_BD: Tensor, obs: Obs) -> Tensor:
    """Append the episode's clock where the observation has one. [B, D] or [B, D + 1]"""
    return torch.cat([feature_BD, obs["clock"]], -1) if "clock" in obs else feature_BD


def compute_dtype(device: torch.device) -> torch.dtype:
    """What autocast computes in on this device, fp32 where it is off."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else torch.float32


class MLP(nn.Module):
    """Hidden layers with tanh: the usual network for positions and joint angles."""

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        (width,) = part(obs_spec, "vector", "mlp")
        width += "clock" in obs_spec
        layers: list[nn.Module] = []
        for hidden in config.hidden:
            layers += [orthogonal(nn.Linear(width, hidden)), nn.Tanh()]
            width = hidden
        self.layers, self.width = nn.Sequential(*layers), width

    def forward(self, obs: Obs) -> Tensor:
        """obs["vector"]: [B, F] -> [B, width]"""
        return self.layers(with_clock(obs["vector"], obs))


class NatureCNN(nn.Module):
    """Mnih et al. 2015: three convolutions and a hidden layer, on frames scaled to 0..1."""

    channels = (32, 64, 64)

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        shape = part(obs_spec, "frame", "nature")
        if len(shape) != 3 or min(shape[1:]) < 36:
            raise ValueError(f"encoder 'nature' reads frames [C, H, W] of at least 36x36, got {list(shape)}")
        first, second, third = self.channels
        self.first = orthogonal(nn.Conv2d(shape[0], first, 8, stride=4))
        self.convolutions = nn.Sequential(
            nn.ReLU(inplace=True),
            orthogonal(nn.Conv2d(first, second, 4, stride=2)),
            nn.ReLU(inplace=True),
            orthogonal(nn.Conv2d(second, third, 3, stride=1)),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        with torch.no_grad():
            flat = self.convolutions(self.first(torch.zeros(1, *shape))).shape[1]
        self.hidden = nn.Sequential(orthogonal(nn.Linear(flat, config.cnn_width)), nn.ReLU(inplace=True))
        self.width = config.cnn_width + ("clock" in obs_spec)
        # Channels last lets oneDNN and cuDNN skip their re-ordering copies.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, obs: Obs) -> Tensor:
        """obs["frame"]: uint8 [B, C, H, W] -> [B, width]"""
        # Bytes are re-ordered before they widen, and 1/255 scales the few weights instead of the many pixels.
        bytes_BCHW = obs["frame"].contiguous(memory_format=torch.channels_last)
        weight, bias = self.first.weight * (1 / 255), self.first.bias
        first_BCHW = nn.functional.conv2d(bytes_BCHW.to(compute_dtype(bytes_BCHW.device)), weight, bias, stride=4)
        return with_clock(self.hidden(self.convolutions(first_BCHW)), obs)


class SmallCNN(NatureCNN):
    """The same with half the channels, for a quick look on a CPU."""

    channels = (16, 32, 32)


ENCODERS = {"mlp": MLP, "nature": NatureCNN, "small": SmallCNN}
