"""Evaluation on environments never trained on: a fixed number of episodes *per environment*.

Taking the first episodes to finish would favour the short ones. Every episode is scored by its raw return.
"""

from typing import Any

import numpy as np
import torch
from scipy import stats

from recollect.envs.registry import EnvConfig, make_env
from recollect.envs.vector import VectorEnv
from recollect.nets.agent import Agent
from recollect.rng import generator, stream_seed

MAX_ENVS, MAX_TENSOR_ENVS = 20, 256  # side by side; a batch on tensors costs hardly more than one environment


def split(episodes: int, tasks: int = 1, most: int = MAX_ENVS) -> tuple[int, int]:
    """(environments, episodes each): as many environments as divide the episodes evenly.

    Where environments play different tasks there is one for each, and each plays enough to make up the episodes.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    if tasks > 1:
        return tasks, -(-episodes // tasks)
    envs = max(n for n in range(1, min(episodes, most) + 1) if episodes % n == 0)
    return envs, episodes // envs


@torch.no_grad()
def play(agent: Agent, env: VectorEnv, each: int, seed: int, greedy: bool) -> tuple[list[float], list[int]]:
    """``each`` episodes in every environment: their raw returns and lengths, environment after environment."""
    noise_stream = generator(seed, "eval-action", device=env.device)
    obs, state = env.reset(stream_seed(seed, "eval")), agent.initial_state(env.num_envs, env.device)
    reset_N = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    scores: list[list[tuple[float, int]]] = [[] for _ in range(env.num_envs)]
    while any(len(s) < each for s in scores):
        if greedy:
            action, state = agent.act_greedily(obs, state, reset_N)
        else:
            acted, state = agent.act(obs, state, reset_N, agent.policy.noise((env.num_envs,), noise_stream))
            action = acted.action
        step = env.step(action)
        obs, reset_N = step.obs, step.terminated | step.truncated
        for i in step.stats.over.nonzero().flatten().tolist():
            scores[i].append((float(step.stats.episode_return[i]), int(step.stats.episode_length[i])))
    kept = [score for per_env in scores for score in per_env[:each]]
    return [r for r, _ in kept], [n for _, n in kept]


def summary(returns: list[float], lengths: list[int]) -> dict[str, Any]:
    """Mean, interquartile mean and the bootstrap's 95 % interval of the mean."""
    values = np.array(returns)
    draws = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
    return {
        "mean": float(values.mean()),
        "iqm": float(stats.trim_mean(values, 0.25)),
        "ci95": [float(x) for x in np.quantile(draws, (0.025, 0.975))],
        "returns": returns,
        "length_mean": float(np.mean(lengths)),
    }


def evaluate(agent: Agent, config: EnvConfig, episodes: int, seed: int, device: torch.device) -> dict[str, Any]:
    """Play sampled and greedily; the headline is the sampled one, as the policy was trained."""
    probe = make_env(config, num_envs=1, device=device)
    probe.close()
    envs, each = split(episodes, probe.tasks, MAX_TENSOR_ENVS if probe.resume == "state" else MAX_ENVS)
    # Captured where that takes no time; to compile for a few thousand steps would take longer than they do.
    env = make_env(config, num_envs=envs, device=device, compiled=device.type == "cuda", fuse=False)
    try:
        blocks = {
            name: summary(*play(agent, env, each, seed, greedy))
            for name, greedy in (("sampled", False), ("greedy", True))
        }
    finally:
        env.close()
    head = {k: blocks["sampled"][k] for k in ("mean", "iqm", "ci95", "returns")}
    return {"env_id": config.env_id, "protocol": env.protocol.card(), "episodes": envs * each, **head, **blocks}
