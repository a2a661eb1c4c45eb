"""Builds small profiles event by event; times are microseconds, tensors 1024 x 1024 floats unless told."""

import json

MB = 2**20
SQUARES = ([1024, 1024], [1024, 1024])


class ProfileBuilder:
    """A profile of one thread of one process, unless told otherwise."""

    def __init__(self, total=None):
        self.events, self.correlation, self.total = [], 0, total

    def span(self, category, name, start, duration, pid=1, tid=1, **args):
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": start,
            "dur": duration,
        }
        self.events.append({**event, "args": args})
        return self

    def step(self, number, start, duration, pid=1):
        return self.span("user_annotation", f"ProfilerStep#{number}", start, duration, pid=pid)

    def memory(self, start, address, size, device=0, kind=1, pid=1, tid=1):
        args = {"Addr": address, "Bytes": size, "Device Type": kind, "Device Id": device}
        if self.total is not None:
            self.total += size
            args["Total Allocated"] = self.total
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": pid, "tid": tid}
        self.events.append({**event, "ts": start, "args": args})
        return self

    def launch(self, start, kernels, name="cudaLaunchKernel", pid=1, tid=1, device=0, stream=7):
        """Launch device events: (name, start, duration), or with the category in front."""
        self.correlation += 1
        self.span("cuda_runtime", name, start, 1, pid=pid, tid=tid, correlation=self.correlation)
        for *category, kernel, begin, duration in kernels:
            args = {"correlation": self.correlation, "device": device, "stream": stream}
            self.span(*(category or ["kernel"]), kernel, begin, duration, pid=device, tid=stream, **args)
        return self

    def operator(
        self, name, start, kernel, shapes=SQUARES, types=None, strides=None, allocates=None, size=4 * MB,
        pid=1, tid=1, device=0, stream=7, **args,
    ):  # fmt: skip
        """An operator of 20 us that launches a kernel (start, duration) and allocates at an address."""
        args["Input Dims"], args["Input type"] = list(shapes), types or ["float"] * len(shapes)
        if strides:
            args["Input Strides"] = strides
        self.span("cpu_op", name, start, 20, pid=pid, tid=tid, **args)
        if allocates:
            self.memory(start + 5, allocates, size, device=device, pid=pid, tid=tid)
        if kernel:
            self.launch(
                start + 10, [(f"{name} kernel", *kernel)], pid=pid, tid=tid, device=device, stream=stream
            )
        return self

    def save(self, path, **top):
        path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": self.events}))
        return path


def two_products(total=None):
    """Two products of 100 us each, 20 us apart."""
    made = ProfileBuilder(total).step(1, 0, 1000)
    made.operator("aten::mm", 10, (30, 100), allocates=0x1000)
    return made.operator("aten::mm", 40, (150, 100), allocates=0x2000)
