"""The console's 128 bytes of memory, those of them that the game's rules account for.

Bytes 2, 121 and 122 are scratch of the program that draws, and differ; all others are the ALE's.
"""

import torch
from torch import Tensor

from recollect.envs.pong import rules
from recollect.envs.pong.rules import Events, Game
from recollect.types import State

SIZE = 128
SCRATCH = (2, 121, 122)
# fmt: off
CONSTANT = {
    0: 192, 5: 38, 15: 63, 16: 255, 23: 24, 24: 128, 25: 32, 26: 1, 27: 86, 28: 247, 29: 86, 30: 247, 31: 86, 32: 247,
    33: 134, 34: 243, 35: 245, 36: 243, 37: 240, 38: 240, 39: 242, 40: 242, 41: 32, 42: 32, 43: 64, 44: 64, 45: 64,
    46: 188, 47: 65, 48: 189, 52: 37, 53: 37, 59: 109, 61: 37, 62: 37, 63: 192, 65: 192, 66: 192, 68: 192, 70: 247,
    72: 247, 74: 247, 75: 202, 76: 247, 124: 236, 125: 242, 126: 121, 127: 240,
}
# fmt: on
WALL_SOUND, HIT_SOUND, SERVE_SOUND, POINT_SOUND = 131, 195, 71, 14  # kind in the upper bits, frames left in the lower
SOUND_FRAMES = 63
NOBODY, OPPONENT, PLAYER = 255, 0, 1


def start(num_envs: int, device: torch.device) -> State:
    """What memory holds beside the game's own state. {name: int32 [N]}"""

    def whole(value: int) -> Tensor:
        return torch.full((num_envs,), value, dtype=torch.int32, device=device)

    return {"sound": whole(0), "last_hit": whole(NOBODY), "hits": whole(0), "bounced": whole(0), "shown": whole(0)}


def follow(extra: State, before: Game, events: Events) -> State:
    """``start``'s numbers after a frame that brought ``events``."""
    wall, hit, point = events.top | events.bottom, events.hit_left | events.hit_right, events.lost | events.won
    running = extra["sound"] & SOUND_FRAMES
    sound = torch.where(before.clock > rules.LAST_CLOCK, 0, extra["sound"] - (running > 0).int())
    for happened, begins in ((wall, WALL_SOUND), (hit, HIT_SOUND), (point, POINT_SOUND), (events.serve, SERVE_SOUND)):
        sound = torch.where(happened, begins, sound)
    last_hit = torch.where(events.hit_left, OPPONENT, torch.where(events.hit_right, PLAYER, extra["last_hit"]))
    hits = torch.where(events.serve, 0, (extra["hits"] + hit) & 255)
    # Only free flight clears the mark, and a ball that is still drawn inside the upper wall.
    still = point | (hit & (before.ball_y >= rules.TOP + 3)) | (before.wait > 0) | (before.clock >= rules.LAST_CLOCK)
    bounced = torch.where(wall, 128, torch.where(still, extra["bounced"], 0))
    return {"sound": sound, "last_hit": last_hit, "hits": hits, "bounced": bounced, "shown": before.right}


def memory(game: Game, extra: State) -> Tensor:
    """The 128 bytes. uint8 [N, 128]"""
    clock, last_hit = game.clock, extra["last_hit"]
    reads = (clock & 1) == 0
    fire = torch.where(game.fire, 0, 192)
    title = clock >= rules.LAST_CLOCK
    over = clock > rules.LAST_CLOCK
    tint = (clock - rules.LAST_CLOCK) // 256 + 1
    hue = ((clock - 1 - rules.LAST_CLOCK) // 256 + 1) & 15  # of the frame before
    changing = {
        4: torch.where(reads, rules.read_knob(game.knob), rules.FAR_PADDLE),
        7: _last_row(extra["shown"] % 10),
        8: clock & 255,
        9: clock >> 8,
        10: torch.where(title, tint, ((clock & 255) == 0).int()),
        11: game.wait,
        12: extra["sound"],
        13: game.left,
        14: game.right,
        16: torch.where(over, 0, 255),
        17: extra["hits"],
        18: last_hit,
        19: torch.where(last_hit == NOBODY, 253, last_hit + 2),
        20: extra["bounced"],
        21: game.opponent,
        49: game.ball_x,
        50: game.opponent,
        51: game.paddle,
        54: game.ball_y,
        56: game.speed_y,
        58: game.speed_x,
        60: game.aim,
        64: fire,
        67: torch.where(last_hit == NOBODY, 1, torch.where(last_hit == PLAYER, fire, 192)),
        69: _digit(game.left % 10),
        71: _digit(game.right % 10),
        73: _digit(game.left // 10),
        75: _digit(game.right // 10),
        123: torch.where(over & (hue >= 5) & (hue <= 7), 118, 54),
    }
    bytes_N128 = [torch.full_like(clock, CONSTANT.get(at, 0)) for at in range(SIZE)]
    for at, value in changing.items():
        bytes_N128[at] = value.floor().to(torch.int32) if value.is_floating_point() else value.to(torch.int32)
    return (torch.stack(bytes_N128, -1) & 255).to(torch.uint8)


def _digit(number: Tensor) -> Tensor:
    """Where the picture of a digit lies."""
    return 202 + 5 * number


def _last_row(digit: Tensor) -> Tensor:
    """The bits of the last row of a digit's picture: a drawing loop leaves them behind."""
    right_only = (digit == 4) | (digit == 7) | (digit == 9)
    return torch.where(digit == 1, 0b010, torch.where(right_only, 0b001, 0b111))
