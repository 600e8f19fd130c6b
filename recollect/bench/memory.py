"""``recollect bench memory``: what a cache saves while acting, and a band while learning.

Every pair of sides is held to the same outputs before it is measured, so that only the way differs. One block
computes the same thing from its last W frames as from the whole episode; four do not, and are shown beside.
"""

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recollect.bench.measure import Ratio, Row, Side, interleave, rate_of, report
from recollect.fast import fast
from recollect.nets.attention import Segment, attend, rotate, rotation
from recollect.nets.config import NetConfig
from recollect.nets.cores.transformer import Transformer
from recollect.run.device import pick_device, synchronise
from recollect.types import State

ACTING, LEARNING = "decisions/s", "steps/s"
WINDOWS_AT_ONCE = 50  # 1,000 windows of 257 steps do not fit a laptop's memory
ONCE = 1e-3  # seconds: a side this short is measured over one call
LENGTHS = (1, 4, 16, 64)  # times num_steps; the last on a GPU only
FLOORS = {"cpu": 20.0, "cuda": 10.0}
WINDOWS_FLOOR, GROWTH_FLOOR = 50.0, 0.5
SAME = 1e-4  # relative; a wrong way is off by 1e-1


@dataclass(frozen=True)
class Bench:
    """A Transformer's cache and band against computing it all again."""

    look_back: int = 256
    """Past steps that each layer sees."""
    num_envs: int = 64
    """Environments that act at once."""
    num_steps: int = 1000
    """Consecutive steps that are learnt from."""
    width: int = 128
    """Of one block with 8 heads."""
    seconds: float = 1.0
    """Time of one measurement; learning from separate windows takes what it takes."""
    repeats: int = 5
    """Measurements of each side, taken in turn."""
    device: str = "auto"
    """auto, cpu or cuda."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the result here as well."""


def transformer(bench: Bench, layers: int, device: torch.device) -> Transformer:
    """The reference: pre-norm, rotary, 8 heads."""
    torch.manual_seed(0)
    config = NetConfig(core="transformer", core_width=bench.width, look_back=bench.look_back, core_layers=layers)
    return Transformer(bench.width, config).to(device)


def recomputed(core: Transformer, window_SND: Tensor) -> Tensor:
    """One block's newest output from its window, with no more work than must be: W + 1 keys, one query. [N, width]"""
    block: Any = core.layers[0]
    attention, (positions, envs) = block.attention, window_SND.shape[:2]
    h_SND = core.embed(window_SND)
    x_SND = block.first(h_SND)
    clock_S1 = torch.arange(positions, device=window_SND.device)[:, None]

    def heads(x_SNE: Tensor) -> Tensor:
        return x_SNE.unflatten(-1, (attention.heads, -1))

    width = core.width // attention.heads
    query = rotate(heads(attention.query(x_SND[-1:])), rotation(clock_S1[-1:], width))
    key, value = rotate(heads(attention.key(x_SND)), rotation(clock_S1, width)), heads(attention.value(x_SND))
    query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
    everything = torch.ones(1, 1, 1, positions, dtype=torch.bool, device=window_SND.device)
    h_ND = h_SND[-1] + attention.out(attend(query, key, value, everything, None, False).reshape(envs, -1))
    return core.last(h_ND + block.wide(block.second(h_ND)))


def projected_rows(core: nn.Module, work: Callable[[], Any]) -> int:
    """Rows that go through the query, key and value projections while ``work`` runs, counted where they pass."""
    count = 0

    def see(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal count
        count += given[0][..., 0].numel()

    parts = [part for name, part in core.named_modules() if name.endswith(("query", "key", "value"))]
    hooks = [part.register_forward_pre_hook(see) for part in parts]
    work()
    for hook in hooks:
        hook.remove()
    return count


def hold(what: str, actual: Tensor, expected: Tensor) -> float:
    """The relative difference of two sides; ValueError where they do not compute the same."""
    error = ((actual - expected).norm() / expected.norm()).item()
    if not error <= SAME:
        raise ValueError(f"{what}: the two sides differ by {error:.1e}; a ratio of their speeds would mean nothing")
    return error


@torch.no_grad()
def acting(bench: Bench, device: torch.device) -> tuple[list[Row], list[Ratio]]:
    """One decision of each environment in mid-episode, in three ways.

    From the cache; with the window through the block, as code without a cache does; with the least that a window needs,
    which is one layer's trick: the next one would need every position of the layer below.
    """
    core, envs, span = transformer(bench, 1, device), bench.num_envs, bench.look_back + 1
    x_TND = torch.randn(2 * span, envs, bench.width, device=device)
    never_TN = torch.zeros(2 * span, envs, dtype=torch.bool, device=device)
    start = core.initial_state(envs, device)
    state = core.after(x_TND[:-1], start, never_TN[:-1])
    x_ND, window_SND, never_N = x_TND[-1], x_TND[-span:], never_TN[0]
    compiled = device.type == "cuda"

    def step(x_ND: Tensor, state: State, reset_N: Tensor) -> Tensor:
        return core.step(x_ND, state, reset_N)[0]

    def keys_again(window_SND: Tensor) -> Tensor:
        return recomputed(core, window_SND)

    def all_again(window_SND: Tensor) -> Tensor:
        return core.through(window_SND, Segment(start, never_TN[:span], bench.look_back, block=span))[-1]

    names = ("cached", f"recomputed, {2 * span + 1} projections", "recomputed")
    ways = (
        (fast(step, device, compiled), (x_ND, state, never_N)),
        (fast(keys_again, device, compiled), (window_SND,)),
        (all_again, (window_SND,)),
    )
    first = ways[0][0](*ways[0][1])
    for name, (way, given) in zip(names[1:], ways[1:], strict=True):
        hold(name, way(*given), first)
    counts = [
        projected_rows(core, lambda: step(x_ND, state, never_N)) / envs,
        projected_rows(core, lambda: keys_again(window_SND)) / envs,
    ]

    def side(way: Callable, given: tuple) -> Side:
        def work() -> int:
            way(*given)
            synchronise(device)
            return envs

        return lambda: rate_of(torch.no_grad()(work), bench.seconds)

    rows = interleave({n: side(*w) for n, w in zip(names, ways, strict=True)}, bench.repeats, ACTING)
    rates = [rows[name].value for name in names]
    counted = [
        Row(f"projections a decision, {n}", (c,), "rows") for n, c in zip(("cached", "recomputed"), counts, strict=True)
    ]
    ratios = [
        Ratio("projections, recomputed / cached", counts[1] / counts[0], (2 * span + 1) / 3),
        Ratio("acting, cached / recomputed", rates[0] / rates[2], FLOORS[device.type]),
        Ratio("acting, cached / recomputed for the newest query alone", rates[0] / rates[1]),
    ]
    return counted + list(rows.values()), ratios


class Learning:
    """Forward and backward over consecutive steps of one environment, W more before them so that all is exact."""

    def __init__(self, bench: Bench, layers: int, steps: int, device: torch.device):
        self.core, self.steps, self.look_back = transformer(bench, layers, device), steps, bench.look_back
        stream = torch.Generator().manual_seed(1)
        self.x_TND = torch.randn(bench.look_back + steps, 1, bench.width, generator=stream).to(device)
        self.start, self.device = self.core.initial_state(1, device), device

    def _never(self, steps: int, envs: int) -> Tensor:
        return torch.zeros(steps, envs, dtype=torch.bool, device=self.device)

    def banded(self, block: int | None = None) -> Tensor:
        """[steps, width]"""
        memory = Segment(self.start, self._never(len(self.x_TND), 1), self.look_back, block)
        return self.core.through(self.x_TND, memory)[self.look_back :, 0]

    def dense(self) -> Tensor:
        """Under one mask of (W + steps) x (W + steps) and the empty cache's W. [steps, width]"""
        return self.banded(len(self.x_TND))

    def windows(self, begin: int = 0, count: int | None = None) -> Tensor:
        """Each step from a window of its own. [count, width]"""
        spans_ND = self.x_TND[:, 0].unfold(0, self.look_back + 1, 1)[begin : begin + (count or self.steps)]
        x_SND, windows = spans_ND.permute(2, 0, 1), len(spans_ND)
        start = self.core.initial_state(windows, self.device)
        never = self._never(self.look_back + 1, windows)
        return self.core.through(x_SND, Segment(start, never, self.look_back, block=len(never)))[-1]

    def train(self, way: Callable[[], Tensor]) -> None:
        """A gradient for every weight."""
        way().square().sum().backward()

    def side(self, way: Callable[[], Tensor], seconds: float) -> Side:
        """Steps learnt from a second."""

        def once() -> int:
            self.core.zero_grad(set_to_none=True)
            self.train(way)
            synchronise(self.device)
            return self.steps

        return lambda: rate_of(once, seconds)

    def windows_side(self, steps: int) -> Side:
        """The same from ``steps`` separate windows, some at a time, gradients added up."""

        def once() -> int:
            self.core.zero_grad(set_to_none=True)
            for begin in range(0, steps, WINDOWS_AT_ONCE):
                count = min(WINDOWS_AT_ONCE, steps - begin)
                self.train(lambda begin=begin, count=count: self.windows(begin, count))
            synchronise(self.device)
            return steps

        return lambda: rate_of(once, ONCE)

    def kept_bytes(self, way: Callable[[], Tensor]) -> int:
        """What autograd keeps for the backward pass, each storage counted once, weights not."""
        weights = {weight.untyped_storage().data_ptr() for weight in self.core.parameters()}
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = way()  # alive while it is counted, or storages would be used twice
        assert kept.requires_grad
        return sum(storages.values())


def learning(bench: Bench, device: torch.device) -> tuple[list[Row], list[Ratio]]:
    """Consecutive steps: one band, one dense mask, separate windows; with one block and with four."""
    one, four = (Learning(bench, layers, bench.num_steps, device) for layers in (1, 4))
    some = min(WINDOWS_AT_ONCE, bench.num_steps)
    with torch.no_grad():
        exact = one.banded()
        hold("dense and banded", one.dense(), exact)
        hold("windows and banded", one.windows(0, some), exact[:some])
        truth = four.banded()[-some:]  # far enough from the start, where four layers reach back over 4 W
        wrong = ((four.windows(bench.num_steps - some, some) - truth).norm() / truth.norm()).item()
    sides = {
        "banded": one.side(one.banded, bench.seconds),
        "dense mask": one.side(one.dense, bench.seconds),
        "separate windows": one.windows_side(bench.num_steps),
        "banded, four layers": four.side(four.banded, bench.seconds),
        "separate windows, four layers (another function)": four.windows_side(some),
    }
    rows = interleave(sides, bench.repeats, LEARNING)
    rate = {name: row.value for name, row in rows.items()}
    kept = {
        "banded": one.kept_bytes(one.banded) / 2**20,
        "dense mask": one.kept_bytes(one.dense) / 2**20,
        "separate windows": one.kept_bytes(lambda: one.windows(0, some)) / 2**20 / some * bench.num_steps,
    }
    memory = [Row(f"kept for the backward pass, {name}", (value,), "MiB") for name, value in kept.items()]
    difference = Row("four layers, output of windows off from the exact one by", (100 * wrong,), "%")
    ratios = [
        Ratio("learning, time of separate windows / banded", rate["banded"] / rate["separate windows"], WINDOWS_FLOOR),
        Ratio(
            "learning, memory of separate windows / banded", kept["separate windows"] / kept["banded"], WINDOWS_FLOOR
        ),
        Ratio("learning, time of the dense mask / banded", rate["banded"] / rate["dense mask"], 1.0),
        Ratio("learning, memory of the dense mask / banded", kept["dense mask"] / kept["banded"]),
    ]
    return [*rows.values(), *memory, difference], ratios


def growth(bench: Bench, device: torch.device) -> tuple[list[Row], list[Ratio]]:
    """The band at growing lengths: linear if a step costs the same in the longest."""
    lengths = LENGTHS if device.type == "cuda" else LENGTHS[:-1]
    parts = [Learning(bench, 1, times * bench.num_steps, device) for times in lengths]
    names = [f"banded, {part.steps:,} steps" for part in parts]
    sides = {n: p.side(p.banded, bench.seconds) for n, p in zip(names, parts, strict=True)}
    rows = interleave(sides, bench.repeats, LEARNING)
    # The W steps before count as well: they are as much work as the others, and many beside few.
    least, most = (rows[n].value * len(p.x_TND) / p.steps for n, p in ((names[0], parts[0]), (names[-1], parts[-1])))
    return list(rows.values()), [Ratio(f"speed at {lengths[-1]} times the length", most / least, GROWTH_FLOOR)]


def main(bench: Bench) -> int:
    """Acting, learning, growth."""
    device = pick_device(bench.device)
    parts = [part(bench, device) for part in (acting, learning, growth)]
    rows, ratios = [row for part in parts for row in part[0]], [ratio for part in parts for ratio in part[1]]
    changed = {f.name: getattr(bench, f.name) for f in fields(bench) if f.name not in ("json", "out")}
    changed = {name: value for name, value in changed.items() if value != getattr(Bench, name)}
    flags = [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    config = {k: v for k, v in asdict(bench).items() if k not in ("json", "out")} | {"device": str(device)}
    by_name = {ratio.name: ratio.value for ratio in ratios}
    headline = (
        f"acting {by_name['acting, cached / recomputed']:.0f} times faster from the cache, "
        f"learning {by_name['learning, time of separate windows / banded']:.0f} times faster in the band"
    )
    command = shlex.join(["recollect", "bench", "memory", *flags])
    report("memory", command, config, rows, ratios, bench.json, bench.out, headline)
    return 0
