"""The vector environment's contract as checks that every engine passes: ``check_contract(make, ...)``.

``make(num_envs, first_env)`` builds an engine; ``sample_action(env, generator)`` draws actions for all of it,
``random_action`` if the engine asks for nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.envs.vector import VectorEnv
from recollect.rng import generator
from recollect.types import Continuous, Discrete, Obs, Step

Make = Callable[[int, int], VectorEnv]
SampleAction = Callable[[VectorEnv, torch.Generator], Tensor]


def random_action(env: VectorEnv, rng: torch.Generator) -> Tensor:
    """Uniform actions, [N] int64 or [N, A] float32; continuous ones range beyond the bounds, which engines clip."""
    spec = env.action_spec
    if isinstance(spec, Discrete):
        return torch.randint(spec.n, (env.num_envs,), generator=rng)
    assert isinstance(spec, Continuous)
    low, high = torch.tensor(spec.low).clamp(min=-1), torch.tensor(spec.high).clamp(max=1)
    return 1.2 * (low + (high - low) * torch.rand(env.num_envs, spec.dim, generator=rng))


def draw_actions(env: VectorEnv, sample_action: SampleAction, steps: int, seed: int = 0) -> list[Tensor]:
    rng = generator(seed, "test actions")
    return [sample_action(env, rng) for _ in range(steps)]


def play(env: VectorEnv, actions: list[Tensor]) -> Iterator[Step]:
    for action in actions:
        yield env.step(action)


def rows(step: Step, part: slice = slice(None)) -> list[Tensor]:
    """Everything a step says about some of the environments, in a fixed order; the episode's length is the sixth."""
    stats = step.stats
    own = (step.reward, step.terminated, step.truncated, step.round_end)
    scores = (stats.episode_return, stats.episode_length, stats.over)
    return [t[part] for t in (*own, *scores, *step.obs.values(), *step.final_obs.values())]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def same_obs(a: Obs, b: Obs) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@dataclass(frozen=True)
class Engines:
    """Few engines for many checks, since some are slow to build: a batch, its twin, and the batch as two halves."""

    whole: VectorEnv
    twin: VectorEnv
    low: VectorEnv
    high: VectorEnv

    @property
    def parts(self) -> tuple[tuple[VectorEnv, slice], tuple[VectorEnv, slice]]:
        half = self.low.num_envs
        return (self.low, slice(0, half)), (self.high, slice(half, None))


def check_contract(
    make: Make,
    sample_action: SampleAction = random_action,
    steps: int = 300,
    *,
    num_envs: int = 4,
    distinct: bool = True,
) -> None:
    """Every promise of the contract that holds for all engines; ``distinct=False`` for games without any chance.

    ``steps`` must be enough for an episode to end.
    """
    half = num_envs // 2
    engines = Engines(make(num_envs, 0), make(num_envs, 0), make(half, 0), make(num_envs - half, half))
    actions = draw_actions(engines.whole, sample_action, steps)
    check_episodes(engines.whole, actions)
    check_streams(engines, actions)
    check_distinct(engines, actions, distinct)
    check_resume(engines, actions[: min(steps, 20)], distinct)
    for env in (engines.whole, engines.twin, engines.low, engines.high):
        env.close()


def check_obs(env: VectorEnv, obs: Obs) -> None:
    assert obs.keys() == env.obs_spec.keys()
    for name, spec in env.obs_spec.items():
        assert obs[name].shape == (env.num_envs, *spec.shape), name
        assert obs[name].dtype is spec.dtype, name
        assert obs[name].device.type == env.device.type, name
        assert obs[name].min() >= spec.low, name
        assert obs[name].max() <= spec.high, name


def check_step(env: VectorEnv, step: Step) -> None:
    """Shapes, dtypes and what one step alone can show."""
    check_obs(env, step.obs)
    check_obs(env, step.final_obs)
    masks = {"terminated": step.terminated, "truncated": step.truncated, "round_end": step.round_end}
    for name, mask in {**masks, "over": step.stats.over}.items():
        assert mask.dtype is torch.bool, name
        assert mask.shape == (env.num_envs,), name
    for part in (step.reward, step.stats.episode_return):
        assert part.dtype is torch.float32
        assert part.shape == (env.num_envs,)
    assert step.stats.episode_length.dtype is torch.int64
    ended = step.terminated | step.truncated
    assert not (step.terminated & step.truncated).any(), "an end is either a termination or a truncation"
    assert not (ended & ~step.round_end).any(), "every end is the end of a round"
    assert not (step.stats.over & ~ended).any(), "a scored episode ends only where a training episode does"
    assert env.protocol.life_loss_ends or torch.equal(step.stats.over, ended)
    assert step.may_truncate or not step.truncated.any()
    for name in step.obs:
        assert torch.equal(step.final_obs[name][~ended], step.obs[name][~ended]), "final_obs is obs where nothing ended"


def check_episodes(env: VectorEnv, actions: list[Tensor]) -> None:
    """Play: steps are sound, scores add up, and what was handed out is never written again."""
    obs = env.reset(0)
    check_obs(env, obs)
    total, length = torch.zeros(env.num_envs), torch.zeros(env.num_envs, dtype=torch.int64)
    held = [({k: v.clone() for k, v in obs.items()}, obs)]
    ends = 0
    for step in play(env, actions):
        check_step(env, step)
        total, length = total + step.reward, length + 1
        assert torch.equal(step.stats.episode_length, length)
        if not env.protocol.clip_reward:
            torch.testing.assert_close(step.stats.episode_return, total, rtol=0, atol=1e-4)
        if env.protocol.max_episode_steps:
            assert (length <= env.protocol.max_episode_steps).all()
        total, length = total.masked_fill(step.stats.over, 0), length.masked_fill(step.stats.over, 0)
        ends += int(step.stats.over.sum())
        for part in (step.obs, step.final_obs):
            held.append(({k: v.clone() for k, v in part.items()}, part))
        held = held[-12:]
        assert all(same_obs(*pair) for pair in held), "an observation was overwritten while it was held"
    assert ends, "no episode ended, so this checked little: give more steps or a lower limit"


def check_streams(engines: Engines, actions: list[Tensor]) -> None:
    """Streams belong to (seed, environment): not to the batch, its grouping or what was played before.

    The halves' steps are in flight together.
    """
    whole, twin = engines.whole, engines.twin
    twin.reset(8)
    twin.step(actions[0])
    first = whole.reset(3)
    assert same_obs(first, twin.reset(3)), "equal seeds start alike, whatever was played before"
    for env, part in engines.parts:
        assert same_obs({name: value[part] for name, value in first.items()}, env.reset(3)), "grouping moved a stream"
    for t, action in enumerate(actions):
        for env, part in engines.parts:
            env.send(action[part])
        step = whole.step(action)
        assert same(rows(step), rows(twin.step(action))), f"equal seeds part at step {t}"
        for env, part in engines.parts:
            assert same(rows(step, part), rows(env.recv())), f"grouping moved a stream at step {t}"


def check_distinct(engines: Engines, actions: list[Tensor], distinct: bool) -> None:
    """Every environment and every seed draws from a stream of its own."""
    whole, twin = engines.whole, engines.twin
    obs, other_obs = whole.reset(3), twin.reset(4)
    seen, other_seen = list(obs.values()), list(other_obs.values())
    for action in actions:  # environment 0's actions for everyone: whatever differs is the stream
        alike = action[:1].expand_as(action).contiguous()
        seen += whole.step(alike).obs.values()
        other_seen += twin.step(alike).obs.values()
    histories = {b"".join(part[i].numpy().tobytes() for part in seen) for i in range(whole.num_envs)}
    assert len(histories) == (whole.num_envs if distinct else 1)
    assert same(seen, other_seen) != distinct, "another seed makes other episodes"


def check_resume(engines: Engines, actions: list[Tensor], distinct: bool) -> None:
    """``state`` and ``replay`` go on exactly; ``restart`` opens new episodes on new streams and counts from zero."""
    env, resumed = engines.whole, engines.twin
    seen = [list(env.reset(6).values()), *(rows(step) for step in play(env, actions))]
    state = {name: part.clone() for name, part in env.state_dict().items()}
    resumed.reset(7)
    obs = resumed.load_state_dict(state)
    check_obs(resumed, obs)
    if env.resume == "restart":
        again = [list(obs.values()), *(rows(step) for step in play(resumed, actions))]
        assert torch.equal(again[1][5], torch.ones_like(again[1][5])), "episodes are counted from zero"
        differs = not all(same(a, b) for a, b in zip(seen, again, strict=True))
        assert differs == distinct, "a restart plays new episodes"
        return
    for t, (expected, step) in enumerate(zip(play(env, actions), play(resumed, actions), strict=True)):
        assert same(rows(expected), rows(step)), f"the resumed run parts at step {t}"
