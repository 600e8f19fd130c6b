"""What a person sees while a run goes on: one live table, or a line now and then where there is no terminal."""

import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

LINE_EVERY_S = 10.0


def clock(seconds: float) -> str:
    """75 -> 1:15"""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None) -> str:
    """Few digits, thousands apart."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


class Progress:
    """Live progress on standard error."""

    def __init__(self, title: str, total: int, start: int, quiet: bool = False):
        self.title, self.total, self.first, self.quiet = title, total, start, quiet
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal and not quiet else None
        self.began = time.perf_counter()
        self.last_line = self.last_draw = float("-inf")

    def __enter__(self) -> "Progress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, step: int, values: dict[str, float | None]) -> None:
        """Redraw at most ten times a second, or print at most a line every ten seconds; the last step always."""
        now = time.perf_counter()
        if self.quiet:
            return
        if self.live and (now - self.last_draw > 0.1 or step >= self.total):
            self.last_draw = now
            self.live.update(self._table(step, values, now), refresh=True)
        elif not self.live and (now - self.last_line > LINE_EVERY_S or step >= self.total):
            self.last_line = now
            self.console.print(self._line(step, values, now), highlight=False, soft_wrap=True)

    def _left(self, step: int, now: float) -> str:
        done = max(step - self.first, 1)
        return clock((now - self.began) / done * max(self.total - step, 0))

    def _line(self, step: int, values: dict[str, float | None], now: float) -> str:
        share = min(100 * step / self.total, 100)  # the last whole episodes may go beyond
        return (
            f"{self.title}: {step:,}/{self.total:,} steps ({share:.0f} %), left {self._left(step, now)}, "
            f"{number(values.get('time/env_steps_per_s'))} steps/s, "
            f"return {number(values.get('train/return_mean'))}"
        )

    def _table(self, step: int, values: dict[str, float | None], now: float) -> Table:
        table = Table(title=self.title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        table.add_row("steps", ProgressBar(self.total, step, width=32), f"{step:,} / {self.total:,}")
        table.add_row("time", clock(now - self.began), f"left {self._left(step, now)}")
        table.add_row("speed", f"{number(values.get('time/env_steps_per_s'))} steps/s", self._shares(values))
        table.add_row("return", number(values.get("train/return_mean")), "raw, mean of the last 100 episodes")
        for name, value in values.items():
            if name.startswith(("loss/", "policy/", "value/", "parity/", "eval/")):
                table.add_row(name, number(value))
        return table

    @staticmethod
    def _shares(values: dict[str, float | None]) -> str:
        parts = (
            (word, values.get(f"time/share_{key}"))
            for word, key in (("environment", "env"), ("acting", "act"), ("learning", "learn"))
        )
        return ", ".join(f"{word} {100 * share:.0f} %" for word, share in parts if share is not None)
