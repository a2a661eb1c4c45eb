"""Work of operators that compute, from the shapes that an execution trace has of their tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from g10sim.importers.execution_nodes import Node, Reference
from g10sim.importers.operations import Operation
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass, attended_pairs, rows_alignment

_FORMATS: Mapping[str, NumberFormat] = {
    "double": NumberFormat.FLOAT64,
    "float": NumberFormat.FLOAT32,
    "c10::half": NumberFormat.FLOAT16,
    "c10::bfloat16": NumberFormat.BFLOAT16,
    "c10::float8_e4m3fn": NumberFormat.FLOAT8,
    "c10::float8_e5m2": NumberFormat.FLOAT8,
    "signed char": NumberFormat.INT8,
}
_PRODUCTS = {
    **dict.fromkeys(("mm", "_scaled_mm", "_int_mm", "matmul", "linear", "bmm"), 0),
    **dict.fromkeys(("addmm", "baddbmm"), 1),
}
"""Products of matrices, with the position of the left one among the tensors."""
_CONVOLUTIONS = frozenset(
    ["convolution", "_convolution", "cudnn_convolution", "miopen_convolution", "mkldnn_convolution"]
)
_BATCHED, _IMAGE = 3, 4
_MASKS = ("attn_mask", "attn_bias", "bias")
"""Arguments of attention that add to all pairs of positions, as its operators call them."""


def work_of(node: Node, operation: Operation) -> KernelCost:
    """Return the work of an operator: of products, convolutions and attention, and the bytes of all others.

    FLOPs are counted as for captures. float32 convolutions are rounded to tf32 (PyTorch's default), products
    are not.
    """
    cost = KernelCost(
        operation.name, OperatorClass.OTHER, phase=operation.phase, moved_bytes=operation.moved_bytes
    )
    tensors, name = node.arguments, operation.name.removesuffix("_")
    if name in _PRODUCTS:
        return _product(cost, tensors[_PRODUCTS[name] :], node.outputs[:1])
    if name in _CONVOLUTIONS:
        return _convolution(cost, node, tensors, node.outputs[:1], 1)
    if name == "convolution_backward":
        gradient, given = tensors[:1], tensors[1:]
        made = Counter(one.shape for one in node.outputs) & Counter(one.shape for one in given[:2])
        return _convolution(cost, node, given, gradient, made.total())
    if "_attention" in name:
        return _attention(cost, node)
    return cost


def _known(
    cost: KernelCost, kind: OperatorClass, reference: Reference, flops: int, sizes: Mapping[str, Any]
) -> KernelCost:
    """Return the work with its class, format and FLOPs; as it was for a format without a rate."""
    number_format = _FORMATS.get(reference.kind.lower())
    if number_format is None or not flops:
        return cost
    if kind is OperatorClass.CONVOLUTION and number_format is NumberFormat.FLOAT32:
        number_format = NumberFormat.TF32
    return replace(cost, operator_class=kind, number_format=number_format, flops=flops, **sizes)


def _product(cost: KernelCost, tensors: Sequence[Reference], outputs: Sequence[Reference]) -> KernelCost:
    if len(tensors) < 2 or not all(len(one.shape) > 1 for one in tensors[:2]):
        return cost
    left, right = tensors[:2]
    batched = len(right.shape) >= _BATCHED
    kind = OperatorClass.BATCHED_MATMUL if batched else OperatorClass.MATMUL
    columns = right.shape[0 if cost.operator == "linear" else -1]
    flops = 2 * prod(left.shape) * columns
    alignment = rows_alignment((one.shape, one.strides, one.item_bytes) for one in (left, right, *outputs))
    return _known(cost, kind, left, flops, {"products": left.shape[-1], "alignment": alignment})


def _convolution(
    cost: KernelCost, node: Node, tensors: Sequence[Reference], outputs: Sequence[Reference], times: int
) -> KernelCost:
    """Count a convolution of the first tensor by the second, as often as it is made.

    Each element of the output, or of the input of a transposed one, meets all weights of one channel.
    """
    if not outputs or len(tensors) < 2 or not all(len(one.shape) >= _BATCHED for one in tensors[:2]):
        return cost
    image, weight = tensors[:2]
    side = image if node.value_of("transposed") is True else outputs[0]
    met = prod(weight.shape[1:])
    flops = 2 * prod(side.shape) * met * times
    spread = [
        round(max(ends) / min(ends)) for ends in zip(image.shape[2:], outputs[0].shape[2:], strict=False)
    ]
    groups = node.value_of("groups")
    channels_first = len(image.shape) >= _IMAGE and image.strides[1] > 1
    sizes = {
        "products": met,
        "groups": groups if isinstance(groups, int) else image.shape[1] // weight.shape[1],
        "window": prod(weight.shape[2:]),
        "stride": max([1, *spread]),
        "channels": image.shape[1],
        "channels_first": int(channels_first),
    }
    return _known(cost, OperatorClass.CONVOLUTION, image, flops, sizes)


def _attention(cost: KernelCost, node: Node) -> KernelCost:
    """Count the products of fused attention: two forward, and five backward."""
    is_backward = "backward" in cost.operator
    tensors = node.arguments[is_backward : 3 + is_backward]
    if [len(one.shape) for one in tensors] != [_IMAGE] * 3:
        return cost  # sequences of several lengths
    query, key, value = tensors
    inner = cost.operator.startswith(("_flash", "_efficient", "_cudnn"))  # heads lie inside positions
    batch, *sides, width = query.shape
    heads, length = sides[::-1] if inner else sides
    keys = key.shape[1 if inner else 2]
    causal = bool(node.value_of("is_causal"))
    once = 2 * batch * heads * attended_pairs(length, keys, causal=causal)
    flops = once * (3 * width + 2 * value.shape[-1] if is_backward else width + value.shape[-1])
    drops = node.value_of("dropout_p")
    sizes = {
        "keys": keys,
        "head": width,
        "causal": int(causal),
        "masked": int(any(node.tensors_of(name) for name in _MASKS)),
        "dropout": int(isinstance(drops, float) and drops > 0),
    }
    return _known(cost, OperatorClass.ATTENTION, query, flops, sizes)
