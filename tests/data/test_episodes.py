"""Whole episodes: a fixed number from every environment, each step in its place, nothing of the surplus learnt."""

from collections.abc import Iterator

import pytest
import torch
from coded import ENVS, Coded, Reader, code, initial_state, length_of, truncates
from torch import Tensor

from recollect.algos.loss import Minibatch
from recollect.algos.minibatches import pieces
from recollect.data.episodes import EpisodeCollector, EpisodeRollout, EpisodesConfig
from recollect.data.rollout import Episodes
from recollect.envs.registry import EnvConfig, make_env
from recollect.envs.vector import VectorEnv
from recollect.types import Acted, Obs, State, TensorSpec


def draw(shape: tuple[int, int]) -> Tensor:
    """Noise that says whose it is. [T, N, 1]"""
    return torch.arange(float(ENVS)).expand(shape)[..., None]


def collector_of(*sizes: int, each: int = 2, window: int = 4, max_steps: int = 1000) -> EpisodeCollector:
    starts = [sum(sizes[:g]) for g in range(len(sizes))]
    config = EpisodesConfig(episodes_per_env=each, window_steps=window, max_steps=max_steps)
    return EpisodeCollector([Coded(size, start) for size, start in zip(sizes, starts, strict=True)], config)


def collect(collector: EpisodeCollector) -> tuple[EpisodeRollout, Episodes]:
    return collector.collect(Reader().act, Reader().peek, draw, 0, initial_state)


def steps_of(n: int, each: int) -> list[tuple[int, int]]:
    """The oracle: (episode, step) of the episodes that environment n is to bring."""
    return [(episode, step) for episode in range(each) for step in range(length_of(n, episode))]


@pytest.mark.parametrize("sizes", [(6,), (3, 3), (2, 4)])
@pytest.mark.parametrize(("each", "window"), [(1, 4), (2, 4), (3, 5), (2, 64), (2, 1)])
def test_every_environment_brings_its_episodes_whole_and_no_more(sizes: tuple[int, ...], each: int, window: int):
    rollout, episodes = collect(collector_of(*sizes, each=each, window=window))
    longest = max(len(steps_of(n, each)) for n in range(ENVS))
    assert len(rollout.reward) == -(-longest // window) * window, "it stops with the window in which all are done"
    for n in range(ENVS):
        expected = steps_of(n, each)
        assert rollout.kept[:, n].tolist() == [t < len(expected) for t in range(len(rollout.reward))]
        for t, (episode, step) in enumerate(expected):
            here = torch.tensor([n, episode, step]).float()
            number, last = float(code(here)), step == length_of(n, episode) - 1
            cut = last and truncates(n, episode)
            assert rollout.obs["vector"][t, n].tolist() == here.tolist()
            assert rollout.action[t, n].tolist() == here.tolist()
            assert rollout.reward[t, n] == number
            assert (rollout.logp[t, n], rollout.value[t, n]) == (number + 0.5, number + 0.25)
            assert bool(rollout.reset[t, n]) == (step == 0)
            assert (bool(rollout.terminated[t, n]), bool(rollout.truncated[t, n])) == (last and not cut, cut)
            assert rollout.final_value[t, n] == (number + 1 + 0.125 if cut else 0)
    assert len(episodes.returns) == each * ENVS
    assert sorted(episodes.lengths) == sorted(length_of(n, e) for n in range(ENVS) for e in range(each))
    assert sum(episodes.lengths) == rollout.kept.sum() == rollout.counts("episode")["batch/steps"]
    assert rollout.rounds("episode") == each * ENVS
    assert rollout.counts("episode")["batch/cut_off"] == 0
    share = rollout.counts("episode")["batch/surplus_share"]
    assert share == pytest.approx(1 - sum(episodes.lengths) / rollout.kept.numel())


def test_what_is_open_at_the_limit_is_truncated_there_and_bootstraps_from_its_own_memory():
    """Two windows of 4: environments whose two episodes last longer are stopped after step 7."""
    rollout, episodes = collect(collector_of(6, max_steps=7))
    assert len(rollout.reward) == 8
    open_N = torch.tensor([len(steps_of(n, 2)) > 8 for n in range(ENVS)])
    assert 0 < open_N.sum() < ENVS
    for n in range(ENVS):
        episode, step = (steps_of(n, 2) + [(-1, -1)] * 8)[7]
        ends = step == length_of(n, episode) - 1
        if open_N[n] and not ends:
            assert rollout.truncated[7, n]
            assert rollout.final_value[7, n] == code(torch.tensor([n, episode, step + 1]).float()) + 0.125
            assert rollout.next_value[7, n] == rollout.final_value[7, n]
        assert not rollout.kept[7, n] or bool(rollout.ended[7, n])
    finished = sum(len(steps_of(n, 2)) <= 8 for n in range(ENVS)) * 2
    assert finished <= len(episodes.returns) < 2 * ENVS
    assert rollout.counts("episode")["batch/cut_off"] == rollout.cut_off.sum() > 0


def test_the_next_batch_starts_afresh():
    collector = collector_of(6)
    first = {name: getattr(collect(collector)[0], name).clone() for name in ("reward", "reset", "kept")}
    again, _ = collect(collector)
    for name, part in first.items():
        assert torch.equal(getattr(again, name), part), name
    assert again.reset[0].all()


def test_memory_before_each_window_is_its_environments():
    rollout, _ = collect(collector_of(3, 3))
    seen_KN3 = rollout.state["seen"]
    assert (seen_KN3[0] == -7).all(), "the first starts from the initial state"
    for k in range(1, len(seen_KN3)):
        before = rollout.obs["vector"][4 * k - 1]
        assert torch.equal(seen_KN3[k], before + torch.tensor([0.0, 0.0, 1.0]))


# --- minibatches -----------------------------------------------------------------------------------------------------


def cut(rollout: EpisodeRollout, count: int, contiguous: bool, at_once: int, full: bool) -> Iterator[list[Minibatch]]:
    number_TN = code(rollout.obs["vector"])
    stream = torch.Generator().manual_seed(0)
    for parts in rollout.minibatches(count, contiguous, at_once, full, stream):
        yield list(pieces(rollout, number_TN + 2, number_TN + 4, parts))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize(("count", "at_once"), [(1, 1000), (1, 8), (4, 5), (1000, 8)])
def test_a_pass_takes_every_kept_row_once(count: int, at_once: int, contiguous: bool, full: bool):
    rollout, _ = collect(collector_of(6))
    batches = list(cut(rollout, count, contiguous, at_once, full))
    seen, shapes = [], set()
    for batch in batches:
        assert sum(float(piece.weight.sum()) for piece in batch) == pytest.approx(1), "a mean over the minibatch"
        kept = sum(int((piece.weight > 0).sum()) for piece in batch)
        for piece in batch:
            number_TB = code(piece.obs["vector"])
            assert torch.equal(code(piece.action), number_TB)
            for name, offset in {"logp": 0.5, "value": 0.25, "advantage": 2, "target": 4}.items():
                assert torch.equal(getattr(piece, name), number_TB + offset), name
            assert torch.equal(piece.reset, piece.obs["vector"][..., 2] == 0)
            assert piece.weight.unique().tolist() in ([0], [0, 1 / kept], [1 / kept]) or torch.allclose(
                piece.weight[piece.weight > 0], torch.tensor(1 / kept)
            ), "all rows count alike"
            seen += number_TB[piece.weight > 0].tolist()
            shapes.add((piece.weight.shape, piece.weight.stride(), piece.action.stride()))
    expected = [float(code(torch.tensor([n, e, s]).float())) for n in range(ENVS) for e, s in steps_of(n, 2)]
    assert sorted(seen) == sorted(expected)
    if full:
        assert len(shapes) == 1, "one shape, and one order in memory, for what is captured or compiled"
    assert len(batches) == min(count, len(expected) if not contiguous else len(batches))


def test_contiguous_windows_keep_time_and_memory():
    rollout, _ = collect(collector_of(6))
    for batch in cut(rollout, 3, True, 8, True):
        for piece in batch:
            assert piece.weight.shape == (4, 2), "8 rows at once are two windows of 4"
            told_TB3 = piece.obs["vector"]
            assert (told_TB3[:, :, 0] == told_TB3[0, :, 0]).all(), "one environment from top to bottom"
            age_B = piece.state["seen"][:, 2]
            opens_B = piece.reset[0]
            assert torch.equal(age_B[~opens_B], told_TB3[0, ~opens_B, 2]), "with the memory of the step before"


def test_scaling_looks_at_kept_rows_only():
    rollout, _ = collect(collector_of(6))
    credit_TN = torch.where(rollout.kept, code(rollout.obs["vector"]), torch.nan)
    scaled_TN = rollout.scaled(credit_TN, "mean-std")
    assert (scaled_TN[~rollout.kept] == 0).all()
    inside = rollout.counted(scaled_TN)
    assert inside.mean() == pytest.approx(0, abs=1e-5)
    assert inside.std(correction=0) == pytest.approx(1, abs=1e-5)


# --- frames ----------------------------------------------------------------------------------------------------------


class Watcher:
    """Plays at random and writes down what it saw."""

    def __init__(self, actions: int):
        self.actions, self.seen = actions, []

    def act(self, obs: Obs, state: State, reset_N: Tensor, noise_N: Tensor) -> tuple[Acted, State]:
        self.seen.append(obs["frame"].clone())
        zero_N = torch.zeros(len(reset_N))
        return Acted((noise_N * self.actions).long(), zero_N, zero_N), {}

    def peek(self, obs: Obs, state: State) -> Tensor:
        return torch.zeros(len(obs["frame"]))


def frames_are_put_together_again(env: VectorEnv, **settings: int) -> None:
    collector = EpisodeCollector([env], EpisodesConfig(**settings))
    stream, watcher = torch.Generator().manual_seed(0), Watcher(env.action_spec.n)  # type: ignore[union-attr]
    rollout, _ = collector.collect(
        watcher.act, watcher.peek, lambda shape: torch.rand(shape, generator=stream), 1, lambda n, device: {}
    )
    assert env.stack > 1
    assert rollout.obs["frame"].shape[2] == 1, "only the newest is stored"
    seen_TN = torch.stack(watcher.seen)
    assert (rollout.reset.sum(0) > 1).all(), "an episode began in the middle"
    steps, envs = rollout.reset.shape
    everything = torch.arange(steps * envs).view(steps, envs)
    assert torch.equal(rollout.observed(everything)["frame"], seen_TN)
    some = torch.randint(0, steps * envs, (1, 50), generator=stream)
    assert torch.equal(rollout.observed(some)["frame"], seen_TN.flatten(0, 1)[some])


@pytest.mark.parametrize("options", [("obs=binary", "stack=4", "actions=two"), ("stack=2",)])
def test_frames_of_tensor_pong_are_put_together_again(options: tuple[str, ...]):
    config = EnvConfig("recollect/Pong-v0", 2, env_options=(*options, "max_episode_steps=9"))
    frames_are_put_together_again(make_env(config), episodes_per_env=2, window_steps=8)


@pytest.mark.parametrize("protocol", ["v5-pooled", "v0-random-skip"])
def test_frames_of_the_ale_are_put_together_again(protocol: str):
    pytest.importorskip("ale_py")
    config = EnvConfig("ALE/Pong-v5", 2, protocol=protocol, env_options=("max_episode_steps=9",))
    env = make_env(config)
    frames_are_put_together_again(env, episodes_per_env=2, window_steps=8)
    env.close()


def test_frames_of_lost_lives_do_not_leak_into_the_next_episode():
    """The stored stack is cut where ``reset`` says that an episode begins, whatever stood there before."""
    config = EpisodesConfig(window_steps=4)
    env = Coded(6)
    env.stack, env.obs_spec = 3, {**env.obs_spec, "frame": TensorSpec((3, 1, 1), torch.uint8)}
    real = env._obs

    def observed() -> Obs:
        return real() | {"frame": (10 * env.episode + env.clock + 1).view(-1, 1, 1, 1).expand(-1, 3, 1, 1).byte()}

    env._obs = observed  # type: ignore[method-assign]
    collector = EpisodeCollector([env], EpisodesConfig(episodes_per_env=3, window_steps=config.window_steps))
    rollout, _ = collect(collector)
    everything = torch.arange(rollout.reset.numel()).view_as(rollout.reset)
    stacks_TN = rollout.observed(everything)["frame"].flatten(-3)
    for n in range(ENVS):
        for t, (episode, step) in enumerate(steps_of(n, 3)):
            expected = [10 * episode + s + 1 if s >= 0 else 0 for s in (step - 2, step - 1, step)]
            assert stacks_TN[t, n].tolist() == expected
