"""Devices that a step runs on: a fake one, whose tensors have shapes but no values, and a real one.

On both the operators of a step that asks for ``torch.compile`` are run one by one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from g10sim.capture.fused import SHAPES, attention_kernels, fused_forms
from g10sim.capture.options import StepOptions
from g10sim.capture.routing import RoutingMode
from g10sim.errors import ConfigError, TraceError
from g10sim.importers.operations import aten

CUDA = "cuda"
MOST_BYTES = 2**28
"""More real memory than an operator of small tensors needs, and little compared with a model."""
MOST_ELEMENTS = 65536
"""More than any table of layers, heads or positions that decides how a model is built."""

_FACTORIES = aten("arange linspace logspace full scalar_tensor")

_AUTOCAST = "AutocastCPU"
_TO_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
    frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa prod prod.dim_int softmax.int
    log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord sum
    sum.dim_IntList
"""
"""Operators whose floating-point operands become float32.

The lists are those of PyTorch 2.13 (aten/src/ATen/autocast_mode.h: ``AT_FORALL_FP32``,
``AT_FORALL_FP32_SET_OPT_DTYPE``, ``AT_FORALL_LOWER_PRECISION_FP``), which the documentation gives as
"CUDA Ops that can autocast" (docs.pytorch.org/docs/stable/amp.html).
"""

_HALVES = (torch.float16, torch.bfloat16)

_run_on_zeros = fake_tensor.run_fallback_kernel


@contextmanager
def fake_device(options: StepOptions) -> Iterator[RoutingMode]:
    """Make every tensor one of shapes without values, on a device that takes CUDA's operators.

    Yields what decides which experts the model's routers choose.
    """
    with (
        without_earlier_objects(),
        _number_formats(options),
        # Operators without a shape function would be run on real zeros.
        mock.patch.object(fake_tensor, "run_fallback_kernel", _refuse_large),
        RoutingMode(options) as routing,
        routing.following(),
        _operators_of_cuda(options.attention),
        attention_kernels(options.attention),
        lists_in_optimizers(),
        _mixed_precision_of_cuda(),
        # This initialization draws until all values fit a range: it would ask for values.
        mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
        # The inherited copy has a storage that its own views do not share (seen in PyTorch 2.13).
        mock.patch.object(FakeTensor, "__deepcopy__", _deep_copy, create=True),
        # An operator that is refused is told in one line, not in PyTorch's traceback too.
        mock.patch.object(fake_tensor.log, "disabled", True),
    ):
        yield routing


_LEFT_OUT_BY_PYTHON = gc.get_freeze_count()
"""Objects that no search for garbage sees from the start: some hundreds in Python 3.12."""


@contextmanager
def without_earlier_objects() -> Iterator[None]:
    """Leave what is there already, such as modules, out of each search for garbage and for tensors."""
    is_outermost = gc.get_freeze_count() <= _LEFT_OUT_BY_PYTHON
    gc.freeze()
    try:
        yield
    finally:
        if is_outermost:
            gc.unfreeze()


_NUMBERS_READ = {"torch.optim": 1.0, "torch.amp.grad_scaler": 0.0}
"""Numbers that modules of PyTorch read of tensors: factors of an update; how many gradients overflowed."""


def _number(tensor: Any) -> Any:
    """Return the value of a tensor, also where PyTorch's optimizers and loss scaling ask for an unknown one.

    What optimizers do with it changes no kernel, and a steady state has no overflow.
    """
    try:
        return torch.Tensor.item(tensor)
    except fake_tensor.DataDependentOutputException:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        for module, value in _NUMBERS_READ.items():
            if asking.startswith(module):
                return value
        raise


@contextmanager
def lists_in_optimizers() -> Iterator[None]:
    """Make optimizers and clipping work on lists of tensors by default, as on CUDA devices, while open."""
    devices = [*optimizers._get_foreach_kernels_supported_devices(), "cpu"]
    with (
        mock.patch.object(optimizers, "_get_foreach_kernels_supported_devices", return_value=devices),
        mock.patch.object(FakeTensor, "item", _number, create=True),
        _one_more(optimizers, "_foreach_supported_types"),
        _one_more(_foreach_utils, "_foreach_supported_types"),
    ):
        yield


def _one_more(module: Any, name: str) -> Any:
    return mock.patch.object(module, name, [*getattr(module, name), FakeTensor])


@contextmanager
def _mixed_precision_of_cuda() -> Iterator[None]:
    """Let ``torch.autocast`` and ``GradScaler`` for CUDA work on the fake device, while open."""
    casting, scaling = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    cast, scale = casting.__init__, scaling.__init__

    def casts(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == CUDA:
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype(CUDA)
        cast(self, device_type, dtype, *args, **kwargs)

    def scales(self: Any, device: str = CUDA, *args: Any, **kwargs: Any) -> None:
        scale(self, "cpu" if device == CUDA else device, *args, **kwargs)

    with mock.patch.object(casting, "__init__", casts), mock.patch.object(scaling, "__init__", scales):
        yield


@contextmanager
def on_device(options: StepOptions, device: str = CUDA) -> Iterator[None]:
    """Make tensors on a device, in the format of the options, and run attention as they say."""
    with _number_formats(options), torch.device(device), attention_kernels(options.attention):
        yield


def require_cuda() -> str:
    """Return the name of the CUDA device. Raises ConfigError where there is none."""
    if not torch.cuda.is_available():
        raise ConfigError("--measure: found no CUDA device; allowed: a computer with one, or no --measure")
    return str(torch.cuda.get_device_name())


def synchronize(device: str) -> None:
    """Wait until a CUDA device has finished; main memory always has."""
    if device == CUDA:
        torch.cuda.synchronize()


@contextmanager
def _number_formats(options: StepOptions) -> Iterator[None]:
    """Make tensors in the format of the options, and let tensor cores round products if they say so."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(getattr(torch, options.dtype))
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)


def _refuse_large(mode: Any, func: Any, flat_args: Sequence[Any], *others: Any) -> Any:
    needed = sum(arg.untyped_storage().nbytes() for arg in flat_args if isinstance(arg, torch.Tensor))
    if needed > MOST_BYTES:
        raise TraceError(
            f"found the operator {func}, which PyTorch can only run with values, on {needed} bytes; "
            f"allowed: operators with a shape function (torch.library.register_fake), or {MOST_BYTES} bytes"
        )
    return _run_on_zeros(mode, func, flat_args, *others)


def _deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) not in memo:
        made = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(made) if is_parameter else made
        memo[id(tensor)].requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


@contextmanager
def known_values() -> Iterator[None]:
    """Let code read values that follow from numbers alone (rates that grow with the layer), while open.

    Fake tensors carry such values along (``FakeTensor.constant``), but by default of literals and single
    elements only.
    """
    with mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", MOST_ELEMENTS), _KnownValues():
        yield


class _KnownValues(TorchDispatchMode):  # type: ignore[misc]
    """Gives the results of factories of known values their values, if they are small."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func._schema.name not in _FACTORIES or made.device.type != "cpu" or made.numel() > MOST_ELEMENTS:
            return made
        with fake_tensor.unset_fake_temporarily():
            values = func(*args, **(kwargs or {}))
        return torch.ops.aten.lift_fresh(values)


@contextmanager
def _operators_of_cuda(attention: str) -> Iterator[None]:
    """Make CPU tensors take the operators of a CUDA device while open.

    ``torch.autocast`` casts to float32 what it does there, where CPUs cast other operators. What CUDA casts
    to the lower format, CPUs cast too. ``_fused_sgd_`` returns nothing, and PyTorch 2.13 has no form of it
    without values.
    """
    forms: dict[str, Mapping[str, Callable[..., Any]]] = {
        "AutogradCPU": fused_forms(attention),
        "Meta": {**SHAPES, "_fused_sgd_": lambda *_, **__: None},
        _AUTOCAST: {
            name: partial(_in_float32, name)
            for name in _TO_FLOAT32.split()
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _AUTOCAST)
        },
    }
    with torch.library._scoped_library("aten", "IMPL") as library:
        for key, by_name in forms.items():
            for name, form in by_name.items():
                library.impl(name, form, key)
        yield


def _in_float32(name: str, *args: Any, **kwargs: Any) -> Any:
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        args, kwargs = tree_map_only(
            torch.Tensor, lambda one: one.float() if one.dtype in _HALVES else one, (args, kwargs)
        )
        return operator(*args, **kwargs)


_FUNCTION, _MODULE = "_torchdynamo_orig_callable", "_orig_mod"
"""Attributes that PyTorch gives a function, and a module, that it compiles."""

ONE_BY_ONE = "operators were captured one by one, as without it"


@contextmanager
def uncompiled() -> Iterator[list[Any]]:
    """Let ``torch.compile`` change nothing while open; yields what it was asked to compile."""
    asked: list[Any] = []

    def leave(model: Any = None, **options: Any) -> Any:
        if model is None:
            return leave
        asked.append(model)
        return model

    # What was compiled before, by a decorator, runs as it was written, too.
    is_loaded = "torch._dynamo" in sys.modules
    with (
        mock.patch.object(torch, "compile", leave),
        torch.compiler.set_stance("force_eager") if is_loaded else nullcontext(),
    ):
        yield asked


def is_compiled(value: Any) -> bool:
    """Return True if ``torch.compile`` made a function or a module."""
    modules = getattr(value, "_modules", None) or {}
    return _FUNCTION in getattr(value, "__dict__", {}) or _MODULE in modules


def as_written(network: Any) -> Any:
    """Return the module that ``torch.compile`` has wrapped; any other as it is."""
    return (getattr(network, "_modules", None) or {}).get(_MODULE, network)
