"""Mixed precision as CUDA devices do it: ``torch.autocast`` casts other operators on CPUs than there.

The lists are those of PyTorch 2.13 (aten/src/ATen/autocast_mode.h: ``AT_FORALL_FP32``,
``AT_FORALL_FP32_SET_OPT_DTYPE``, ``AT_FORALL_LOWER_PRECISION_FP``), which the documentation gives as
"CUDA Ops that can autocast" (docs.pytorch.org/docs/stable/amp.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

KEY = "AutocastCPU"
TO_FLOAT32 = (
    *(
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "reciprocal",
        "rsqrt",
    ),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm"),
    *(
        "native_layer_norm",
        "rms_norm",
        "group_norm",
        "frobenius_norm.dim",
        "nuclear_norm",
        "nuclear_norm.dim",
    ),
    *("cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
    *(
        "multi_margin_loss",
        "binary_cross_entropy_with_logits",
        "dist",
        "pdist",
        "cdist",
        "renorm",
        "logsumexp",
    ),
    *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d"),
    *("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"),
)
"""Operators whose floating-point operands become float32."""

_HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def casts_of_cuda(autocast: str | None) -> Iterator[None]:
    """Make ``torch.autocast`` of CPUs cast to float32 what it does on CUDA devices, while open.

    Does nothing for None. What CUDA casts to the lower format, CPUs cast too.
    """
    if autocast is None:
        yield
        return
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in TO_FLOAT32:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", KEY):
                library.impl(name, partial(_in_float32, _overload(name)), KEY)
        yield


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _in_float32(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        args, kwargs = tree_map_only(torch.Tensor, _to_float32, (args, kwargs))
        return operator(*args, **kwargs)


def _to_float32(tensor: Any) -> Any:
    return tensor.float() if tensor.dtype in _HALVES else tensor
