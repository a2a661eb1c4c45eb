"""Routing of tokens to experts, given or drawn, and fake tensors with values that shapes follow from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from g10sim.capture.moved import mutated_arguments, tensors_of
from g10sim.capture.options import GROUPED, ROUTED_TOKENS, StepOptions
from g10sim.errors import ConfigError
from g10sim.importers.operations import aten
from g10sim.trace.format import load_trace

MOST_ELEMENTS = 2**26
"""More elements than any index or mask of a layer has; values of more are not followed."""
_MOST_FACTORY_ELEMENTS = 2**16
_FACTORIES = aten("arange full ones scalar_tensor zeros")
_TO_HOST = torch.Tag.data_dependent_output
_OF_UNKNOWN_SHAPE = torch.Tag.dynamic_output_shape
_RANDOM = torch.Tag.nondeterministic_seeded
_INDEX = ("aten::index", "aten::index_put", "aten::index_put_")
_TOPK = "aten::topk"
_MATRIX = 3
"""Dimensions of the weights of all experts of a layer: the first counts experts."""
_ROWS = TypeAdapter(list[Annotated[list[Annotated[int, Field(strict=True, ge=0)]], Field(min_length=1)]])
_ALLOWED = "a JSON list with a row for each router, of the tokens of each expert; or a trace with such rows"
_TOKENS_AT_ONCE = 65536
_Counts = NDArray[np.int64]


class ValuedMode(FakeTensorMode):  # type: ignore[misc]
    """Makes fake tensors, and follows the values of those that are told them (``know``).

    Where all tensors that an operator is given have values, its results have them too: so shapes that depend
    on them are known, and so is what Python reads of them. A tensor that is written from one without values
    has none any more.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._values = WeakTensorKeyDictionary()

    def know(self, tensor: Any, values: Any) -> None:
        """Say what values a fake tensor has. Raises ValueError for values of another shape or format."""
        if tensor.shape != values.shape or tensor.dtype is not values.dtype:
            raise ValueError(
                f"found values of {values.dtype} {tuple(values.shape)} for a tensor of {tensor.dtype} "
                f"{tuple(tensor.shape)}; allowed: its own format and shape"
            )
        self._values[tensor] = values

    def values_of(self, tensor: Any) -> Any:
        """Return the values of a tensor; None if they are not known."""
        return self._values.get(tensor) if isinstance(tensor, FakeTensor) else tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operator on shapes, and on values where all are known."""
        kwargs = kwargs or {}
        if not self._values:
            return super().__torch_dispatch__(func, types, args, kwargs)
        given = tensors_of((args, kwargs))
        if not self._follows(func, given, args):
            args = self._counted(func, args)
            self._forget_written(func, args, kwargs)
            return super().__torch_dispatch__(func, types, args, kwargs)
        tags = func.tags
        if _TO_HOST not in tags and _OF_UNKNOWN_SHAPE not in tags:
            made = super().__torch_dispatch__(func, types, args, kwargs)
            found = self._compute(func, args, kwargs)
        else:
            found = self._compute(func, args, kwargs)
            made = tree_map_only(torch.Tensor, self._shape_of, found)
        self._learn(made, found)
        return made

    def _follows(self, func: Any, given: Sequence[Any], args: Sequence[Any]) -> bool:
        """Return True if the values of an operator's results are known and few enough."""
        if _RANDOM in func.tags or func.namespace != "aten":
            return False
        if not given:
            shape = args[0] if args and isinstance(args[0], (list, tuple)) else ()
            return func._schema.name in _FACTORIES and prod(shape) <= _MOST_FACTORY_ELEMENTS
        return all(self.values_of(tensor) is not None for tensor in given)

    def _compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self.values_of, (args, kwargs))
        return func(*args, **kwargs)

    def _shape_of(self, values: Any) -> Any:
        with self:
            return torch.empty_strided(values.shape, values.stride(), dtype=values.dtype)

    def _learn(self, made: Any, found: Any) -> None:
        for tensor, values in zip(tree_leaves(made), tree_leaves(found), strict=True):
            if isinstance(tensor, FakeTensor) and values.numel() <= MOST_ELEMENTS:
                self.know(tensor, values)

    def _counted(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Replace masks of known values, among the indices of an operator, by as many positions."""
        if func._schema.name not in _INDEX:
            return args
        indices: list[Any] = []
        for index in args[1]:
            values = None if index is None or index.dtype is not torch.bool else self.values_of(index)
            if values is None:
                indices.append(index)
                continue
            count = int(values.count_nonzero())
            with self:
                indices += [torch.empty(count, dtype=torch.int64) for _ in range(values.dim())]
        return (args[0], indices, *args[2:])

    def _forget_written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        arguments = mutated_arguments(func)
        given = [args[place] if place < len(args) else kwargs.get(name) for place, name, _ in arguments]
        written = {one.untyped_storage()._cdata for one in tensors_of(given) if isinstance(one, FakeTensor)}
        for tensor in list(self._values) if written else ():
            if tensor.untyped_storage()._cdata in written:
                del self._values[tensor]


def with_values(values: Any) -> Any:
    """Make a tensor of known values: a fake one that has them where tensors are fake, else one like any."""
    made = torch.empty(values.shape, dtype=values.dtype)
    if isinstance(made, FakeTensor):
        if isinstance(made.fake_mode, ValuedMode):
            made.fake_mode.know(made, values)
        return made
    return made.copy_(values)


class RoutingMode(ValuedMode):
    """Makes fake tensors, and decides which experts the routers of a model choose.

    A router is a module that calls ``topk`` over its last dimension: over as many experts as the layers have
    whose weights were split (``split_experts``), or, where none were and a routing is asked for, over any
    number. ``routed`` has the tokens of each expert by router and number of tokens.
    """

    def __init__(self, options: StepOptions) -> None:
        super().__init__()
        self.experts: set[int] = set()
        self._options = options
        self._given = _read_rows(options.routing) if options.routing_file else None
        self._routers: dict[int, int] = {}
        self._running: list[Any] = []
        self.routed: dict[tuple[int, int], _Counts] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the modules that run, of any model, while the context is open."""

        def enter(module: Any, _: Any) -> None:
            self._running.append(module)

        def leave(*_: Any) -> None:
            if self._running:
                self._running.pop()

        with register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True):
            yield

    def facts(self) -> dict[str, str]:
        """Return what a trace says of the routing; nothing where no router ran."""
        rows = [self.routed[key].tolist() for key in sorted(self.routed)]
        return {ROUTED_TOKENS: json.dumps(rows, separators=(",", ":"))} if rows else {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operator on shapes; give a router's choice of experts its values."""
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if func._schema.name == _TOPK and self._running:
            self._choose(made[1], args[0].shape, args[2] if len(args) > 2 else -1)
        return made

    def _choose(self, indices: Any, shape: Sequence[int], dimension: int) -> None:
        experts, chosen = shape[-1], indices.shape[-1]
        wanted = experts in self.experts if self.experts else self._options.routing not in (None, GROUPED)
        if not wanted or dimension not in (-1, len(shape) - 1) or chosen >= experts:
            return
        router = self._routers.setdefault(id(self._running[-1]), len(self._routers))
        tokens = prod(shape[:-1])
        counts = self.routed.get((router, tokens))
        if counts is None:
            counts = self.routed[router, tokens] = self._counts(router, tokens, experts, chosen)
        # In order of experts, column after column: no token meets an expert twice, for none has more tokens
        # than there are. Which tokens an expert has changes no kernel.
        order = np.repeat(np.arange(experts), counts).reshape(chosen, tokens).T
        self.know(indices, torch.from_numpy(np.ascontiguousarray(order)).reshape(indices.shape))

    def _counts(self, router: int, tokens: int, experts: int, chosen: int) -> _Counts:
        if self._given is None:
            seed = self._options.routing_seed or 0, router, tokens
            return drawn_counts(tokens, experts, chosen, self._options.routing_exponent, seed)
        place = f"{self._options.routing}: row {router + 1}"
        if router >= len(self._given):
            raise ConfigError(f"{place}: found {len(self._given)} rows; allowed: one for each router")
        row = self._given[router]
        if len(row) != experts or sum(row) != tokens * chosen or max(row) > tokens:
            found = f"{len(row)} experts, {sum(row)} tokens, at most {max(row)} in one"
            allowed = f"{experts} experts, {tokens * chosen} tokens, at most {tokens} in one"
            raise ConfigError.at(place, found, allowed)
        return np.array(row, dtype=np.int64)


def drawn_counts(tokens: int, experts: int, chosen: int, exponent: float, seed: Sequence[int]) -> _Counts:
    """Draw how many tokens each expert gets, if each token takes ``chosen`` different ones.

    An expert is as popular as rank ** -exponent (0: all alike), with ranks in an order that is drawn, too.
    Tokens draw without replacement, by the largest of perturbed logarithms (Kool et al., Stochastic Beams and
    Where to Find Them, arXiv 1903.06059, section 2.3).
    """
    generator = np.random.default_rng(list(seed))
    popularity = -exponent * np.log(1.0 + generator.permutation(experts))
    counts = np.zeros(experts, dtype=np.int64)
    for start in range(0, tokens, _TOKENS_AT_ONCE):
        rows = min(_TOKENS_AT_ONCE, tokens - start)
        keys = popularity + generator.gumbel(size=(rows, experts))
        taken = np.argpartition(-keys, chosen - 1, axis=1)[:, :chosen]
        counts += np.bincount(taken.ravel(), minlength=experts)
    return counts


def _read_rows(file: str | None) -> list[list[int]]:
    """Read the rows of a JSON file, or those of a trace. Raises ConfigError, or TraceError as traces do."""
    path = Path(str(file))
    if path.suffix == ".g10t":
        text = load_trace(path).origin.get(ROUTED_TOKENS)
        if text is None:
            raise ConfigError(f"--routing: found {path}, a trace without routing; allowed: {_ALLOWED}")
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--routing: {path}: {reason}; allowed: uniform, zipf, zipf:EXPONENT, or {_ALLOWED}"
            ) from error
    try:
        return _ROWS.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"--routing: {path}: {place}: {first['msg']}; allowed: {_ALLOWED}") from error


def split_experts(network: Any) -> None:
    """Give each expert's weights a separate tensor.

    Layers of transformers keep the weights of all experts in one tensor, and choose among implementations:
    these then take the one that runs expert after expert. Layers on a real device stay as they are.
    """
    for module in list(network.modules()):
        experts = getattr(module, "num_experts", None)
        own = dict(module.named_parameters(recurse=False))
        stacked = [name for name, weight in own.items() if weight.shape[:1] == (experts,)]
        # transformers marks layers whose implementation can be chosen so (``use_experts_implementation``).
        is_layer = hasattr(module, "is_transposed") and any(own[name].dim() == _MATRIX for name in stacked)
        if not is_layer or not all(isinstance(own[name].data, FakeTensor) for name in stacked):
            continue
        for name in stacked:
            delattr(module, name)
            weights = (torch.nn.Parameter(part.detach().clone()) for part in own[name].unbind(0))
            setattr(module, name, torch.nn.ParameterList(weights))
        module.config._experts_implementation = "eager"
        mode = own[stacked[0]].data.fake_mode
        if isinstance(mode, RoutingMode):
            mode.experts.add(int(module.num_experts))
