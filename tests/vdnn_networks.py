"""Networks of the vDNN papers as chains of layers.

"VGG-16" of the vDNN paper has 16 convolutions: it is VGG-E, elsewhere called VGG-19. Its layer times at
batch 64 on a Titan X are read off the paper's figure 6; pooling moves its data at 250 GB/s. AlexNet is the
one-tower model of Krizhevsky's "one weird trick" (64-192-384-256-256).
"""

from hypothesis import strategies as st
from layerwise import LayerSpec, layerwise_trace

from g10sim.config.system import SystemSpec

MIB = 2**20
FLOAT = 4
POOL_BYTES_PER_NS = 250

VGG_FORWARD_MS = [11.8, 50.5, 23.7, 41.8, 15.0, 24.7, 23.8, 23.9, 12.9, 24.7, 23.4, 23.3, 5.4, 5.3, 5.4, 5.4]
VGG_FORWARD_MS += [8.9, 1.9, 0.4]
VGG_BACKWARD_MS = [47.7, 129.3, 47.4, 80.6, 35.6, 63.9, 63.9, 64.1, 33.0, 60.7, 60.9, 60.8, 13.0, 13.0, 13.0]
VGG_BACKWARD_MS += [13.0, 15.4, 2.5, 0.5]
VGG_E = [64, 64, "P", 128, 128, "P", *[256] * 4, "P", *[512] * 4, "P", *[512] * 4, "P"]
VGG_16 = [64, 64, "P", 128, 128, "P", *[256] * 3, "P", *[512] * 3, "P", *[512] * 3, "P"]


def vgg(batch_size, channels=VGG_E, workspace_bytes=()):
    """VGG with the paper's times scaled to a batch size (VGG-E), or a millisecond for each layer."""
    timed = channels == VGG_E
    forward = iter(VGG_FORWARD_MS if timed else [1.0] * len(channels))
    backward = iter(VGG_BACKWARD_MS if timed else [1.0] * len(channels))
    scratch = iter(workspace_bytes)
    layers, depth, side = [], 3, 224
    convolutions = pools = 0
    for width in channels:
        if width == "P":
            pools += 1
            before, side = depth * side * side, side // 2
            layers.append(pool(f"pool{pools}", before, depth * side * side, batch_size))
            continue
        convolutions += 1
        layers.append(
            LayerSpec(
                f"conv{convolutions}",
                "Conv2d",
                width * side * side * FLOAT * batch_size,
                nanoseconds(next(forward), batch_size),
                nanoseconds(next(backward), batch_size),
                weight_bytes=depth * width * 9 * FLOAT,
                workspace_bytes=next(scratch, 0),
                activated=True,
            )
        )
        depth = width
    layers += classifier(depth * side * side, batch_size, forward, backward)
    return layerwise_trace("VGG", batch_size, 3 * 224 * 224 * FLOAT * batch_size, layers)


def alexnet(batch_size):
    """AlexNet with a millisecond for each forward and two for each backward layer."""
    shapes = [("conv", 64, 55, 11), ("pool", 64, 27, 0), ("conv", 192, 27, 5), ("pool", 192, 13, 0)]
    shapes += [("conv", 384, 13, 3), ("conv", 256, 13, 3), ("conv", 256, 13, 3), ("pool", 256, 6, 0)]
    layers, depth, elements = [], 3, 3 * 224 * 224
    for number, (kind, width, side, window) in enumerate(shapes):
        output = width * side * side
        if kind == "pool":
            layers.append(pool(f"{number}pool", elements, output, batch_size))
        else:
            layers.append(
                LayerSpec(
                    f"{number}conv",
                    "Conv2d",
                    output * FLOAT * batch_size,
                    10**6,
                    2 * 10**6,
                    weight_bytes=depth * width * window * window * FLOAT,
                    activated=True,
                )
            )
        depth, elements = width, output
    layers += classifier(elements, batch_size, iter([1.0] * 3), iter([2.0] * 3))
    return layerwise_trace("AlexNet", batch_size, 3 * 224 * 224 * FLOAT * batch_size, layers)


def pool(name, before, after, batch_size):
    moved = (before + after) * FLOAT * batch_size
    return LayerSpec(
        name,
        "MaxPool2d",
        after * FLOAT * batch_size,
        moved // POOL_BYTES_PER_NS,
        2 * moved // POOL_BYTES_PER_NS,
        reads_output=True,
    )


def classifier(elements, batch_size, forward, backward):
    layers = []
    for number, width in enumerate((4096, 4096, 1000)):
        layers.append(
            LayerSpec(
                f"fc{number + 1}",
                "Linear",
                width * FLOAT * batch_size,
                nanoseconds(next(forward), batch_size),
                nanoseconds(next(backward), batch_size),
                weight_bytes=elements * width * FLOAT,
                activated=number < 2,
            )
        )
        elements = width
    return layers


def nanoseconds(milliseconds_at_64, batch_size):
    return round(milliseconds_at_64 * 10**6 * batch_size / 64)


def titan_x(link="12.8 GB/s", memory="12 GB", host="64 GiB", **host_more):
    """The machine of the vDNN paper."""
    return SystemSpec(
        name="titan-x",
        gpu={"memory": memory, "clock": "1 GHz", "page_size": "512 B", "allocation_rate": "1 TB/s"},
        host={"memory": host, **host_more},
        ssd={
            "capacity": "0 B",
            "read_bandwidth": "1 GB/s",
            "write_bandwidth": "1 GB/s",
            "latency": "10 us",
        },
        pcie={"bandwidth": link},
        page_fault={"latency": "45 us"},
    )


def chains(largest=100):
    """Draw traces of two to eight layers, convolutions and pooling, before a classifier."""
    kind = st.sampled_from(["Conv2d", "MaxPool2d"])
    layer = st.tuples(kind, st.integers(1, largest), st.integers(1, 100), st.integers(1, 200))
    return st.lists(layer, min_size=2, max_size=8).map(drawn_chain)


def drawn_chain(drawn):
    """Return the chain of layers given by type, size (64 KiB) and times (10 us)."""
    layers = [
        LayerSpec(f"layer{number}", kind, size * 64 * 1024, forward * 10_000, backward * 10_000)
        for number, (kind, size, forward, backward) in enumerate(drawn)
    ]
    layers.append(LayerSpec("classifier", "Linear", 1024, 1000, 1000, weight_bytes=1024))
    return layerwise_trace("drawn", 1, 512, layers)
