"""Facts about single operators: the kernels that they launch, their class, FLOPs and number format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from re import fullmatch
from typing import Any, TypeAlias

import torch
from torch.utils.flop_counter import flop_registry

from g10sim.capture import fused, layouts
from g10sim.importers.operations import ALLOCATIONS, aten, short_name
from g10sim.trace.work import COMPUTING, NumberFormat, OperatorClass, rows_alignment

LOOK = "aten::_local_scalar_dense"
"""Copies a value to the host: ``item()``, and whatever decides by a value."""

NO_KERNELS = (
    ALLOCATIONS
    | aten("_unsafe_view alias detach is_same_size lift lift_fresh record_stream resize_ set_ size stride")
    | aten("sym_numel sym_size sym_storage_offset sym_stride")
    | {LOOK, "prim::device", "prim::layout"}
    | {"profiler::_record_function_enter_new", "profiler::_record_function_exit"}
)
"""Operators that launch nothing; views need no entry: their results share storage and they write nothing."""

_NAMES = {
    OperatorClass.MATMUL: """
        mm addmm mv addmv dot vdot _scaled_mm _addmm_activation _int_mm _grouped_mm _scaled_grouped_mm
    """,
    OperatorClass.BATCHED_MATMUL: "bmm baddbmm addbmm",
    OperatorClass.RECURRENT: "recurrent recurrent_backward",
    OperatorClass.CONVOLUTION: "convolution _convolution convolution_backward cudnn_convolution",
    OperatorClass.NORMALIZATION: """
        _softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data
        native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
        native_batch_norm native_batch_norm_backward _native_batch_norm_legit cudnn_batch_norm
        cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update _fused_rms_norm
        _fused_rms_norm_backward rms_norm rms_norm_backward
    """,
    OperatorClass.REDUCTION: """
        max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
        cumsum cumprod sort topk std_mean var_mean logsumexp linalg_vector_norm nll_loss_forward
        nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy nonzero unique_consecutive
        _is_all_true _is_any_true binary_cross_entropy_with_logits soft_margin_loss
    """,
    OperatorClass.INDEXING: """
        embedding embedding_dense_backward index index_select gather scatter scatter_add index_add index_copy
        index_put take _index_put_impl_ _unsafe_index _unsafe_index_put nll_loss_backward nll_loss2d_backward
        masked_scatter masked_scatter_backward repeat_interleave
    """,
    OperatorClass.COPY: """
        _to_copy clone copy fill zero zeros zeros_like ones ones_like full full_like new_zeros
        new_ones new_full cat stack constant_pad_nd arange slice_backward select_backward slice_scatter
        select_scatter split_with_sizes_copy repeat roll flip tril triu scalar_tensor eye linspace
        as_strided_scatter unfold_backward diagonal_backward im2col col2im pixel_shuffle pixel_unshuffle
        channel_shuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
        replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
    """,
    OperatorClass.ELEMENTWISE: """
        native_dropout native_dropout_backward normal_ uniform_ random_ rand randn rand_like
        randn_like randint bernoulli masked_fill glu glu_backward exponential_ hardswish
        hardswish_backward hardsigmoid_backward softplus_backward mse_loss_backward
        smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward log_sigmoid_forward
        log_sigmoid_backward floor_divide upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
        upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward upsample_bilinear2d
        upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward _thnn_fused_lstm_cell
        _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
        hardtanh_backward leaky_relu_backward elu_backward mish_backward softshrink_backward
        hardshrink_backward _prelu_kernel _prelu_kernel_backward rrelu_with_noise rrelu_with_noise_backward
        soft_margin_loss_backward
    """,
}
"""Names of operators; an in-place form (``addmm_``) belongs with the one that makes a new tensor."""
_CLASSES = {name: found for found, names in _NAMES.items() for name in names.split()}
_FORMATS = {
    torch.float64: NumberFormat.FLOAT64,
    torch.float32: NumberFormat.FLOAT32,
    torch.bfloat16: NumberFormat.BFLOAT16,
    torch.float16: NumberFormat.FLOAT16,
    torch.float8_e4m3fn: NumberFormat.FLOAT8,
    torch.float8_e5m2: NumberFormat.FLOAT8,
    torch.float8_e4m3fnuz: NumberFormat.FLOAT8,
    torch.float8_e5m2fnuz: NumberFormat.FLOAT8,
    torch.int8: NumberFormat.INT8,
    torch.complex128: NumberFormat.FLOAT64,
    torch.complex64: NumberFormat.FLOAT32,
    torch.complex32: NumberFormat.FLOAT16,
}


_PRODUCTS = (OperatorClass.MATMUL, OperatorClass.BATCHED_MATMUL)

Formula: TypeAlias = Callable[..., int]
"""FLOPs (a multiply-add is two) of a call, from its arguments and its result (``out_val``)."""


def _vector_product(matrix: Any, *_: Any, **__: Any) -> int:
    """Count ``mv``, ``dot`` and ``vdot``: a multiply-add for each element of the first operand."""
    return int(2 * prod(matrix.shape))


def _matrix_product(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Count a product of two matrices (``_int_mm``, of 8-bit integers), or of the matrices of two batches."""
    return int(2 * prod(left.shape) * right.shape[-1])


def _grouped_product(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Count ``_grouped_mm``: each row of a ragged batch meets the matrix of its group only.

    A ragged batch has two dimensions; where only the second operand is one, its columns are divided among the
    groups of the first.
    """
    ragged_columns = left.dim() > right.dim()
    return _matrix_product(left, right) // (left.shape[0] if ragged_columns else 1)


def _attention_module(query: Any, key: Any, *_: Any, **__: Any) -> int:
    """Count ``_native_multi_head_attention``: four projections, scores and weighted values."""
    batch, length, width = query.shape
    keys = key.shape[1]
    projections = (2 * length + 2 * keys) * width * width
    return int(2 * batch * (projections + 2 * length * keys * width))


FORMULAS: Mapping[str, Formula] = {
    "mv": _vector_product,
    "dot": _vector_product,
    "vdot": _vector_product,
    "addmv": lambda added, *others, **_: _vector_product(*others),
    "_int_mm": _matrix_product,
    "_addmm_activation": lambda added, *others, **_: _matrix_product(*others),
    "addbmm": lambda added, *others, **_: _matrix_product(*others),
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "_native_multi_head_attention": _attention_module,
    f"{fused.NAMESPACE}::attention": fused.attention_flops,
    f"{fused.NAMESPACE}::attention_backward": fused.attention_backward_flops,
    f"{fused.NAMESPACE}::recurrent": fused.recurrent_flops,
    f"{fused.NAMESPACE}::recurrent_backward": fused.recurrent_backward_flops,
}
"""Formulas that ``torch.utils.flop_counter`` lacks, by name of the operator; without library, of any."""


def launches_nothing(func: Any) -> bool:
    """Return True if an operator runs no kernel: ``NO_KERNELS``, and views made in place (``transpose_``)."""
    return func._schema.name in NO_KERNELS or torch.Tag.inplace_view in func.tags


def operator_class(func: Any) -> OperatorClass:
    """Class of an operator; ``OTHER`` for one that is not known."""
    name = short_name(func._schema.name)
    if "attention" in name:
        return OperatorClass.ATTENTION
    known = _CLASSES.get(name) or _CLASSES.get(name.removesuffix("_"))
    if known is not None:
        return known
    if name.startswith(("_foreach_", "_fused_", "_amp_")):
        return OperatorClass.OPTIMIZER
    if _is_pointwise(func):
        return OperatorClass.ELEMENTWISE
    if torch.Tag.reduction in func.tags:
        return OperatorClass.REDUCTION
    return OperatorClass.OTHER


def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or torch.Tag.pointwise in _functional_tags(func)


def _functional_tags(func: Any) -> Sequence[Any]:
    """Tags of the form that returns a new tensor: in-place forms lack some of them."""
    return getattr(getattr(_functional(func), func._overloadname, None), "tags", ())


def _functional(func: Any) -> Any:
    """Return the packet of the form that returns a new tensor; None where there is none."""
    name = short_name(func._schema.name)
    return getattr(getattr(torch.ops, func.namespace), name.removesuffix("_"), None)


def _formula(func: Any) -> Formula | None:
    """Return the formula for the FLOPs of an operator, or of its form that makes a new tensor."""
    known: Formula | None = flop_registry.get(func._overloadpacket) or flop_registry.get(_functional(func))
    name = func._schema.name
    return known or FORMULAS.get(name) or FORMULAS.get(short_name(name).removesuffix("_"))


def count_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Count floating-point operations (a multiply-add is two) of one call; 0 for operators that move bytes.

    The formulas are those of ``torch.utils.flop_counter``, and those here. A product of complex numbers is
    four of real ones.
    """
    kind = operator_class(func)
    formula = _formula(func) if kind in COMPUTING else None
    if formula is None:
        return 0
    times = 4 if kind in _PRODUCTS and result.is_complex() else 1
    return int(formula(*args, **kwargs, out_val=result)) * times


def sizes_of(func: Any, args: Sequence[Any], operands: Sequence[Any]) -> dict[str, int]:
    """Return the sizes of a call that its time depends on besides FLOPs and bytes, by name.

    ``operands`` are all tensors that it reads or makes.
    """
    name = short_name(func._schema.name)
    kind = operator_class(func)
    if kind in _PRODUCTS:
        matrices = ((one.shape, one.stride(), one.element_size()) for one in operands)
        return {"alignment": rows_alignment(matrices)}
    if kind in (OperatorClass.ELEMENTWISE, OperatorClass.COPY):
        return {"unvectorized": layouts.unvectorized(func, operands, pointwise=_is_pointwise(func))}
    if name in _SUMS:
        return {"channels": layouts.summed_columns(args)}
    if "layer_norm" in name:
        return {"channels": prod(args[1 + name.endswith("_backward")])}
    if "batch_norm" in name:
        image = args[name.endswith("_backward")]
        return {"channels": int(image.shape[1]), "channels_first": layouts.channels_first(image)}
    if name in _CONVOLUTION_ARGUMENTS:
        return _convolution_sizes(args[_CONVOLUTION_ARGUMENTS[name] :])
    if func.namespace == fused.NAMESPACE and name.startswith("attention"):
        query, key, _, mask = args[name.endswith("_backward") :][:4]
        found = {"keys": int(key.shape[-2]), "head": int(query.shape[-1])}
        ways = {"causal": args[-2], "masked": mask is not None, "dropout": args[-3]}
        return found | {way: int(bool(value)) for way, value in ways.items()}
    if name in _WAYS:
        sequence, states = args[name.endswith("_backward") :][:2]
        return {"steps": fused.waiting_steps(sequence, states, args[_WAYS[name]])}
    return {}


_WAYS = {"recurrent": 4, "recurrent_backward": 7}
"""Positions of the number of directions of recurrent layers."""


_SUMS = frozenset({"sum", "mean"})
_CONVOLUTION_ARGUMENTS = {"convolution": 0, "_convolution": 0, "convolution_backward": 1}
"""Positions of the input; weight, bias, strides, padding, dilation, transposed, padding, groups follow."""


def _convolution_sizes(args: Sequence[Any]) -> dict[str, int]:
    image, weight, _, stride, *_ = args
    return {
        "groups": int(args[_GROUPS]),
        "window": prod(weight.shape[2:]),
        "stride": max(stride),
        "channels": int(image.shape[1]),
        "channels_first": layouts.channels_first(image),
    }


_GROUPS = 8


def products_per_element(flops: int, written: Any) -> int:
    """Multiply-adds for each element of a result; 0 for an empty one."""
    elements = int(written.numel())
    return flops // (2 * elements) if elements else 0


def has_known_cost(func: Any) -> bool:
    """Return True if the class of an operator is known and, where that class computes, its FLOPs too."""
    found = operator_class(func)
    return found is not OperatorClass.OTHER and (found not in COMPUTING or _formula(func) is not None)


_SCATTERING_GRADIENTS = {
    "index_add": "IndexSelect",
    "index_put": "Index",
    "scatter_add": "Gather Cummax Cummin",
    "scatter": "Max Min Topk Sort Kthvalue Mode Median Nanmedian",
}
"""Operators, and those whose gradients they make."""


def scatters_in_place(func: Any) -> bool:
    """Return True if a gradient puts into the zeros that it has made: a copy of them on fake tensors only.

    (PyTorch, torch/csrc/autograd/FunctionsManual.cpp, ``areAnyTensorSubclassLike``)
    """
    makers = _SCATTERING_GRADIENTS.get(short_name(func._schema.name), "").split()
    node = torch._C._current_autograd_node()
    # PyTorch's own nodes have a number in their names, a user's functions have none.
    own = None if node is None else fullmatch(r"(\w+)Backward\d+", node.name())
    return own is not None and own[1] in makers


def number_format(func: Any, tensors: Sequence[Any]) -> NumberFormat:
    """Return the format an operator works in: that of its widest operand, scales left out.

    Of a normalization it is that of what it normalizes, whatever its weights and statistics have.
    float32 counts as tf32 where this process's PyTorch settings let tensor cores round it
    (``torch.backends.cudnn.allow_tf32`` for convolutions, ``torch.get_float32_matmul_precision()``
    for matrix products); the caller falls back to float32 on a GPU without tf32.
    """
    kind = operator_class(func)
    if kind in (OperatorClass.ATTENTION, OperatorClass.NORMALIZATION):
        tensors = tensors[:1]  # the others include denominators and statistics, in float32 whatever it is in
    elif short_name(func._schema.name).startswith("_scaled_"):
        tensors = tensors[:2]  # the others are scales, in float32
    found = [_FORMATS[tensor.dtype] for tensor in tensors if tensor.dtype in _FORMATS]
    widest = min(found, key=list(NumberFormat).index, default=NumberFormat.FLOAT32)
    if widest is not NumberFormat.FLOAT32:
        return widest
    if kind is OperatorClass.CONVOLUTION and torch.backends.cudnn.allow_tf32:
        return NumberFormat.TF32
    if kind in _PRODUCTS and torch.get_float32_matmul_precision() != "highest":
        return NumberFormat.TF32
    return NumberFormat.FLOAT32


CHUNK_ELEMENTS = 65536
MOST_BLOCKS = 320
MOST_TENSORS = (110, 64, 48, 36, 30)
"""Limits of one launch (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh: ``kChunkSize``,
``depth_to_max_blocks``, and ``depth_to_max_tensors`` for 1 to 5 lists)."""

CONVOLUTION_GRADIENTS = "aten::convolution_backward"
_GRADIENT, _INPUT, _WEIGHT, _TRANSPOSED = 0, 1, 2, 7
"""Positions of arguments of ``aten::convolution_backward``."""
GRADIENT_PARTS = (
    ("input", (_GRADIENT, _WEIGHT), OperatorClass.CONVOLUTION),
    ("weight", (_GRADIENT, _INPUT), OperatorClass.CONVOLUTION),
    ("bias", (_GRADIENT,), OperatorClass.REDUCTION),
)
"""Its results: for what they are, positions of the arguments that each is made from, and its class.

PyTorch calls cuDNN once for the input and once for the weight and sums up the bias
(aten/src/ATen/native/Convolution.cpp, ``convolution_backward``).
"""


ListPart: TypeAlias = tuple[int, int]
"""Position of a tensor in each list, and its elements that a launch works on."""


def launches(elements: Sequence[int], lists: int) -> Iterator[tuple[ListPart, ...]]:
    """Yield the parts of each launch.

    ``elements`` are the sizes of the tensors, alike in all ``lists`` lists. A launch ends when it has as
    many chunks as blocks, or the last chunk of as many tensors as fit; a tensor cut by the end of a launch
    goes on in the next.
    """
    most_tensors = MOST_TENSORS[min(lists, len(MOST_TENSORS)) - 1]
    parts: list[ListPart] = []
    blocks = 0
    for position, size in enumerate(elements):
        left = size
        while left:
            taken = min(left, (MOST_BLOCKS - blocks) * CHUNK_ELEMENTS)
            blocks += -(-taken // CHUNK_ELEMENTS)
            left -= taken
            parts.append((position, taken))
            if blocks == MOST_BLOCKS or (len(parts) == most_tensors and not left):
                yield tuple(parts)
                parts, blocks = [], 0
    if parts:
        yield tuple(parts)


def gradient_flops(args: Sequence[Any]) -> int:
    """Count the gradient of a convolution's input, or of its weight: each as much as the convolution itself.

    Each element of the smaller side (the output, or the input of a transposed one) meets all weights of one
    channel.
    """
    side = args[_INPUT if args[_TRANSPOSED] else _GRADIENT]
    weight = args[_WEIGHT]
    return int(2 * side.numel() * (weight.numel() // weight.shape[0]))
