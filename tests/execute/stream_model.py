"""A model of CUDA streams: copies happen at once, vector clocks tell whether they are ordered."""

import sys
from collections import Counter, defaultdict

import torch

from g10sim.execute.cuda import CudaMemory, HostCopy

COMPUTE, OUT, IN = 0, 1, 2


class RaceError(Exception):
    pass


class ModelStreams:
    """Streams with vector clocks; a block is a place in memory, which storages exchange."""

    def __init__(self, without=None):
        self.clocks, self.without = [Counter()], without
        self.places, self.pool = {}, defaultdict(list)
        self.uses = defaultdict(list)
        self.kept = []

    def current(self):
        return COMPUTE

    def stream(self):
        self.clocks.append(Counter())
        return len(self.clocks) - 1

    def event(self, stream):
        return Counter(self.clocks[stream])

    def wait(self, stream, event):
        if self.without == (sys._getframe(1).f_code.co_name, stream):
            return
        for other, time in event.items():
            self.clocks[stream][other] = max(self.clocks[stream][other], time)

    def has_ended(self, event):
        return False

    def synchronize(self, event):
        pass

    def seconds_between(self, first, second):
        return 0.0

    def place(self, key, size):
        """Return where a storage lies: known, or where its allocation puts it."""
        if key not in self.places:
            self.places[key] = self.pool[size].pop() if self.pool[size] else self.new()
        return self.places[key]

    def new(self):
        self.kept.append(object())
        return self.kept[-1]

    def allocate(self, storage):
        made = torch.UntypedStorage(storage.nbytes())
        self.place(made._cdata, made.nbytes())
        return made

    def host(self, size_bytes):
        made = HostCopy(torch.UntypedStorage(size_bytes))
        self.places[made.storage._cdata] = self.new()
        return made

    def swap(self, storage, block):
        one, other = storage._cdata, block._cdata
        mine, theirs = self.place(one, storage.nbytes()), self.places.pop(other, None)
        storage._swap_data_ptr_(block)
        self.places[other] = mine
        if theirs is None:
            del self.places[one]
        else:
            self.places[one] = theirs

    def free(self, block):
        self.pool[block.nbytes()].append(self.places.pop(block._cdata))

    def use(self, stream, place, what, *, writes):
        now = self.clocks[stream]
        now[stream] += 1
        for other, time, wrote, earlier in self.uses[id(place)]:
            if (writes or wrote) and now[other] < time:
                raise RaceError(f"{what} on stream {stream} and {earlier} on stream {other}")
        kept = [use for use in self.uses[id(place)] if (use[0], use[2]) != (stream, writes)]
        self.uses[id(place)] = [*kept, (stream, now[stream], writes, what)]

    def copy(self, stream, to, source):
        self.use(stream, self.place(source._cdata, source.nbytes()), "copy", writes=False)
        self.use(stream, self.place(to._cdata, to.nbytes()), "copy", writes=True)
        to.copy_(source)


class ModelMemory(CudaMemory):
    """The CUDA memory, which is told of the kernels: each uses all of its tensors."""

    def __init__(self, without=None):
        self.model = ModelStreams(without)
        super().__init__(self.model)
        self.least_bytes = 0
        self.account, self.where = None, {}

    awaits_copies = True

    def allocated_bytes(self):
        return 0

    def arrive(self, tensor):
        super().arrive(tensor)
        if sys._getframe(1).f_code.co_name == "_demand" and tensor in self.account.here:
            self._use(tensor)

    def _use(self, tensor):
        storage = self.account.storages[tensor]()
        self.where[tensor] = storage._cdata
        place = self.model.place(storage._cdata, storage.nbytes())
        self.model.use(COMPUTE, place, f"kernel with tensor {tensor}", writes=True)

    def gone(self, tensor):
        super().gone(tensor)
        key = self.where.pop(tensor, None)
        if key in self.model.places:
            self.model.pool[self.account.sizes[tensor]].append(self.model.places.pop(key))
