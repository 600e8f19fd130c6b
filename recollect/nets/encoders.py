"""From an observation to features. An encoder is built from (obs_spec, config), has ``width``, maps Obs to [B, width].

Add one: a class here and a line in ``ENCODERS``; or in your own file, named ``--encoder mine.py:MyEncoder``.
"""

import math

import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.init import orthogonal
from recollect.types import Obs, ObsSpec, TensorSpec

Layers = tuple[tuple[int, int, int, int], ...]  # channels, kernel, stride, padding of each convolution
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "none": nn.Identity}


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


class Frames:
    """Reads the stacked frames for an encoder: as they are or, with ``NetConfig.difference``, their differences.

    difference[k] = frame[k + 1] - frame[k], the oldest first, and 0 where frame[k] is empty (zeros everywhere):
    environments empty the stack at a reset, so the first observation of an episode has no difference at all, as in
    Karpathy's program, instead of a whole picture that appears from nothing.

    Pixels are handed out as they are; ``scale`` takes them to 0..1 and their differences to -1..1. An encoder
    multiplies the weights of its first layer by it: they are fewer than the pixels.
    """

    def __init__(self, obs_spec: ObsSpec, config: NetConfig, encoder: str, *, fewest: int = 1, smallest: int = 1):
        """``fewest`` frames (or differences) of at least ``smallest`` x ``smallest`` pixels, or a ValueError."""
        shape = part(obs_spec, "frame", encoder)
        if len(shape) != 3 or min(shape[1:]) < smallest:
            raise ValueError(
                f"encoder {encoder!r} reads frames [C, H, W] of at least {smallest}x{smallest}, got {list(shape)}"
            )
        self.difference = config.difference
        fewest += self.difference
        if shape[0] < fewest:
            what = f"encoder {encoder!r}" + (" with difference" if self.difference else "")
            raise ValueError(f"{what} reads at least {fewest} stacked frames, the environment shows {shape[0]}")
        self.background = 0 if config.difference else config.background  # differences have none
        if self.background > obs_spec["frame"].high:
            raise ValueError(f"background {self.background} is brighter than frames get: {obs_spec['frame'].high:g}")
        self.shape = (shape[0] - self.difference, *shape[1:])
        self.scale = pixel_scale(obs_spec["frame"])

    def __call__(self, obs: Obs, layout: torch.memory_format = torch.contiguous_format) -> Tensor:
        """obs["frame"]: [B, C, H, W] -> the same, or [B, C - 1, H, W] differences, in the dtype of the arithmetic."""
        frame_BCHW = obs["frame"]
        dtype = compute_dtype(frame_BCHW.device)
        if self.difference:
            return differences(frame_BCHW, dtype).contiguous(memory_format=layout)
        wide_BCHW = frame_BCHW.contiguous(memory_format=layout).to(dtype)  # bytes are re-ordered before they widen
        return wide_BCHW - self.background if self.background else wide_BCHW


def pixel_scale(spec: TensorSpec) -> float:
    """What takes a pixel to 0..1: one over the brightest that there is; 1 where that is not known."""
    if math.isfinite(spec.high):
        return 1 / spec.high
    return 1.0 if spec.dtype.is_floating_point else 1 / torch.iinfo(spec.dtype).max


def differences(frame_BCHW: Tensor, dtype: torch.dtype) -> Tensor:
    """frame[k + 1] - frame[k], 0 where frame[k] is empty; of bytes exact in bf16 too. -> dtype [B, C - 1, H, W]"""
    seen_BC = frame_BCHW[:, :-1].flatten(2).any(-1)
    wide_BCHW = frame_BCHW.to(dtype)
    return (wide_BCHW[:, 1:] - wide_BCHW[:, :-1]) * seen_BC[:, :, None, None]


def blocks(x_BCHW: Tensor, weight_OCKK: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """A convolution with a stride as one without, on blocks of pixels: the same sum, in a shape that hardware likes.

    Each block of stride x stride pixels becomes one pixel with more channels. x: [B, C, H, W] -> channels last
    [B, C stride stride, H', W'], weight: [O, C, K, K] -> [O, C stride stride, K / stride, K / stride]
    """
    batch, channels, height, width = x_BCHW.shape
    out, kernel = weight_OCKK.shape[0], weight_OCKK.shape[-1] // stride
    high, wide = ((size - kernel * stride) // stride + kernel for size in (height, width))
    cropped = x_BCHW[:, :, : high * stride, : wide * stride]
    split = cropped.reshape(batch, channels, high, stride, wide, stride).permute(0, 2, 4, 1, 3, 5)
    pixels = split.reshape(batch, high, wide, channels * stride * stride).permute(0, 3, 1, 2)
    taps = weight_OCKK.reshape(out, channels, kernel, stride, kernel, stride).permute(0, 1, 3, 5, 2, 4)
    weight = taps.reshape(out, channels * stride * stride, kernel, kernel)
    return pixels, weight.contiguous(memory_format=torch.channels_last)


def hidden_layers(width: int, config: NetConfig) -> tuple[nn.Sequential, int]:
    """The mlp's layers on so many inputs, and how many features they give out."""
    layers: list[nn.Module] = []
    for hidden in config.hidden:
        layers += [orthogonal(nn.Linear(width, hidden)), ACTIVATIONS[config.activation]()]
        width = hidden
    return nn.Sequential(*layers), width


class MLP(nn.Module):
    """Hidden layers: the usual network for positions and joint angles. Where there are none it reads frames, flat."""

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        if not {"vector", "frame"} & obs_spec.keys():
            raise ValueError(f"encoder 'mlp' reads 'vector' or 'frame', but the observation has {', '.join(obs_spec)}")
        reads_frames = config.difference or "vector" not in obs_spec
        self.frames = Frames(obs_spec, config, "mlp") if reads_frames else None
        width = math.prod(self.frames.shape if self.frames else part(obs_spec, "vector", "mlp"))
        self.layers, self.width = hidden_layers(width + ("clock" in obs_spec), config)

    def forward(self, obs: Obs) -> Tensor:
        """obs["vector"]: [B, F] or obs["frame"]: [B, C, H, W] -> [B, width]"""
        input_BF = obs["vector"] if self.frames is None else self.frames(obs).flatten(1) * self.frames.scale
        return self.layers(with_clock(input_BF, obs))


class Fourier(nn.Module):
    """Hidden layers that see positions as waves too: sin and cos of (pi / 2) 2^k x for k = 0 .. frequencies - 1.

    An mlp learns slowly what changes over a small distance, as where to hold a paddle does (Tancik et al. 2020).
    """

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        (width,) = part(obs_spec, "vector", "fourier")
        self.frequencies = config.frequencies
        self.layers, self.width = hidden_layers(width * (1 + 2 * self.frequencies) + ("clock" in obs_spec), config)

    def forward(self, obs: Obs) -> Tensor:
        """obs["vector"]: [B, F], best within -1..1 -> [B, width]"""
        vector_BF = obs["vector"]
        angles = [vector_BF * (math.pi / 2 * 2**k) for k in range(self.frequencies)]
        waves = [wave for angle in angles for wave in (angle.sin(), angle.cos())]
        return self.layers(with_clock(torch.cat([vector_BF, *waves], -1), obs))


class Flat(nn.Module):
    """2-D convolutions over frames as channels, then a linear layer."""

    def __init__(self, shape: tuple[int, ...], scale: float, layers: Layers, width: int):
        """shape: [C, H, W] of what is read; scale: see ``Frames``."""
        super().__init__()
        self.scale = scale
        made: list[nn.Conv2d] = []
        inputs = shape[0]
        for channels, kernel, stride, padding in layers:
            made.append(orthogonal(nn.Conv2d(inputs, channels, kernel, stride, padding)))
            inputs = channels
        self.first, self.steps = made[0], layers[0][2:]
        self.rest = nn.Sequential(*(module for conv in made[1:] for module in (conv, nn.ReLU(inplace=True))))
        self.linear = orthogonal(nn.Linear(_flat_size(self, shape), width))
        # Channels last lets oneDNN and cuDNN skip their re-ordering copies.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def convolve(self, x_BCHW: Tensor) -> Tensor:
        """All but the linear layer. [B, C, H, W] -> [B, ...] flat"""
        weight, bias, stride, edge = self.first.weight * self.scale, self.first.bias, *self.steps
        if x_BCHW.is_cuda and weight.shape[-1] % stride == 0:  # cuDNN is faster on blocks, oneDNN is not
            x = nn.functional.conv2d(*blocks(nn.functional.pad(x_BCHW, [edge] * 4), weight, stride), bias)
        else:
            x = nn.functional.conv2d(x_BCHW, weight, bias, stride, edge)
        return self.rest(x.relu_()).flatten(1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Unscaled pixels or differences, best in channels-last order. [B, C, H, W] -> [B, width]"""
        return self.linear(self.convolve(x_BCHW))


class Deep(nn.Module):
    """3-D convolutions over frames as depth, then a linear layer: what moves is a slanted line in depth."""

    def __init__(self, shape: tuple[int, ...], scale: float, width: int):
        """shape: [D, H, W] of what is read; scale: see ``Frames``."""
        super().__init__()
        self.scale = scale
        self.first = orthogonal(nn.Conv3d(1, 16, (3, 8, 8), stride=(2, 4, 4), padding=(0, 2, 2)))
        self.second = orthogonal(nn.Conv3d(16, 32, (3, 4, 4), stride=2, padding=(0, 1, 1)))
        self.linear = orthogonal(nn.Linear(_flat_size(self, shape), width))

    def convolve(self, x_BDHW: Tensor) -> Tensor:
        """All but the linear layer. [B, D, H, W] -> [B, ...] flat"""
        first = self.first
        x = filled(x_BDHW[:, None])
        x = nn.functional.conv3d(x, first.weight * self.scale, first.bias, first.stride, first.padding)
        return self.second(filled(x.relu_())).relu_().flatten(1)

    def forward(self, x_BDHW: Tensor) -> Tensor:
        """Unscaled pixels or differences. [B, D, H, W] -> [B, width]"""
        return self.linear(self.convolve(x_BDHW))


def filled(x_BCDHW: Tensor) -> Tensor:
    """Zeros put before the oldest, so that windows of 3 in steps of 2 end on the newest. [B, C, D or more, H, W]"""
    depth = x_BCDHW.shape[2]
    missing = 3 - depth if depth < 3 else 1 - depth % 2
    return nn.functional.pad(x_BCDHW, (0, 0, 0, 0, missing, 0)) if missing else x_BCDHW


@torch.no_grad()
def _flat_size(network: Flat | Deep, shape: tuple[int, ...]) -> int:
    """How many numbers the convolutions give for frames of this shape."""
    return network.convolve(torch.zeros(1, *shape)).shape[1]


class CNN(nn.Module):
    """Two convolutions and a linear layer, for Pong's 80x80 binary frames."""

    name, smallest = "cnn", 8
    layers: Layers = ((16, 8, 4, 2), (32, 4, 2, 1))

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        self.frames = Frames(obs_spec, config, self.name, smallest=self.smallest)
        self.network = Flat(self.frames.shape, self.frames.scale, self.layers, config.cnn_width)
        self.width = config.cnn_width + ("clock" in obs_spec)

    def features(self, obs: Obs) -> Tensor:
        """All but the clock. [B, cnn_width]"""
        return self.network(self.frames(obs, torch.channels_last))

    def forward(self, obs: Obs) -> Tensor:
        """obs["frame"]: [B, C, H, W] -> [B, width]"""
        return with_clock(self.features(obs), obs)


class NatureCNN(CNN):
    """Mnih et al. 2015: three convolutions and a hidden layer."""

    name, smallest = "nature", 36
    layers = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))

    def features(self, obs: Obs) -> Tensor:
        """The last layer is a hidden one. [B, cnn_width]"""
        return super().features(obs).relu_()


class SmallCNN(NatureCNN):
    """The same with half the channels, for a quick look on a CPU."""

    name = "small"
    layers = ((16, 8, 4, 0), (32, 4, 2, 0), (32, 3, 1, 0))


class CNN3D(nn.Module):
    """As ``CNN`` with one dimension more: the history in depth."""

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        self.frames = Frames(obs_spec, config, "cnn3d", fewest=2, smallest=8)
        self.network = Deep(self.frames.shape, self.frames.scale, config.cnn_width)
        self.width = config.cnn_width + ("clock" in obs_spec)

    def forward(self, obs: Obs) -> Tensor:
        """obs["frame"]: [B, D, H, W] -> [B, width]"""
        return with_clock(self.network(self.frames(obs)), obs)


class CNN3D2D(nn.Module):
    """3-D features of the history beside 2-D features of the newest frame, ``cnn_width`` of each."""

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        self.frames = Frames(obs_spec, config, "cnn3d2d", fewest=2, smallest=8)
        (_, *size), scale = self.frames.shape, self.frames.scale
        self.history = Deep(self.frames.shape, scale, config.cnn_width)
        self.newest = Flat((1, *size), scale, CNN.layers, config.cnn_width)
        self.width = 2 * config.cnn_width + ("clock" in obs_spec)

    def forward(self, obs: Obs) -> Tensor:
        """obs["frame"]: [B, D, H, W] -> [B, width]"""
        x_BDHW = self.frames(obs)
        feature_BD = torch.cat([self.history(x_BDHW), self.newest(x_BDHW[:, -1:])], -1)
        return with_clock(feature_BD, obs)


ENCODERS = {
    "mlp": MLP,
    "fourier": Fourier,
    "cnn": CNN,
    "cnn3d": CNN3D,
    "cnn3d2d": CNN3D2D,
    "nature": NatureCNN,
    "small": SmallCNN,
}
