"""A gradient step in pieces is the step on the whole; what fills the pieces up is never learnt."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.algos import actor_critic, policy_gradient, ppo
from recollect.config import override
from recollect.data.episodes import EpisodeCollector, EpisodeRollout, EpisodesConfig
from recollect.envs.registry import EnvConfig, make_env
from recollect.nets.agent import make_agent
from recollect.nets.config import NetConfig

CPU = torch.device("cpu")
ENV = EnvConfig("CartPole-v1", 5)
ALGORITHMS = [policy_gradient, actor_critic, ppo]


def played(core: str) -> tuple[Any, EpisodeRollout]:
    """An agent, and a batch that it played: episodes of about 20 steps in windows of 8."""
    env = make_env(ENV)
    agent = make_agent(env.obs_spec, env.action_spec, NetConfig(core=core, hidden=(8,), core_width=8), 1, CPU)
    stream = torch.Generator().manual_seed(0)
    collector = EpisodeCollector([env], EpisodesConfig(window_steps=8))
    draw = lambda shape: torch.rand(shape, generator=stream)  # noqa: E731
    rollout, _ = collector.collect(agent.act, agent.peek, draw, 1, agent.initial_state)
    assert 0 < rollout.kept.sum() < rollout.kept.numel()
    return agent, rollout


def learnt(algorithm: Any, core: str, rollout: EpisodeRollout, full: bool = False, **settings: Any):
    """Weights and metrics after one update on ``rollout``."""
    config = override(algorithm.Config(), core=core, hidden=(8,), core_width=8, learning_rate=1e-2, **settings)
    if algorithm is ppo:
        config = override(config, collect="episodes", num_minibatches=3, update_epochs=2)
    agent, _ = played(core)
    learner = algorithm.Learner(agent, config, CPU, False)
    learner.compiled = full  # pieces are filled up, nothing is compiled
    more = (0.0,) if algorithm is ppo else ()
    values = learner.update(rollout, 0, *more)
    return torch.cat([weight.detach().flatten() for weight in agent.parameters()]), values


def same(one: tuple[Tensor, dict], other: tuple[Tensor, dict]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    for name in one[1].keys() - {"parity/max_ratio_error"}:
        assert other[1][name] == pytest.approx(one[1][name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_pieces_of_any_size_make_the_same_step(algorithm: Any, core: str):
    _, rollout = played(core)
    whole = learnt(algorithm, core, rollout, rows_at_once=10_000)
    for at_once in (8, 24):
        for full in (False, True):
            same(learnt(algorithm, core, rollout, full, rows_at_once=at_once), whole)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_garbage_in_the_surplus_changes_nothing(algorithm: Any, core: str, contiguous: bool):
    settings = {} if algorithm is actor_critic else {"contiguous": contiguous}
    _, rollout = played(core)
    clean = learnt(algorithm, core, rollout, True, rows_at_once=16, **settings)
    surplus = ~rollout.kept
    spoilt = {"action": 1, "logp": -9.0, "value": 1e6, "reward": 1e6, "final_value": 1e6}
    parts = {name: getattr(rollout, name).masked_fill(surplus, wrong) for name, wrong in spoilt.items()}
    obs = {"vector": rollout.obs["vector"].masked_fill(surplus[..., None], 50.0)}
    spoilt_too = learnt(algorithm, core, replace(rollout, **parts, obs=obs), True, rows_at_once=16, **settings)
    same(spoilt_too, clean)
    assert spoilt_too[1]["parity/max_ratio_error"] == pytest.approx(clean[1]["parity/max_ratio_error"], abs=1e-5)
    wrong = learnt(algorithm, core, replace(rollout, reward=-rollout.reward), True, rows_at_once=16, **settings)
    assert not torch.allclose(wrong[0], clean[0]), "what is kept does count"


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learner_and_actor_agree_before_the_first_step(algorithm: Any, core: str):
    """Windows in the middle of episodes start from the memory that acting had there."""
    _, rollout = played(core)
    assert learnt(algorithm, core, rollout, rows_at_once=16)[1]["parity/max_ratio_error"] < 1e-5
    if core == "gru":
        rollout.state = {name: torch.zeros_like(part) for name, part in rollout.state.items()}
        assert learnt(algorithm, core, rollout, rows_at_once=10_000)[1]["parity/max_ratio_error"] > 1e-5


def test_the_loss_is_the_formula():
    """The policy gradient's loss, by hand: -log pi(a|s) times the normalised return, summed, by rounds."""
    agent, rollout = played("none")
    config = policy_gradient.Config()
    said = agent.replay(rollout.obs, {}, rollout.reset)
    logp_M = said.policy.logp(rollout.action)[rollout.kept]
    return_M = policy_gradient.credit(rollout, override(config, loss_over="steps"))[rollout.kept]
    expected = -(logp_M * return_M).sum() / ENV.num_envs  # CartPole: a round is an episode
    values = learnt(policy_gradient, "none", rollout)[1]
    assert values["loss/policy"] == pytest.approx(expected.item(), rel=1e-4)
    assert values["batch/steps"] == len(logp_M)
    assert values["batch/rounds"] == ENV.num_envs


def test_the_actor_critics_loss_is_the_formula():
    """-log pi(a|s) (G - V) and (V - G)^2 / 2, each a mean over the kept steps; both are learnt from."""
    agent, rollout = played("none")
    return_TN = actor_critic.targets(rollout, actor_critic.Config())
    said = agent.replay(rollout.obs, {}, rollout.reset)
    logp_TN, error_TN = said.policy.logp(rollout.action), return_TN - rollout.value
    weights, values = learnt(actor_critic, "none", rollout)
    assert values["loss/policy"] == pytest.approx((-logp_TN * error_TN)[rollout.kept].mean().item(), rel=1e-4)
    assert values["loss/value"] == pytest.approx((error_TN**2 / 2)[rollout.kept].mean().item(), rel=1e-4)
    assert not torch.allclose(learnt(actor_critic, "none", rollout, vf_coef=0.0)[0], weights)


def test_every_term_has_its_weight_and_sign():
    """A loss is made small: the bonus on entropy is subtracted."""
    for algorithm, more in ((policy_gradient, ()), (actor_critic, ()), (ppo, (torch.tensor(0.7),))):
        config = override(algorithm.Config(), ent_coef=0.3)
        value = {} if algorithm is policy_gradient else {"value": 0.25}
        config = override(config, vf_coef=0.25) if value else config
        weights = {term.name: term.weight for term in algorithm.loss_terms(config, *more)}
        assert weights == {"policy": 1.0, **value, "entropy": -0.3}
    terms = ppo.loss_terms(ppo.Config(kl_coef=0.5), torch.tensor(0.7))
    assert float({term.name: term.weight for term in terms}["kl"]) == pytest.approx(0.7)


@pytest.mark.parametrize("algorithm", [policy_gradient, ppo])
def test_contiguous_minibatches_are_asked_for(algorithm: Any):
    """The same rows in other company make other steps."""
    _, rollout = played("none")
    shuffled, _ = learnt(algorithm, "none", rollout, num_minibatches=2)
    together, _ = learnt(algorithm, "none", rollout, num_minibatches=2, contiguous=True)
    assert not torch.allclose(shuffled, together)
