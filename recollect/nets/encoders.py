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


def blocks(frame_BCHW: Tensor, weight_OCKK: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """A convolution with a stride as one without, on blocks of pixels: the same sum, in a shape that hardware likes.

    Each block of stride x stride pixels becomes one pixel with more channels. frame: [B, C, H, W] -> channels last
    [B, C stride stride, H', W'], weight: [O, C, K, K] -> [O, C stride stride, K / stride, K / stride]
    """
    batch, channels, height, width = frame_BCHW.shape
    out, kernel = weight_OCKK.shape[0], weight_OCKK.shape[-1] // stride
    high, wide = ((size - kernel * stride) // stride + kernel for size in (height, width))
    cropped = frame_BCHW[:, :, : high * stride, : wide * stride]
    split = cropped.reshape(batch, channels, high, stride, wide, stride).permute(0, 2, 4, 1, 3, 5)
    pixels = split.reshape(batch, high, wide, channels * stride * stride).permute(0, 3, 1, 2)
    taps = weight_OCKK.reshape(out, channels, kernel, stride, kernel, stride).permute(0, 1, 3, 5, 2, 4)
    weight = taps.reshape(out, channels * stride * stride, kernel, kernel)
    return pixels, weight.contiguous(memory_format=torch.channels_last)


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
        bytes_BCHW, weight, stride = obs["frame"], self.first.weight * (1 / 255), 4
        if bytes_BCHW.is_cuda:  # cuDNN is 2.7 times as fast on blocks, oneDNN is not
            bytes_BCHW, weight, stride = *blocks(bytes_BCHW, weight, stride), 1
        bytes_BCHW = bytes_BCHW.contiguous(memory_format=torch.channels_last)
        widened = bytes_BCHW.to(compute_dtype(bytes_BCHW.device))
        first_BCHW = nn.functional.conv2d(widened, weight, self.first.bias, stride)
        return with_clock(self.hidden(self.convolutions(first_BCHW)), obs)


class SmallCNN(NatureCNN):
    """The same with half the channels, for a quick look on a CPU."""

    channels = (16, 32, 32)


ENCODERS = {"mlp": MLP, "nature": NatureCNN, "small": SmallCNN}
