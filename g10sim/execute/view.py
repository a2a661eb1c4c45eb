"""The view that a policy has of the device: ``PolicyView``, answered from the account of real storages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from g10sim.config.system import SystemSpec
from g10sim.execute.account import Account
from g10sim.sim.view import kernels_to_next_use
from g10sim.trace.model import Trace

_HOST = "host"


class DeviceView:
    """Implements ``g10sim.policies.interface.policy.PolicyView`` for a step on a device.

    Tensors are whole: on the device or in host memory. Copies count as there once they are queued. Time is
    that of the trace's kernels in GPU cycles, as if none waited. ``needed`` are the tensors of the kernel.
    """

    job = gpu = 0
    tiers: Sequence[str] = (_HOST,)
    in_place_tiers: Sequence[str] = ()

    def __init__(self, trace: Trace, system: SystemSpec, account: Account) -> None:
        """Look at an account; ``system`` says how large host memory is, and the clock."""
        self.trace = trace
        self.iteration = self.kernel = 0
        self.needed: Collection[int] = ()
        self.measured_cycles = self.own_cycles = tuple(trace.durations_cycles(system.gpu.clock))
        self._starts = [0, *accumulate(self.own_cycles)]
        self._host_bytes, self._account = system.host.memory, account

    @property
    def now_cycles(self) -> int:
        """Cycles of the kernels launched so far."""
        return self.iteration * self._starts[-1] + self._starts[self.kernel]

    @property
    def free_bytes(self) -> int:
        """Empty memory of the device, within the budget."""
        return max(0, self._account.budget - self._account.used_bytes)

    largest_hole_bytes = free_bytes

    @property
    def host_free_bytes(self) -> int:
        """Empty host memory."""
        return max(0, self._host_bytes - sum(map(self._account.sizes.__getitem__, self._account.host)))

    @property
    def whole_tensors(self) -> frozenset[int]:
        """Tensors on the device."""
        return frozenset(self._account.here)

    def free_bytes_of(self, tier: str) -> int:
        """Empty memory of a tier."""
        return self.host_free_bytes if tier == _HOST else 0

    def bytes_in(self, tensor: int, tier: str) -> int:
        """Bytes of a tensor in a tier."""
        return self.host_bytes(tensor) if tier == _HOST else 0

    def away_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in host memory."""
        return self.host_bytes(tensor)

    def size_bytes(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self._account.sizes[tensor]

    def resident_bytes(self, tensor: int) -> int:
        """Bytes of a tensor on the device, room that is kept for it counted."""
        account = self._account
        return account.here.get(tensor) or account.room.get(tensor, 0)

    def host_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in host memory."""
        return self._account.sizes[tensor] if tensor in self._account.host else 0

    def flash_bytes(self, tensor: int) -> int:
        """Return 0: nothing is on flash."""
        return 0

    def in_transfer_bytes(self, tensor: int) -> int:
        """Return 0: what is queued counts as there."""
        return 0

    def is_whole(self, tensor: int) -> bool:
        """Return whether a tensor is on the device."""
        return bool(self.resident_bytes(tensor))

    def is_needed(self, tensor: int) -> bool:
        """Return whether the current kernel needs a tensor."""
        return tensor in self.needed

    def is_dropped(self, tensor: int) -> bool:
        """Return False: nothing is computed again."""
        return False

    def is_dead(self, tensor: int) -> bool:
        """Return whether a tensor's contents will not be read any more in this iteration."""
        return self.kernel >= self.trace.deaths[tensor]

    def next_use(self, tensor: int) -> int:
        """Kernels until the tensor is used again after the current one, at least 1."""
        return kernels_to_next_use(self.trace, tensor, self.kernel)
