"""The reference for Atari engines: one game on a bare ALEInterface."""

import ale_py
import ale_py.roms
import cv2
import numpy as np


class SingleGame:
    """One game on a bare ALEInterface, a decision at a time: the reference that every pixel is compared with."""

    def __init__(self, rom: str, seed: int, sticky: float):
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(rom))
        self.actions = self.ale.getMinimalActionSet()
        self.restart()

    def restart(self) -> None:
        self.ale.reset_game()
        self.stack = np.zeros((4, 84, 84), np.uint8)
        self._push(self.ale.getScreenGrayscale())

    def _push(self, screen: np.ndarray) -> None:
        small = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
        self.stack = np.concatenate([self.stack[1:], small[None]])

    def step(self, action: int, skip: int = 4, pool: bool = False) -> float:
        screens, reward = [self.ale.getScreenGrayscale()], 0.0
        for _ in range(skip):
            reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        self._push(np.maximum(screens[-1], screens[-2]) if pool else screens[-1])
        return reward
