"""How layers are born: orthogonal, with the gain that fits what follows (Saxe et al. 2014)."""

import math
from typing import TypeVar

from torch import nn

RELU_GAIN = math.sqrt(2)

LayerT = TypeVar("LayerT", nn.Linear, nn.Conv2d, nn.Conv3d)


def orthogonal(layer: LayerT, gain: float = RELU_GAIN) -> LayerT:
    """Orthogonal weights with ``gain``, zero bias. The layer itself is returned."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
