"""Credit: how the rewards of a segment become returns and advantages.

Every function takes time first, ``[T, N]``, and two masks. ``terminal_TN`` is true where nothing follows the step, so
nothing is bootstrapped. ``cut_TN`` is true where credit stops flowing backwards (an episode's end, or a point in
Pong); a cut that is not terminal bootstraps from ``next_value_TN``.
"""

import torch
from torch import Tensor


def next_values(value_TN: Tensor, last_value_N: Tensor, truncated_TN: Tensor, final_value_TN: Tensor) -> Tensor:
    """The value of what follows each step *within its own episode*. [T, N]

    V'[t] = V(final_obs[t]) where the step was truncated, else V(obs[t+1]); at t = T-1 that is ``last_value_N``.
    Taking V(obs[t+1]) at a truncation would credit one episode with the next one's first state.
    """
    assert value_TN.shape == truncated_TN.shape == final_value_TN.shape
    following_TN = torch.cat([value_TN[1:], last_value_N[None]])
    return torch.where(truncated_TN, final_value_TN, following_TN)


def discounted(reward_TN: Tensor, cut_TN: Tensor, last_return_N: Tensor, gamma: float) -> Tensor:
    """Discounted return from each step on. [T, N]

    G[t] = r[t] + gamma (1 - cut[t]) G[t+1], with G[T] = ``last_return_N``. A cut at points discounts by round.
    """
    assert reward_TN.shape == cut_TN.shape
    keep_TN = gamma * (~cut_TN).to(reward_TN.dtype)
    return_TN, running_N = torch.empty_like(reward_TN), last_return_N
    for t in reversed(range(reward_TN.shape[0])):
        running_N = reward_TN[t] + keep_TN[t] * running_N
        return_TN[t] = running_N
    return return_TN


def trajectory(return_TN: Tensor, cut_TN: Tensor) -> Tensor:
    """The return of the whole stretch between two cuts, as it was at its first step, for each of its steps. [T, N]

    Later actions are then paid for rewards that came before them: right on average, at a higher variance.
    """
    assert return_TN.shape == cut_TN.shape
    whole_TN, running_N = torch.empty_like(return_TN), return_TN[0]
    for t in range(return_TN.shape[0]):
        whole_TN[t] = running_N
        if t + 1 < return_TN.shape[0]:
            running_N = torch.where(cut_TN[t], return_TN[t + 1], running_N)
    return whole_TN


def td_error(reward_TN: Tensor, value_TN: Tensor, next_value_TN: Tensor, terminal_TN: Tensor, gamma: float) -> Tensor:
    """One-step temporal difference. [T, N]

    delta[t] = r[t] + gamma (1 - terminal[t]) V'[t] - V[t]; what stands behind a terminal step is never read.
    """
    assert reward_TN.shape == value_TN.shape == next_value_TN.shape == terminal_TN.shape
    return reward_TN + gamma * next_value_TN.masked_fill(terminal_TN, 0) - value_TN


def n_step(
    reward_TN: Tensor, next_value_TN: Tensor, terminal_TN: Tensor, cut_TN: Tensor, gamma: float, steps: int
) -> Tensor:
    """Return of ``steps`` rewards and the value of what follows them; fewer up to a cut or the segment's end. [T, N]

    R1[t] = r[t] + gamma (1 - terminal[t]) V'[t];  Rn[t] = r[t] + gamma R(n-1)[t+1], at a cut and at T-1 R1[t].
    With ``steps`` >= T these are A2C's longest returns: every step bootstraps from the segment's end. More steps mean
    less bias from the value function, and more variance.
    """
    assert reward_TN.shape == next_value_TN.shape == terminal_TN.shape == cut_TN.shape
    one_TN = reward_TN + gamma * next_value_TN.masked_fill(terminal_TN, 0)
    return_TN = one_TN
    for _ in range(min(steps, len(one_TN)) - 1):
        longer_TN = reward_TN[:-1] + gamma * return_TN[1:]
        return_TN = torch.cat([torch.where(cut_TN[:-1], one_TN[:-1], longer_TN), one_TN[-1:]])
    return return_TN


def longest(reward_TN: Tensor, next_value_TN: Tensor, terminal_TN: Tensor, cut_TN: Tensor, gamma: float) -> Tensor:
    """Every reward up to the next cut or the segment's end, and the value of what follows there. [T, N]

    Mnih et al. 2016, algorithm S3. The same as ``n_step`` with as many steps as there are, in one sweep.
    """
    assert reward_TN.shape == next_value_TN.shape == terminal_TN.shape == cut_TN.shape
    ends_TN = cut_TN.clone()
    ends_TN[-1] = True
    ahead_TN = next_value_TN.masked_fill(terminal_TN | ~ends_TN, 0)
    return discounted(reward_TN + gamma * ahead_TN, ends_TN, torch.zeros_like(reward_TN[0]), gamma)


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    next_value_TN: Tensor,
    terminal_TN: Tensor,
    cut_TN: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16). [T, N]

    A[t] = delta[t] + gamma lambda (1 - cut[t]) A[t+1], with A[T] = 0; its value target is A + V.
    """
    delta_TN = td_error(reward_TN, value_TN, next_value_TN, terminal_TN, gamma)
    return discounted(delta_TN, cut_TN, torch.zeros_like(delta_TN[0]), gamma * gae_lambda)


def normalise(advantage: Tensor, how: str, epsilon: float = 1e-8) -> Tensor:
    """Scale advantages of any shape: ``mean-std`` centres and scales, ``std`` only scales, ``none`` leaves them.

    A batch of one has no spread: its deviation counts as zero instead of NaN.
    """
    if how == "none":
        return advantage
    scale = advantage.std(correction=0) + epsilon
    if how == "mean-std":
        return (advantage - advantage.mean()) / scale
    if how == "std":
        return advantage / scale
    raise ValueError(f"advantage normalisation is 'mean-std', 'std' or 'none', not {how!r}")
