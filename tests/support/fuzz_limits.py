"""What bounds a command of the fuzzing tests, in its own process."""

from __future__ import annotations

import resource


def limit_memory(more: str) -> None:
    """Let this process have so many bytes more of private memory than it has now."""
    with open("/proc/self/status") as status:
        data = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + int(more), data + int(more)))
