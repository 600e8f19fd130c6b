"""From features to what an agent says: a distribution over actions, a value. Heads stay in fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recollect.nets.init import orthogonal
from recollect.ops import sampling
from recollect.types import ActionSpec, Discrete

POLICY_GAIN = 0.01  # a near-uniform first policy (Andrychowicz et al. 2021, "What matters in on-policy RL", sec. 3.2)


@dataclass(frozen=True)
class Categorical:
    """A distribution over discrete actions. logits: [..., A]"""

    logits: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """noise: [...] uniform -> int64 [...]"""
        return sampling.categorical_sample(self.logits, noise)

    def mode(self) -> Tensor:
        """The likeliest action. int64 [...]"""
        return self.logits.argmax(-1)

    def logp(self, action: Tensor) -> Tensor:
        """[...]"""
        return sampling.categorical_logp(self.logits, action)

    def entropy(self) -> Tensor:
        """[...]"""
        return sampling.categorical_entropy(self.logits)


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian over continuous actions. mean: [..., A], log_std: [A]"""

    mean: Tensor
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """noise: [..., A] standard normal -> [..., A]"""
        return sampling.gaussian_sample(self.mean, self.log_std, noise)

    def mode(self) -> Tensor:
        """The mean. [..., A]"""
        return self.mean

    def logp(self, action: Tensor) -> Tensor:
        """[...]"""
        return sampling.gaussian_logp(self.mean, self.log_std, action)

    def entropy(self) -> Tensor:
        """[...]"""
        return sampling.gaussian_entropy(self.log_std).expand(self.mean.shape[:-1])


Distribution = Categorical | Gaussian


class CategoricalHead(nn.Module):
    """Logits from features."""

    def __init__(self, width: int, actions: int):
        super().__init__()
        self.logits = orthogonal(nn.Linear(width, actions), POLICY_GAIN)

    def forward(self, feature: Tensor) -> Categorical:
        """feature: [..., D] fp32"""
        return Categorical(self.logits(feature))

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """What ``sample`` needs: one uniform number an action. shape -> [*shape]"""
        return torch.rand(shape, generator=generator, device=generator.device)


class GaussianHead(nn.Module):
    """Mean from features; a learnt standard deviation that does not depend on them."""

    def __init__(self, width: int, dim: int, initial_log_std: float):
        super().__init__()
        self.mean = orthogonal(nn.Linear(width, dim), POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((dim,), initial_log_std))

    def forward(self, feature: Tensor) -> Gaussian:
        """feature: [..., D] fp32"""
        return Gaussian(self.mean(feature), self.log_std)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """What ``sample`` needs: a standard normal a dimension. shape -> [*shape, A]"""
        return torch.randn((*shape, len(self.log_std)), generator=generator, device=generator.device)


def policy_head(width: int, action_spec: ActionSpec, initial_log_std: float) -> CategoricalHead | GaussianHead:
    """The head that fits the actions."""
    if isinstance(action_spec, Discrete):
        return CategoricalHead(width, action_spec.n)
    return GaussianHead(width, action_spec.dim, initial_log_std)


class ValueHead(nn.Module):
    """One number from features."""

    def __init__(self, width: int):
        super().__init__()
        self.value = orthogonal(nn.Linear(width, 1), 1.0)

    def forward(self, feature: Tensor) -> Tensor:
        """feature: [..., D] fp32 -> [...]"""
        return self.value(feature).squeeze(-1)
