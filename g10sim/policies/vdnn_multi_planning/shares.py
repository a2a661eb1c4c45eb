"""What a GPU has of the links to host memory when all GPUs that compute use them at once."""

from __future__ import annotations

from collections.abc import Collection

from g10sim.config.system import SystemSpec


def fair_share(system: SystemSpec, gpu: int, busy: Collection[int]) -> int:
    """Return the rate between a GPU and host memory in bytes/second, in each direction.

    The least, over the links that it crosses, of the capacity over the GPUs among ``busy`` that cross it.
    The memory of its socket, where that has a limit, is read and written by those that hang on it.
    """
    rates = [system.pcie.bandwidth]
    rates += [
        link.bandwidth // max(1, len(set(link.gpus) & set(busy)))
        for link in system.pcie.shared
        if gpu in link.gpus
    ]
    if system.host.memory_bandwidth is not None:
        sockets = [set(socket.gpus) for socket in system.host.sockets if gpu in socket.gpus] or [set(busy)]
        rates.append(system.host.memory_bandwidth // max(1, len(sockets[0] & set(busy))))
    return max(1, min(rates))
