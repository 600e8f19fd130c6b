"""How this process asks for memory. For programs of ours; a library leaves that to whoever imports it."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # as <malloc.h> numbers them


def keep_freed_memory() -> None:
    """Let this process keep what it frees.

    glibc returns blocks of tens of megabytes to the system and gets them back zeroed, page by page, at the next
    gradient step: a quarter of a CNN's training time on a CPU. Elsewhere (macOS, musl) nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**28)):
            mallopt(option, value)
