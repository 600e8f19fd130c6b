"""How episodes begin: the games after so many no-ops, worked out once for all of them."""

import dataclasses

import torch
from torch import Tensor

from recollect.envs.pong import rules
from recollect.envs.pong.physics import Physics
from recollect.envs.pong.rules import Game
from recollect.envs.vector import Protocol
from recollect.nested import map_tensors


def pick(games: Game, index_N: Tensor) -> Game:
    """The games of these numbers. index: int64 [N]"""
    return map_tensors(lambda part: part[index_N], games)


def openings(protocol: Protocol, usual: Physics) -> Game:
    """Games after 0, 1, ... no-ops, the first of them FIRE where the protocol has a fire reset. Every field is [M]"""
    device = usual.noise.device
    game = rules.start(1, device)
    still, fire = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.bool, device=device)
    games = []
    for number in range(max(protocol.noop_max, int(protocol.fire_reset)) + 1):
        games.append(game)
        game, _, _ = rules.frame(game, still, fire | (protocol.fire_reset and number == 0), usual)
    games = games[int(protocol.fire_reset) :]
    return Game(
        **{field.name: torch.cat([getattr(g, field.name) for g in games]) for field in dataclasses.fields(Game)}
    )
