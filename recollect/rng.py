"""Random streams keyed by (seed, purpose, where): a new consumer of randomness changes none of the others.

Nothing here is global and nothing needs saving: a stream is found again from its key, which is why a resumed run
draws what an uninterrupted one would have drawn.
"""

import hashlib

import torch


def stream_seed(seed: int, purpose: str, *where: int) -> int:
    """A 31-bit seed for one stream; ``where`` names the environment, episode or update it belongs to."""
    key = f"{seed}|{purpose}|{'|'.join(map(str, where))}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % (2**31 - 1)


def generator(seed: int, purpose: str, *where: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator at the start of one stream."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, purpose, *where))
