"""How hot functions are made fast.

Compiled, many small operations become a few kernels; captured as a CUDA graph, many launches become one. A GPU gets
both where both pay. A CPU may compile, which needs a C++ compiler; where there is none the eager function runs, and
says so once.
"""

import functools
import importlib.util
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from recollect.nested import map_tensors, tensors_of


class Graphed:
    """A function of tensors, captured as a CUDA graph at its first call and replayed after.

    Inputs are copied into fixed buffers, outputs are clones, so that callers may keep them. Only tensors are inputs:
    whatever else the function reads is frozen at the capture. ``changed`` lists the
    tensors that the function changes in place (weights, optimiser state): the warm-up runs before the capture must
    not count, so they are put back.

    ``carries``: the first output is the first input of the next call. It stays in the graph's own memory instead of
    going out and in again, and the other outputs are lent: they hold until the next call.
    """

    def __init__(self, function: Callable, changed: Callable[[], Iterable[Tensor]] = tuple, *, carries: bool = False):
        self.function, self.changed, self.carries, self.graph = function, changed, carries, None

    def __call__(self, *inputs: Any) -> Any:
        if self.graph is None:
            self._capture(inputs)
        assert self.graph is not None
        for fixed, new in zip(tensors_of(self.inputs), tensors_of(inputs), strict=True):
            assert fixed.shape == new.shape, f"captured for {list(fixed.shape)}, called with {list(new.shape)}"
            if fixed is not new:
                fixed.copy_(new)
        self.graph.replay()
        return (self.inputs[0], *self.outputs[1:]) if self.carries else map_tensors(Tensor.clone, self.outputs)

    def _capture(self, inputs: Any) -> None:
        self.inputs = map_tensors(Tensor.clone, inputs)
        before = [(tensor, tensor.detach().clone()) for tensor in self.changed()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # lets libraries choose algorithms and allocate outside the capture
                self.function(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.function(*self.inputs)
            if self.carries:
                for fixed, new in zip(tensors_of(self.inputs[0]), tensors_of(self.outputs[0]), strict=True):
                    fixed.copy_(new)


@functools.cache
def can_compile() -> bool:
    """Whether ``torch.compile`` can build for the CPU here; if not, say so once."""
    # The one name that torch looks for (torch._inductor.config.cpp.cxx): another compiler would not be found.
    found = shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is not None
    if not found:
        print("recollect: no C++ compiler on PATH; the eager path runs instead of the compiled one", file=sys.stderr)
    return found


@functools.cache
def _say_that_it_takes_a_while() -> None:
    """Once: a person who sees nothing for half a minute thinks that nothing happens."""
    print("recollect: hot functions are compiled at their first call, which may take a minute", file=sys.stderr)


def _compile(function: Callable, options: dict[str, Any] | None = None) -> Callable:
    # It says at every optimiser that profiling is left out, and at every softmax in how many parts it is worked out.
    logging.getLogger("torch._dynamo.variables.ctx_manager").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "\\s*Online softmax is disabled", UserWarning)
    return torch.compile(function, dynamic=False, options=options)


def fused(function: Callable, device: torch.device, compiled: bool) -> Callable:
    """Compiled for this device where it can be. On a CPU, and in whole numbers, it equals the eager function."""
    on_gpu = device.type == "cuda"
    if not compiled or not (importlib.util.find_spec("triton") if on_gpu else can_compile()):
        return function
    _say_that_it_takes_a_while()
    # Else a GPU would fuse a product and a sum into one rounding.
    return _compile(function, {"emulate_precision_casts": True} if on_gpu else None)


def fast(
    function: Callable,
    device: torch.device,
    compiled: bool,
    changed: Callable[[], Iterable[Tensor]] = tuple,
    fuse: bool = False,
) -> Callable:
    """The fastest form of a hot function on this device: graph-captured, compiled, or as it is.

    ``fuse``: on a GPU, compile it before the capture too. It takes its time at the first call, and loops are unrolled.
    """
    if not compiled:
        return function
    if device.type != "cuda":
        return fused(function, device, compiled)
    return Graphed(_compile(function) if fuse else function, changed)
