"""Fake tensors some of which have values: those that a shape may follow from (routing, placeholders)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from g10sim.capture.moved import mutated_arguments, tensors_of
from g10sim.importers.aten import aten

MOST_ELEMENTS = 2**26
"""More elements than any index or mask of a layer has; values of more are not followed."""
_MOST_FACTORY_ELEMENTS = 2**16
_FACTORIES = aten("arange full ones scalar_tensor zeros")
_TO_HOST = torch.Tag.data_dependent_output
_OF_UNKNOWN_SHAPE = torch.Tag.dynamic_output_shape
_RANDOM = torch.Tag.nondeterministic_seeded
_INDEX = ("aten::index", "aten::index_put", "aten::index_put_")


class ValuedMode(FakeTensorMode):  # type: ignore[misc]
    """Makes fake tensors, and follows the values of those that are told them (``know``).

    Where all tensors that an operator is given have values, its results have them too: so shapes that depend
    on them are known, and so is what Python reads of them. A tensor that is written from one without values
    has none any more.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._values: dict[int, tuple[Any, Any]] = {}

    def know(self, tensor: Any, values: Any) -> None:
        """Say what values a fake tensor has. Raises ValueError for values of another shape or format."""
        if tensor.shape != values.shape or tensor.dtype is not values.dtype:
            raise ValueError(
                f"found values of {values.dtype} {tuple(values.shape)} for a tensor of {tensor.dtype} "
                f"{tuple(tensor.shape)}; allowed: its own format and shape"
            )
        key = id(tensor)
        self._values[key] = (weakref.ref(tensor, lambda _: self._values.pop(key, None)), values)

    def values_of(self, tensor: Any) -> Any:
        """Return the values of a tensor; None if they are not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        known = self._values.get(id(tensor))
        return None if known is None else known[1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
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
        for position, name, _ in mutated_arguments(func):
            value = args[position] if position < len(args) else kwargs.get(name)
            for written in tree_leaves(value):
                if isinstance(written, FakeTensor):
                    self._forget(written.untyped_storage()._cdata)

    def _forget(self, storage: int) -> None:
        for key, (reference, _) in list(self._values.items()):
            tensor = reference()
            if tensor is not None and tensor.untyped_storage()._cdata == storage:
                del self._values[key]


def with_values(values: Any) -> Any:
    """Make a tensor of known values: a fake one that has them where tensors are fake, else one like any."""
    made = torch.empty(values.shape, dtype=values.dtype)
    if isinstance(made, FakeTensor):
        if isinstance(made.fake_mode, ValuedMode):
            made.fake_mode.know(made, values)
        return made
    return made.copy_(values)
