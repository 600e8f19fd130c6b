"""What each rung of the ladder pays: gamma = 0.1 makes returns read 1.23.

One environment, two points: the rewards 1, 2, 3 | 4, 5, and one step of surplus that must not count.
"""

import pytest
import torch
from torch import Tensor

from recollect.algos import actor_critic, policy_gradient, ppo
from recollect.data.episodes import EpisodeRollout
from recollect.ops.returns import normalise


def column(*per_step: float) -> Tensor:
    """One environment. [T, 1]"""
    return torch.tensor(per_step, dtype=torch.float32)[:, None]


def mask(*per_step: int) -> Tensor:
    return torch.tensor(per_step, dtype=torch.bool)[:, None]


def batch(value: float = 0.0, truncated: bool = False) -> EpisodeRollout:
    """Five steps of an episode of two rounds, and a step of the next. ``truncated``: by a limit, worth 6 behind it."""
    last, none = mask(0, 0, 0, 0, 1, 0), mask(0, 0, 0, 0, 0, 0)
    return EpisodeRollout(
        obs={},
        action=column(0, 0, 0, 0, 0, 0).long(),
        logp=column(0, 0, 0, 0, 0, 0),
        value=column(*[value] * 6),
        reward=column(1, 2, 3, 4, 5, 99),
        terminated=none if truncated else last,
        truncated=last if truncated else none,
        round_end=mask(0, 0, 1, 0, 1, 0),
        reset=mask(1, 0, 0, 0, 0, 1),
        final_value=column(0, 0, 0, 0, 6, 0),
        last_value=torch.tensor([99.0]),
        state={},
        kept=mask(1, 1, 1, 1, 1, 0),
        cut_off=torch.tensor([False]),
        window=6,
        stack=1,
    )


def reads(credit_TN: Tensor, *expected: float) -> None:
    torch.testing.assert_close(credit_TN[:5, 0], torch.tensor(expected, dtype=torch.float32))


PLAIN = {"gamma": 0.1, "return_norm": "none", "loss_over": "steps"}


def paid(**settings) -> Tensor:
    return policy_gradient.credit(batch(), policy_gradient.Config(**{**PLAIN, **settings}))


def test_the_policy_gradient_is_paid_by_round_or_by_episode():
    reads(paid(), 1.23, 2.3, 3, 4.5, 5)
    reads(paid(credit_by="episode"), 1.2345, 2.345, 3.45, 4.5, 5)
    reads(paid(gamma=1.0), 6, 5, 3, 9, 5)
    assert paid()[5] == 0, "the surplus is paid nothing"


def test_a_trajectory_is_paid_as_a_whole():
    reads(paid(credit_of="trajectory"), 1.23, 1.23, 1.23, 4.5, 4.5)
    reads(paid(credit_of="trajectory", credit_by="episode"), *[1.2345] * 5)


def test_dividing_by_rounds_is_a_sum_over_each_round():
    """Five steps, two rounds: the mean over steps times 5 / 2; by episode times 5."""
    factor = 2.5
    reads(paid(loss_over="rounds"), *[factor * x for x in (1.23, 2.3, 3, 4.5, 5)])
    reads(paid(loss_over="rounds", credit_by="episode"), *[5 * x for x in (1.2345, 2.345, 3.45, 4.5, 5)])


def test_normalising_looks_at_the_batch_and_not_at_its_surplus():
    """Returns 6, 5, 3, 9, 5 without a discount: mean 5.6, variance 3.84."""
    reads(paid(gamma=1.0, return_norm="mean-std"), *[(x - 5.6) / 3.84**0.5 for x in (6, 5, 3, 9, 5)])
    reads(paid(gamma=1.0, return_norm="std"), *[x / 3.84**0.5 for x in (6, 5, 3, 9, 5)])


def test_normalising_after_discounting_favours_the_longer_of_two_lost_rounds():
    """The source's example: lost after 10 steps and after 20; the first steps of the longer one stand highest."""
    short, long = [-(0.99**k) for k in range(9, -1, -1)], [-(0.99**k) for k in range(19, -1, -1)]
    assert [round(x, 2) for x in (short[0], short[-1], long[0])] == [-0.91, -1, -0.83]
    scaled = normalise(torch.tensor(short + long), "mean-std")
    assert scaled[10] == scaled.max() > 0 > scaled[9]
    assert scaled[10:].mean() > 0 > scaled[:10].mean()


def targets(truncated: bool = False, **settings) -> Tensor:
    config = actor_critic.Config(**{"gamma": 0.1, **settings})
    return actor_critic.targets(batch(value=2.0, truncated=truncated), config)


def test_the_actor_critic_compares_with_what_it_was_asked_for():
    """Every value is 2, worth 0.2 a step before; what ends a round is followed by nothing."""
    reads(targets(credit="monte-carlo"), 1.23, 2.3, 3, 4.5, 5)
    reads(targets(credit="td"), 1.2, 2.2, 3, 4.2, 5)
    reads(targets(credit="n-step", n_step=2), 1.22, 2.3, 3, 4.5, 5)
    reads(targets(credit="n-step", n_step=3), 1.23, 2.3, 3, 4.5, 5)
    reads(targets(credit="longest"), 1.23, 2.3, 3, 4.5, 5)
    reads(targets(credit="gae", gae_lambda=1.0), 1.23, 2.3, 3, 4.5, 5)
    reads(targets(credit="gae", gae_lambda=0.0), 1.2, 2.2, 3, 4.2, 5)
    reads(targets(credit="td", credit_by="episode"), 1.2, 2.2, 3.2, 4.2, 5)


def test_a_truncated_episode_bootstraps_and_only_monte_carlo_does_not():
    """Behind the limit it was worth 6: 5 + 0.1 x 6 = 5.6, and 4.56 a step before."""
    reads(targets(True, credit="longest"), 1.23, 2.3, 3, 4.56, 5.6)
    reads(targets(True, credit="td"), 1.2, 2.2, 3, 4.2, 5.6)
    reads(targets(True, credit="gae", gae_lambda=1.0), 1.23, 2.3, 3, 4.56, 5.6)
    reads(targets(True, credit="monte-carlo"), 1.23, 2.3, 3, 4.5, 5)


@pytest.mark.parametrize(("credit_by", "returns"), [("round", (1.23, 2.3, 3)), ("episode", (1.2345, 2.345, 3.45))])
def test_ppo_takes_credit_by_round_or_by_episode(credit_by: str, returns: tuple[float, ...]):
    config = ppo.Config(gamma=0.1, gae_lambda=1.0, advantage_norm="none", credit_by=credit_by)  # type: ignore[arg-type]
    advantage_TN, target_TN = ppo.credit(batch(value=2.0), config)
    reads(target_TN, *returns, 4.5, 5)
    reads(advantage_TN, *[x - 2 for x in returns], 2.5, 3)
    assert advantage_TN[5] == 0
