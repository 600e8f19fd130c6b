"""Attention over the last steps of one's own episode: ONE band mask, learnt over segments, acted on from ring buffers.

A query sees itself and ``W`` steps back (``W`` is ``look_back``), in its own episode only. A layer asks a memory to
``read`` and does not know which of two answers: ``Acting``, one step against cached keys, or ``Segment``, many steps
at once. So the two cannot drift apart in anything but the memory itself.

The state is one clock and two rings a layer. ``clock`` counts the steps of the episode so far; the step at clock ``c``
writes slot ``c mod (W + 1)``, so a slot's age is ``(c - slot) mod (W + 1)`` and the slot is of this episode where its
age is at most ``c``. Nothing else says what is valid, and what is not valid is never read, whatever it holds.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.nets.flex import banded_flex
from recollect.types import State

LEAST_BLOCK = 64  # queries; smaller blocks are too many, larger ones read too many keys that they do not see
FLEX_WIDTHS = (16, 128)  # features a head: what a Triton product takes, and what fits on a chip in fp32

# Legend beyond types.py: H heads, d features of a query or key a head, e of a value, S keys, A = W + 1 ages 0..W.


def visible(age: Tensor, query_episode: Tensor, key_episode: Tensor, look_back: int) -> Tensor:
    """THE mask: whether a query sees a key that is ``age`` steps older. Any shapes that broadcast -> bool."""
    return (age >= 0) & (age <= look_back) & (query_episode == key_episode)


def cached_episode(age: Tensor, clock: Tensor) -> Tensor:
    """0, the running episode, where a cached step is no older than that, else -1, which nobody is in."""
    return torch.where(age <= clock, 0, -1)


def attend(
    query_NHLd: Tensor, key_NHSd: Tensor, value_NHSe: Tensor, visible_N1LS: Tensor, bias: Tensor | None, squared: bool
) -> Tensor:
    """Values weighted by softmax(q k / sqrt(d) + bias), or by the mean of relu(...)^2 if ``squared``. [N, H, L, e]

    Each row sees at least itself, so no softmax is over nothing. bias: broadcasts to [N, H, L, S].
    """
    if squared:
        scores_NHLS = query_NHLd.float() @ key_NHSd.float().transpose(-1, -2) / math.sqrt(query_NHLd.shape[-1])
        scores_NHLS = scores_NHLS if bias is None else scores_NHLS + bias
        weight_NHLS = scores_NHLS.relu().square().masked_fill(~visible_N1LS, 0.0)
        weight_NHLS = weight_NHLS / visible_N1LS.sum(-1, keepdim=True)
        return (weight_NHLS @ value_NHSe.float()).to(value_NHSe.dtype)
    mask = visible_N1LS
    if bias is not None:
        mask = bias.to(query_NHLd.dtype).masked_fill(~visible_N1LS, -torch.inf)
    return F.scaled_dot_product_attention(query_NHLd, key_NHSd, value_NHSe, attn_mask=mask)


def rotation(clock_TN: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of clock x 10000^(-2i/width) (Su et al. 2021, RoFormer). Each [T, N, 1, width / 2] fp32

    In float64: a float32 angle at clock 27,000 is already off by 1e-3, and the distance between two of them with it.
    """
    pair = torch.arange(width // 2, device=clock_TN.device, dtype=torch.float64)
    angle = clock_TN.double()[..., None, None] * 10_000.0 ** (-2 * pair / width)
    return angle.cos().float(), angle.sin().float()


def rotate(x_TNHd: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (x[i], x[i + d/2]) by its angle; products of turned vectors know the distance alone."""
    (cos, sin), (one, other) = turn, x_TNHd.float().chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1).to(x_TNHd.dtype)


class Acting:
    """One step of N environments against their rings. ``state`` is left alone; ``next_state`` is the one after."""

    def __init__(self, state: State, reset_N: Tensor, look_back: int):
        clock_N = state["clock"].masked_fill(reset_N, 0)
        slot_S = torch.arange(look_back + 1, device=clock_N.device)
        age_NS = (clock_N[:, None] - slot_S) % (look_back + 1)
        self.state, self.next_state, self.clock_TN = state, {"clock": clock_N + 1}, clock_N[None]
        self.age_NS, self.slot_N = age_NS, clock_N % (look_back + 1)
        zero = torch.zeros_like(age_NS)
        self.visible_NS = visible(age_NS, zero, cached_episode(age_NS, clock_N[:, None]), look_back)

    def read(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, by_age: Tensor | None = None, squared: bool = False
    ) -> Tensor:
        """Write this step's key and value, then attend. Each [1, N, H, d or e] -> [1, N, H, e]

        by_age: a bias for each age, broadcasts to [N, H, 1, A].
        """
        keys_NHSd = self._write(f"key.{layer}", key)
        values_NHSe = self._write(f"value.{layer}", value)
        out_NH1e = self._attended(query, keys_NHSd, values_NHSe, by_age, squared)
        return out_NH1e.permute(2, 0, 1, 3).to(query.dtype)

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor, by_age: Tensor | None, squared: bool) -> Tensor:
        """What one query [1, N, H, d] reads in the slots. keys, values: [N, H, S, d or e] -> [N, H, 1, e]"""
        bias = None
        if by_age is not None:
            age_N11S = self.age_NS[:, None, None]
            bias = by_age.expand(len(age_N11S), -1, -1, -1).gather(-1, age_N11S.expand(-1, by_age.shape[1], -1, -1))
        query_NH1d = query.permute(1, 2, 0, 3).to(keys.dtype)
        return attend(query_NH1d, keys, values, self.visible_NS[:, None, None], bias, squared)

    def _write(self, name: str, new_1NHd: Tensor) -> Tensor:
        """The ring with this step in its slot and zeros in the slots that are not valid. [N, H, S, d]"""
        ring_NHSd = _kept(self.state[name].detach(), self.visible_NS)
        slot_NH1d = self.slot_N[:, None, None, None].expand(*ring_NHSd.shape[:2], 1, ring_NHSd.shape[3])
        new_NH1d = new_1NHd.permute(1, 2, 0, 3).to(ring_NHSd.dtype)
        self.next_state[name] = ring_NHSd.scatter_(2, slot_NH1d, new_NH1d)
        return self.next_state[name]


def _kept(ring_NHSd: Tensor, kept_NS: Tensor) -> Tensor:
    """A copy with zeros in all other slots, NaN or not: bits AND 0, which takes a fifth of a masked fill on a CPU."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ring_NHSd.element_size()]
    copy_NHSd = torch.empty_like(ring_NHSd)
    mask_N1S1 = torch.where(kept_NS, -1, 0).to(bits)[:, None, :, None]
    torch.bitwise_and(ring_NHSd.view(bits), mask_N1S1, out=copy_NHSd.view(bits))
    return copy_NHSd


class Segment:
    """T steps at once, after the cached ones of ``state``: linear in T."""

    def __init__(self, state: State, reset_TN: Tensor, look_back: int, block: int | None = None):
        """``block``: queries that are attended together; T of them are one dense pass, the reference."""
        steps, device = reset_TN.shape[0], reset_TN.device
        self.state, self.look_back = state, look_back
        self.block = min(steps, block or max(look_back // 2, LEAST_BLOCK))
        # Where the segment opens an episode nothing cached is kept, whatever it holds: NaN weighted by 0 is NaN.
        clock_N = state["clock"].masked_fill(reset_TN[0], 0)
        time_T1 = torch.arange(steps, device=device)[:, None]
        began_TN = torch.where(reset_TN, time_T1, -clock_N).cummax(0).values
        self.clock_TN = time_T1 - began_TN
        # Cached keys, oldest first: ages W..1 at the first step, whose own clock is the state's.
        age_W = torch.arange(look_back, 0, -1, device=device)
        self.slot_NW = (clock_N[:, None] - age_W) % (look_back + 1)
        cached_NW = cached_episode(age_W, clock_N[:, None])
        self.kept_NW = cached_NW == 0
        self.episode_NT = reset_TN.cumsum(0).T
        self.key_episode_NS = torch.cat([cached_NW, self.episode_NT], 1)
        self.sequences: State = {}

    def read(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, by_age: Tensor | None = None, squared: bool = False
    ) -> Tensor:
        """Attend from every step. Each [T, N, H, d or e] -> [T, N, H, e]; by_age: broadcasts to [N, H, T, A]."""
        keys_NHSd = self._after_cached(f"key.{layer}", key)
        values_NHSe = self._after_cached(f"value.{layer}", value)
        query_NHTd = query.permute(1, 2, 0, 3).to(keys_NHSd.dtype)
        parts = (query_NHTd, keys_NHSd, values_NHSe, self.episode_NT, self.key_episode_NS, self.look_back)
        fits = FLEX_WIDTHS[0] <= query.shape[-1] and max(query.shape[-1], value.shape[-1]) <= FLEX_WIDTHS[1]
        if query.is_cuda and fits and by_age is None and not squared:
            out_NHTe = banded_flex(visible, *parts)
        else:
            out_NHTe = banded(*parts, by_age, squared, self.block)
        return out_NHTe.permute(2, 0, 1, 3).to(query.dtype)

    def _after_cached(self, name: str, new_TNHd: Tensor) -> Tensor:
        """The cached steps in order, zeros where there are none, then the segment's. [N, H, W + T, d]"""
        ring_NHSd = self.state[name].detach()
        slot = self.slot_NW[:, None, :, None].expand(-1, ring_NHSd.shape[1], -1, ring_NHSd.shape[3])
        cached = ring_NHSd.gather(2, slot).masked_fill(~self.kept_NW[:, None, :, None], 0.0)
        self.sequences[name] = torch.cat([cached, new_TNHd.permute(1, 2, 0, 3).to(cached.dtype)], 2)
        return self.sequences[name]

    def state_after(self) -> State:
        """The rings as acting would have left them. {name: [N, ...]}"""
        clock_N, slots = self.clock_TN[-1], self.look_back + 1
        age_NS = (clock_N[:, None] - torch.arange(slots, device=clock_N.device)) % slots
        index_NS = self.key_episode_NS.shape[1] - 1 - age_NS
        kept_NS = age_NS <= clock_N[:, None]
        state = {"clock": clock_N + 1}
        for name, sequence_NHSd in self.sequences.items():
            index = index_NS[:, None, :, None].expand(-1, sequence_NHSd.shape[1], -1, sequence_NHSd.shape[3])
            state[name] = sequence_NHSd.gather(2, index).masked_fill(~kept_NS[:, None, :, None], 0.0)
        return state


def banded(
    query_NHTd: Tensor,
    key_NHSd: Tensor,
    value_NHSe: Tensor,
    episode_NT: Tensor,
    key_episode_NS: Tensor,
    look_back: int,
    by_age: Tensor | None,
    squared: bool,
    block: int,
) -> Tensor:
    """Attention of T queries to S = W + T keys in blocks: each sees its own keys and the W before. [N, H, T, e]"""
    envs, steps, pad = query_NHTd.shape[0], query_NHTd.shape[2], -query_NHTd.shape[2] % block
    blocks, span = (steps + pad) // block, block + look_back
    device = query_NHTd.device
    age_BS = look_back + torch.arange(block, device=device)[:, None] - torch.arange(span, device=device)
    visible_M1BS = visible(
        age_BS,
        _pad_last(episode_NT, pad).unflatten(1, (blocks, block)).flatten(0, 1)[:, None, :, None],
        _pad_last(key_episode_NS, pad).unfold(1, span, block).flatten(0, 1)[:, None, None],
        look_back,
    )  # M = N x blocks rows, each attended on its own
    bias = None
    if by_age is not None:
        each = by_age if by_age.shape[2] == 1 else _blocks(by_age, pad, block)  # [M or 1, H, B or 1, A]
        index = age_BS.clamp(0, look_back).expand(len(each), each.shape[1], block, span)
        bias = each.expand(-1, -1, block, -1).gather(-1, index)
    out_MHBe = attend(
        _blocks(query_NHTd, pad, block),
        _spans(key_NHSd, pad, span, block),
        _spans(value_NHSe, pad, span, block),
        visible_M1BS,
        bias,
        squared,
    )
    return out_MHBe.unflatten(0, (envs, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :steps]


def _pad_last(episode_NT: Tensor, pad: int) -> Tensor:
    """Repeat the last column: padding, too, sees at least itself. [N, T + pad]"""
    return torch.cat([episode_NT, episode_NT[:, -1:].expand(-1, pad)], 1)


def _blocks(query_NHTd: Tensor, pad: int, block: int) -> Tensor:
    """What belongs to the queries of each block. [N x blocks, H, block, d]"""
    return F.pad(query_NHTd, (0, 0, 0, pad)).unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1)


def _spans(key_NHSd: Tensor, pad: int, span: int, block: int) -> Tensor:
    """The keys that each block reads. [N x blocks, H, span, d]"""
    padded = F.pad(key_NHSd, (0, 0, 0, pad))
    return padded.unfold(2, span, block).permute(0, 2, 1, 4, 3).flatten(0, 1)
