"""Small files of other tools, as text: a profile and an execution trace of PyTorch, published traces."""

import json

import yaml

DIMS = ([64, 32], [32, 16], [64, 16])
THREAD = {"pid": 7, "tid": 7}


def profile(*, on_device: bool = True) -> str:
    """Return a profile of a product, its gradient and an update of the weights, with memory events."""
    steps = [
        ("aten::addmm", "", DIMS[:2], 0),
        ("aten::mm", "autograd::engine::evaluate_function: AddmmBackward0", DIMS[1:], 1),
        ("aten::add_", "Optimizer.step#SGD.step", [DIMS[1], DIMS[1]], 2),
        ("aten::_foreach_add_", "Optimizer.step#SGD.step", [DIMS[1], DIMS[1]], 3),
    ]
    events = [_span("user_annotation", "ProfilerStep#3", 0, 400)]
    for name, around, dims, number in steps:
        start = 100 * number + 1
        numbers = {"Sequence number": 5, "Record function id": number + 1}
        shapes = {
            "Input Dims": [*dims, [], [dims[0]]],
            "Input type": ["float", "float", "Scalar", "TensorList"],
        }
        if around:
            events.append(_span("user_annotation", around, start, 90))
        events.append(_span("cpu_op", name, start + 1, 80, **numbers, **shapes))
        events.append(_memory(start + 5, 4096 * (number + 1), 8192, on_device=on_device))
        if on_device:
            events.append(_span("cuda_runtime", "cudaLaunchKernel", start + 10, 5, correlation=number))
            events.append(_span("kernel", f"kernel {number}", start + 20, 7.5, correlation=number))
    events.append(_memory(390, 4096, -8192, on_device=on_device))
    return json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1)


def profile_of_graphs() -> str:
    """Return a profile, almost JSON, of two steps with graphs, copies, strides and a CPU's optimizer."""
    events = []
    for step, start in ((3, 0), (4, 1000)):
        events.append(_span("user_annotation", f"ProfilerStep#{step}", start, 900))
        for number, (name, launch, kernels) in enumerate(
            [
                ("aten::copy_", "cudaMemcpyAsync", ["Memcpy HtoD"]),
                ("vllm::unified", "cudaGraphLaunch", ["gemm", "gelu"]),
                ("_C::silu", "hipGraphLaunch", []),
                ("aten::_to_copy", "cudaMemcpyAsync", ["Memcpy DtoH"]),
            ]
        ):
            at, correlation = start + 100 * number + 1, 10 * start + number
            shapes = {
                "Input Dims": [[64, 32], [64, 32], []],
                "Input Strides": [[32, 1], [0, 1], []],
                "Input type": ["c10::BFloat16", "unsigned __int64", "Scalar"],
            }
            events.append(_span("Operator", name, at, 80, **{"Fwd thread id": number % 2}, **shapes))
            event = _memory(at + 5, 4096 * (number + 1), 8192 - 16384 * (step % 2), on_device=True)
            event["args"]["Total Allocated"] = 10**6 + 8192 * number
            events += [event, _span("Runtime", launch, at + 10, 5, correlation=correlation)]
            for order, kernel in enumerate(kernels):
                facts = {"correlation": correlation, "device": 0, "stream": 7 + order, "bytes": 4096}
                events.append(_span("Kernel", kernel, at + 20 + order, 30, **facts))
        events.append(_span("user_annotation", "Optimizer.step#CPUAdam", start + 500, 200))
        events.append(_span("cpu_op", "aten::add_", start + 510, 80, **shapes))
        events.append(_span("cuda_runtime", "cudaDeviceSynchronize", start + 800, -1, correlation=9))
    events[3]["ts"] = str(events[3]["ts"])
    text = json.dumps({"schemaVersion": 1, "traceName": "C:", "traceEvents": events}, indent=1)
    return (
        text.replace('"C:"', '"C:\\Users\\x"')
        .replace("30,", "30.0,")
        .replace('"bytes": 4096', '"rate": inf', 1)
    )


def _span(category: str, name: str, start: float, duration: float, **more: object) -> dict[str, object]:
    args = {key.replace("_", " ") if key[0].isupper() else key: value for key, value in more.items()}
    span = {"ph": "X", "cat": category, "name": name, "ts": 4466023420.5 + start, "dur": duration}
    return {**span, **THREAD, "args": args}


def _memory(start: float, address: int, size: int, *, on_device: bool) -> dict[str, object]:
    args = {"Addr": address, "Bytes": size, "Device Type": int(on_device), "Device Id": 0}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 4466023420.5 + start, **THREAD,
            "args": args}  # fmt: skip


def execution_trace() -> str:
    """Return an execution trace of the same step."""
    first, weights, result, gradient = (
        [number, 10 + number, 0, size[0] * size[1], 4, "cuda:0"]
        for number, size in enumerate((*DIMS, DIMS[1]), 1)
    )
    nodes = [
        _node(1, 1, "[pytorch|profiler|execution_trace|process]", "", [], []),
        _node(2, 1, "ProfilerStep#3", "", [], []),
        _node(3, 2, "aten::addmm", "aten::addmm(Tensor self) -> Tensor", [first, weights], [result], rf_id=1),
        _node(4, 2, "autograd::engine::evaluate_function: AddmmBackward0", "", [], []),
        _node(5, 4, "aten::mm", "aten::mm(Tensor self) -> Tensor", [weights, result], [gradient], rf_id=2),
        _node(6, 2, "Optimizer.step#SGD.step", "", [], []),
        _node(7, 6, "aten::add_", "aten::add_(Tensor(a!) self) -> Tensor(a!)", [weights, gradient], [weights],
              rf_id=3),
        _node(8, 6, "aten::_foreach_add_", "aten::_foreach_add_(Tensor(a!)[] self) -> ()", [[weights]], [],
              rf_id=4),
    ]  # fmt: skip
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": nodes}, indent=1)


def earlier_execution_trace() -> str:
    """Return a step of the schema 1.0.1, with a compiled kernel and an optimizer on the host."""
    node = {"scope": 0, "seq_id": 1, "fw_parent": 0, "tid": 1, "rf_id": 0}
    device, host = ([number, 10 + number, 0, 2048, 4, place] for number, place in ((1, "cuda:1"), (2, "cpu")))
    made = [3, 13, 0, 2048, 4, "cuda:1"]
    rows = [
        ("process", 1, "", [], []),
        ("ProfilerStep#3", 1, "", [], []),
        ("triton_poi_fused_0", 2, "", [device, made], []),
        ("aten::_to_copy", 2, "aten::_to_copy(Tensor self) -> Tensor", [made], [host]),
        ("Optimizer.step#CPUAdam", 2, "", [], []),
        ("aten::add_", 5, "aten::add_.Tensor(Tensor(a!) self, Tensor b) -> Tensor(a!)", [host, host], [host]),
        (
            "aten::mm",
            2,
            "aten::mm.out(Tensor a, int[] x=[1, 1], *, Tensor(a!) out)",
            [made, device],
            [device],
        ),
    ]
    nodes = []
    for number, (name, parent, schema, inputs, outputs) in enumerate(rows, 1):
        found = {**node, "id": number, "name": name, "parent": parent, "op_schema": schema}
        for side, tensors in (("input", inputs), ("output", outputs)):
            found[f"{side}s"], found[f"{side}_shapes"] = tensors, [[2048]] * len(tensors)
            found[f"{side}_types"] = ["Tensor(float)"] * len(tensors)
        nodes.append(found)
    return json.dumps({"schema": "1.0.1", "nodes": nodes}, indent=1)


def _node(number, parent, name, schema, inputs, outputs, *, rf_id=0):
    attributes = [{"name": "rf_id", "type": "uint64", "value": rf_id}]
    attributes.append({"name": "op_schema", "type": "string", "value": schema})
    sides = {"inputs": _side(inputs), "outputs": _side(outputs)}
    return {"id": number, "name": name, "ctrl_deps": parent, **sides, "attrs": attributes}


def _side(tensors):
    lists = [isinstance(tensor[0], list) for tensor in tensors]
    sizes = [tensor[0][3] if nested else tensor[3] for tensor, nested in zip(tensors, lists, strict=True)]
    return {
        "values": tensors,
        "types": ["GenericList[Tensor(float)]" if nested else "Tensor(float)" for nested in lists],
        "shapes": [[[size]] if nested else [size] for size, nested in zip(sizes, lists, strict=True)],
        "strides": [[[1]] if nested else [1] for nested in lists],
    }


def published() -> dict[str, str]:
    """Return the files of a trace of the published simulator."""
    tensors = [
        f"tensor{number} Is weight (global)?: {number % 2}, Size in byte: {4096 * (number + 1)}, Range:0--1"
        for number in range(4)
    ]
    kernels = [
        ("LoadData_A0", [], [0]), ("Conv2d_Forward", [0, 1], [2]), ("Conv2d_Apply_Grad", [2, 3], [1])
    ]  # fmt: skip
    lines = []
    for number, (name, inputs, outputs) in enumerate(kernels):
        lines += [
            f"Kernel ID: {number}, Name: {name}",
            "Parent Layer ID:7; Name:Conv2d",
            "Execution Time: 1200",
        ]
        lines += ["(8,3,224,224)", "Input Tensors:", *(tensors[one] for one in inputs)]
        lines += ["Output Tensors:", *(tensors[one] for one in outputs), "_" * 68]
    times = [f"{number:04d} 0.00{number + 1} ms" for number in range(len(kernels))]
    texts = {
        "tensors.config": tensors,
        "kernels.config": lines,
        "cudnn8InputPF.txt": times,
        "cudnn8PF.txt": times,
    }
    return {name: "".join(f"{line}\n" for line in found) for name, found in texts.items()}


def drives() -> str:
    """Return a system with an SSD of flash, an SSD of two rates and memory, as tiers."""
    flash = {
        "name": "flash", "kind": "ssd", "model": "flash", "interface": "3.2 GB/s", "channels": 4, "dies": 2,
        "planes": 2, "blocks": 256, "pages": 16, "page_size": "4 KiB", "bus": "1 GB/s", "read": "3 us",
        "program": "100 us", "erase": "1 ms", "controller_latency": "5 us", "write_buffer": "1 MiB",
        "overprovisioning": 0.1, "collection": {"start": 0.05, "urgent": 0.01, "victims": "greedy"},
        "slc": {"capacity": "1 MiB", "program": "50 us"}, "condition": "random", "occupied": 0.2,
        "rating": {"cycles": 1000, "written": "1 TB", "years": 5},
    }  # fmt: skip
    link = {
        "name": "second", "kind": "ssd", "capacity": "1 GB", "read": "3 GB/s", "write": "2 GB/s",
        "latency": "20 us", "path": "host", "bounce": {"bandwidth": "10 GB/s", "latency": "1 us"},
    }  # fmt: skip
    cxl = {"name": "cxl", "kind": "memory", "capacity": "8 MiB", "read": "20 GB/s", "latency": "400 ns"}
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "1 MiB"}}
    return str(yaml.safe_dump({**system, "tiers": ["host", cxl, flash, link]}, sort_keys=False))


def measured_link() -> str:
    """Return the parts of an output of nvbandwidth that count."""
    rates = {
        "host_to_device_memcpy_ce": 53.1, "device_to_host_memcpy_ce": 50.2,
        "host_to_device_bidirectional_memcpy_ce": 42, "device_to_host_bidirectional_memcpy_ce": 41.4,
        "host_device_latency_sm": 618,
    }  # fmt: skip
    tests = [
        {"name": name, "status": "Passed", "bandwidth_matrix": [[str(rate)]]} for name, rate in rates.items()
    ]
    return json.dumps({"nvbandwidth": {"version": "v0.9", "testcases": tests}})
