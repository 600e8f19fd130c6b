"""One sampled episode, watched: what each head attends to, by age and along some steps of play, as plain data.

Shares are of what a head reads: its weights, scaled to sum to 1 (relu^2 weights sum to less).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.envs.vector import VectorEnv
from recollect.nets.agent import Agent
from recollect.rng import generator, stream_seed
from recollect.types import Discrete, Obs, State

SHOWN_STEPS = 240  # steps of play that are shown one by one
SHOWN_CELLS = 150_000  # shares that are kept of them at most: about half a megabyte
SHARE_UNIT = 10_000  # shares of single steps are kept as whole numbers of this unit: a third of the text

# L layers, H heads, T steps, A ages 0..W.

See = Callable[[Obs, State, Tensor, Tensor], Any]
"""Called before each decision with (obs, state, reset, action) of one environment."""


def play_one(agent: Agent, env: VectorEnv, seed: int, max_steps: int, see: See) -> list[float]:
    """One sampled episode, the same for the same seed whoever sees it. The raw reward of each decision."""
    device = env.device
    noise_stream = generator(seed, "film-action", device=device)
    obs, state = env.reset(stream_seed(seed, "film")), agent.initial_state(1, device)
    reset_N, score, rewards = torch.ones(1, dtype=torch.bool, device=device), 0.0, []
    for _ in range(max_steps):
        acted, after = agent.act(obs, state, reset_N, agent.policy.noise((1,), noise_stream))
        see(obs, state, reset_N, acted.action)
        step = env.step(acted.action)
        before, score = score, float(step.stats.episode_return[0])
        rewards.append(score - before)
        if bool(step.stats.over[0]):
            break  # what follows belongs to the next episode
        obs, state, reset_N = step.obs, after, step.terminated | step.truncated
    return rewards


@torch.no_grad()
def watch(agent: Agent, env: VectorEnv, seed: int, max_steps: int) -> dict[str, Any]:
    """One episode of an agent that attends to past steps, as ``attention.json`` holds it."""
    weights: list[np.ndarray] = []
    clocks: list[int] = []
    scenes: list[dict[str, float]] = []
    actions: list[list[float]] = []

    def see(obs: Obs, state: State, reset_N: Tensor, action: Tensor) -> None:
        seen = agent.attended(obs, state, reset_N)
        clocks.append(0 if bool(reset_N[0]) else clocks[-1] + 1)
        weights.append(np.stack([weight_NHA[0].cpu().numpy() for weight_NHA in seen]))  # [L, H, A]
        scenes.append({name: float(part[0]) for name, part in env.scene().items()})
        actions.append(action[0].reshape(-1).tolist())

    rewards = play_one(agent, env, seed, max_steps, see)
    share_TLHA = np.stack(weights)
    share_TLHA = share_TLHA / np.maximum(share_TLHA.sum(-1, keepdims=True), np.finfo(np.float32).tiny)
    spec = env.action_spec
    discrete = isinstance(spec, Discrete)
    part = shown_part(len(rewards), *(share_TLHA.shape[at] for at in (1, 3)))
    names = ["action"] if discrete else [f"action {at + 1}" for at in range(len(actions[0]))]
    return {
        "look_back": share_TLHA.shape[3] - 1,
        "layers": share_TLHA.shape[1],
        "heads": share_TLHA.shape[2],
        "watched_steps": len(rewards),
        "watched_return": _rounded(sum(rewards), 4),
        "mean": _rounded(mean_by_age(share_TLHA, np.array(clocks)), 6),
        "on_sight": on_sight(share_TLHA, np.array(clocks), scenes),
        "first": part.start,
        "unit": SHARE_UNIT,
        "maps": maps(share_TLHA[part]),
        "reward": _rounded(rewards[part], 4),
        "actions": dict(zip(names, _rounded(np.array(actions[part]).T, 4), strict=True)),
        "action_names": list(spec.names) if discrete else [],
        "scene": {name: [_rounded(scene[name], 2) for scene in scenes[part]] for name in scenes[0]},
    }


def _rounded(values: Any, digits: int) -> Any:
    """As plain numbers that are short to write."""
    return np.round(np.asarray(values, np.float64), digits).tolist()


def shown_part(steps: int, layers: int, ages: int) -> slice:
    """The steps to show: from where the whole look-back is filled, or as late as there are steps left to show."""
    count = min(SHOWN_STEPS, max(1, SHOWN_CELLS // (layers * ages)), steps)
    first = min(ages - 1, steps - count)
    return slice(first, first + count)


def mean_by_age(share_TLHA: np.ndarray, clock_T: np.ndarray) -> np.ndarray:
    """The mean share of each age over the steps that had a step so long ago. [L, H, A]"""
    having_A = (clock_T[:, None] >= np.arange(share_TLHA.shape[3])).sum(0)
    return share_TLHA.sum(0) / np.maximum(having_A, 1)


def maps(share_TLHA: np.ndarray) -> list[dict[str, Any]]:
    """Shares step by step in units of ``SHARE_UNIT``: of each layer's mean over its heads, then of heads, as fit."""
    layers, heads = share_TLHA.shape[1:3]
    each: list[tuple[int, int | None]] = [(layer, None) for layer in range(layers)]
    if heads > 1:
        each += [(layer, head) for layer in range(layers) for head in range(heads)]
    room = max(layers, SHOWN_CELLS // (share_TLHA.shape[0] * share_TLHA.shape[3]))
    made = []
    for layer, head in each[:room]:
        share_TA = share_TLHA[:, layer].mean(1) if head is None else share_TLHA[:, layer, head]
        made.append({"layer": layer, "head": head, "share": np.rint(share_TA * SHARE_UNIT).astype(int).tolist()})
    return made


def on_sight(share_TLHA: np.ndarray, clock_T: np.ndarray, scenes: list[dict[str, float]]) -> dict[str, Any] | None:
    """Of what is read while the ball is hidden, the share that comes from steps at which it was seen.

    ``even`` is that share if all steps within reach were read alike. None where no ball was ever hidden.
    """
    if not scenes or not {"ball_there", "ball_visible"} <= scenes[0].keys():
        return None
    seen_T = np.array([scene["ball_visible"] for scene in scenes]) > 0
    hidden = np.flatnonzero(np.array([scene["ball_there"] for scene in scenes]) > seen_T)
    if not len(hidden):
        return None
    shares, even = [], []
    for t in hidden:
        ages = min(clock_T[t] + 1, share_TLHA.shape[3])
        past_A = seen_T[t - np.arange(ages)]
        shares.append(share_TLHA[t, :, :, :ages][:, :, past_A].sum(-1))
        even.append(past_A.mean())
    return {"steps": len(hidden), "share": _rounded(np.mean(shares, 0), 4), "even": _rounded(np.mean(even), 4)}
