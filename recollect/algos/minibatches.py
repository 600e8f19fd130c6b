"""From a batch of experience to what gradient steps learn from: shuffled rows, or windows of consecutive steps."""

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from recollect.algos.loss import Minibatch
from recollect.data.episodes import EpisodeRollout, Piece
from recollect.data.rollout import Rollout, rows_of, shuffled_rows, windows_of
from recollect.types import obs_map


def minibatches(
    rollout: Rollout, advantage_TN: Tensor, target_TN: Tensor, count: int, windows: bool, stream: torch.Generator
) -> Iterator[Minibatch]:
    """One pass over a segment: shuffled rows, or ``windows``, whole segments of shuffled environments."""
    steps, envs = advantage_TN.shape
    cut = windows_of if windows else rows_of
    for index in shuffled_rows(envs if windows else steps * envs, count, stream):
        pick = functools.partial(cut, index_B=index)
        yield Minibatch(
            obs=obs_map(pick, rollout.obs),
            state={name: part[index] for name, part in rollout.state.items()},
            reset=pick(rollout.reset),
            action=pick(rollout.action),
            logp=pick(rollout.logp),
            value=pick(rollout.value),
            advantage=pick(advantage_TN),
            target=pick(target_TN),
            before=None if rollout.before is None else rollout.before.of(index),
        )


def pieces(
    rollout: EpisodeRollout, advantage_TN: Tensor, target_TN: Tensor, cut: Sequence[Piece]
) -> Sequence[Minibatch]:
    """One minibatch of whole episodes, in pieces."""

    def minibatch(piece: Piece) -> Minibatch:
        def pick(part_TN: Tensor) -> Tensor:
            return part_TN.flatten(0, 1)[piece.index]

        return Minibatch(
            obs=rollout.observed(piece.index),
            state=piece.state,
            reset=pick(rollout.reset),
            action=pick(rollout.action),
            logp=pick(rollout.logp),
            value=pick(rollout.value),
            advantage=pick(advantage_TN),
            target=pick(target_TN),
            weight=piece.weight,
        )

    return [minibatch(piece) for piece in cut]
