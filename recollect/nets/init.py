"""How layers are born: orthogonal, with the gain that fits what follows (Saxe et al. 2014)."""

import math

from torch import nn

RELU_GAIN = math.sqrt(2)


def orthogonal(layer: nn.Module, gain: float = RELU_GAIN) -> nn.Module:
    """Orthogonal weights with ``gain``, zero bias. The layer itself is returned."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
