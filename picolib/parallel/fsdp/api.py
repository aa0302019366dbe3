"""`fully_shard`: the front door. Apply it to the layers first, then to the model, then build the optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

from picolib import comm
from picolib.parallel.agree import all_agree
from picolib.parallel.choice import settled_algorithm
from picolib.parallel.fsdp.conductor import Conductor, find_units
from picolib.parallel.fsdp.offload import compute_device, home_for, offloads
from picolib.parallel.fsdp.parameter import ReplacedParameter, ShardedParameter, replace
from picolib.parallel.fsdp.unit import Unit
from picolib.parallel.hooks import GradientHook, refuse_what_is_reduced_already
from picolib.parallel.spec import (
    Replicate,
    Shard,
    ShardSpec,
    refuse_parts_of_one_tensor,
    set_spec,
    set_unit,
    spec_of,
    unit_of,
)


def fully_shard(
    module: nn.Module,
    *,
    mesh: Any = None,
    reshard_after_forward: bool = True,
    mp_policy: Any = None,
    offload_policy: Any = None,
    algorithm: str = "auto",
) -> nn.Module:
    """Shard a module's parameters over the ranks; they are whole while it computes, and only then.

    The parameters of `module`, less those of modules inside it that are sharded already, become one unit that travels
    together: wrap each layer, then the model around them. The module itself is changed and returned; it is then also an
    `FSDPModule`. A rank sends 3(N-1)/N times the bytes of the parameters a step: an all-gather before forward, one
    before backward (less the root's own, which stay), and a reduce-scatter of the gradients.

    A parameter is whole inside its own module's forward pass; what uses it elsewhere finds this rank's rows. All ranks
    must run the same units. A parameter that some ranks' losses did not use gets the sum of the others' gradients, and
    none where nobody used it, as in one process.

    Args:
        module: with the same parameters on all ranks; the first rank's values are taken.
        mesh: a torch DeviceMesh. One dimension: the ranks to shard over. Two, (replicate, shard), is hybrid sharding:
            shard inside a node, replicate across. None means all ranks.
        reshard_after_forward: free the parameters after forward. False keeps them until their backward: one all-gather
            less, for the memory of the whole unit. The root keeps its own in any case.
        mp_policy: torch's MixedPrecisionPolicy: gather and compute in `param_dtype`, reduce in `reduce_dtype`.
        offload_policy: where shards and their gradients live and are stepped. None or torch's OffloadPolicy: on
            the device. torch's CPUOffloadPolicy: on the CPU (full states and clipping then need a process group that
            has a CPU backend, too; `pin_memory` is for GPUs and does nothing without one). FileOffloadPolicy: in
            memory-mapped files. Compute stays on the module's device, or goes to the mesh's if that is the CPU.
        algorithm: of both collectives; "auto" means "direct" on gloo.

    Raises:
        ValueError: an argument is wrong, or the module differs between ranks; the same sentence on all ranks.

    Source: Rajbhandari et al. 2020 (ZeRO), section 5.3; Zhao et al. 2023 (PyTorch FSDP), section 3.
    """
    _check(module, mesh, offload_policy)
    shard_group, replicate_group = _groups(mesh)
    owners = _owners(module)
    for group in (shard_group, replicate_group):
        if group is not None:
            specs = ((_name_below(module, *where[0]), spec_of(*where[0])) for _, where in owners)
            refuse_parts_of_one_tensor("mesh", group, specs)
    device = compute_device(offload_policy, owners[0][0].device, mesh) if owners else torch.device("cpu")
    if owners:
        algorithm = settled_algorithm(algorithm, "all_gather", device, shard_group)
    options = {"reshard_after_forward": reshard_after_forward, "algorithm": algorithm}
    options["offload_policy"] = type(offload_policy).__name__
    options |= {name: getattr(mp_policy, name, None) for name in ("param_dtype", "reduce_dtype")}
    _same_everywhere(module, owners, options, shard_group, replicate_group)
    home = home_for(offload_policy, device, shard_group, replicate_group)
    rank, size = dist.get_rank(shard_group), dist.get_world_size(shard_group)
    dtype = getattr(mp_policy, "param_dtype", None)
    parameters = [ShardedParameter(p, where, rank, size, dtype, home) for p, where in owners]
    unit = Unit(
        module, parameters, shard_group, replicate_group, reshard_after_forward=reshard_after_forward,
        reduce_dtype=getattr(mp_policy, "reduce_dtype", None), algorithm=algorithm,
    )  # fmt: skip
    for sharded, (original, where) in zip(parameters, owners, strict=True):
        sharded.show(sharded.shard)
        spec = _spec(module, sharded, shard_group, replicate_group)
        for owner, attribute in where:
            set_spec(owner, attribute, spec)
            set_unit(owner, attribute, unit)
        replace(original)
    for buffer in module.buffers() if home.compute_device else ():
        buffer.data = buffer.data.to(device)
    module.__dict__["_picolib_unit"] = unit
    module.__class__ = type(f"FSDP{type(module).__name__}", (FSDPModule, type(module)), {})
    _hook(module, unit, mp_policy)
    return module


class FSDPModule:
    """What a module is besides itself once `fully_shard` has been applied to it."""

    def unshard(self) -> None:
        """All-gather this unit's parameters now."""
        self.__dict__["_picolib_unit"].unshard()

    def reshard(self) -> None:
        """Free this unit's whole parameters now."""
        self.__dict__["_picolib_unit"].reshard()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Whether later backward passes reduce gradients. If not, whole gradients add up on each rank (more memory)."""
        for _, unit in find_units(self):
            unit.synchronises = requires_gradient_sync

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here add to whole gradients on each rank alone; the next one outside reduces all.

        Those are not where an optimizer looks: to throw them away call `zero_grad()` of this module.
        """
        with self._synchronising(False):
            yield

    def finalize_grads(self) -> None:
        """Reduce what was left by `no_sync`. Does nothing when there is nothing."""
        with self._synchronising(True):
            conductor_of(self).finish()

    @contextlib.contextmanager
    def _synchronising(self, synchronises: bool) -> Iterator[None]:
        units = [unit for _, unit in find_units(self)]
        before = [unit.synchronises for unit in units]
        self.set_requires_gradient_sync(synchronises)
        try:
            yield
        finally:
            for unit, value in zip(units, before, strict=True):
                unit.synchronises = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, also whole ones that `no_sync` has left."""
        super().zero_grad(set_to_none)
        for _, unit in find_units(self):
            unit.forget_gradients()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("A sharded module can't be copied or pickled: take picolib.full_state_dict(module).")

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide summed gradients by `factor`, in this module and all sharded ones inside it (default: the ranks)."""
        for _, unit in find_units(self):
            unit.divide_by = factor


def conductor_of(module: Any) -> Conductor:
    """The conductor of a sharded model; the module that is asked (or run) first is the root."""
    unit = module.__dict__["_picolib_unit"]
    conductor = unit.module.__dict__.get("_picolib_conductor")
    if conductor is None:
        named = find_units(module)
        conductor = Conductor(unit, [one for _, one in named])
        for name, one in named:
            one.name = name or "model"
            one.module.__dict__["_picolib_conductor"] = conductor
    return conductor


def _hook(module: nn.Module, unit: Unit, policy: Any) -> None:
    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        conductor_of(module).before_forward(unit)
        casts = getattr(policy, "cast_forward_inputs", True)
        return _cast((args, kwargs), getattr(policy, "param_dtype", None) if casts else None)

    def after(module: nn.Module, args: tuple, output: Any) -> Any:
        output = _cast(output, getattr(policy, "output_dtype", None))
        conductor_of(module).after_forward(unit, output)
        return output

    module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    module.register_forward_hook(after, always_call=True)  # when forward fails, too
    for i, parameter in enumerate(unit.parameters):  # a hook that held its parameter would keep both for ever
        there = lambda unit, _, i=i: conductor_of(unit.module).gradient_is_there(unit, unit.parameters[i])
        if parameter.full.is_floating_point() or parameter.full.is_complex():  # a frozen one may be unfrozen
            parameter.full.requires_grad_(True)
            parameter.full.register_post_accumulate_grad_hook(GradientHook("fully_shard", unit, there))
            parameter.full.requires_grad_(parameter.shard.requires_grad)


def _cast(values: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return values

    def to(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return dataclasses.replace(value, **_cast(fields, dtype))
        return value

    return tree_map(to, values)


def _owners(module: nn.Module) -> list[tuple[nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Each parameter that is not in a unit yet, and all the places where it stands (several when it is tied)."""
    found: dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for part in module.modules():
        for attribute, parameter in part._parameters.items():
            if parameter is not None and unit_of(part, attribute) is None:
                found.setdefault(id(parameter), (parameter, []))[1].append((part, attribute))
    return list(found.values())


def _spec(module: nn.Module, parameter: ShardedParameter, shard_group: Any, replicate_group: Any) -> ShardSpec:
    """What a shard is a part of; under tensor parallelism, a part of this rank's part."""
    owner, attribute = parameter.owners[0]
    cut = spec_of(owner, attribute)
    replicas = ((replicate_group, Replicate()),) if replicate_group is not None else ()
    placements = (*(cut.placements if cut else ()), *replicas, (shard_group, Shard(0)))
    return ShardSpec(_name_below(module, owner, attribute), cut.shape if cut else parameter.shape, placements)


def _name_below(module: nn.Module, owner: nn.Module, attribute: str) -> str:
    path = next(name for name, part in module.named_modules() if part is owner)
    return f"{path}.{attribute}".lstrip(".")


def _groups(mesh: Any) -> tuple[Any, Any]:
    """(group to shard over, group to replicate over or None)."""
    if mesh is None:
        return dist.group.WORLD, None
    if mesh.ndim == 1:
        return mesh.get_group(), None
    return mesh.get_group(1), mesh.get_group(0)


def _same_everywhere(module: nn.Module, owners: list, options: dict, shard_group: Any, replicate_group: Any) -> None:
    """The same parameters and options on all ranks, with the first rank's values; buffers too."""
    frozen = lambda p: "" if p.requires_grad else ", frozen"
    lines = [f"{attribute} ({p.dtype} {list(p.shape)}){frozen(p)}" for p, [(_, attribute), *_] in owners]
    lines += [f"{name}={value}" for name, value in options.items()]
    for group in (shard_group, replicate_group):
        if group is not None:
            all_agree("module and options", lines, group)
            for tensor in [p.detach() for p, _ in owners] + list(module.buffers()):
                comm.broadcast(tensor, group=group, group_src=0)


def _check(module: Any, mesh: Any, offload_policy: Any) -> None:
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}.")
    if "_picolib_unit" in module.__dict__:
        raise ValueError("module is sharded already: apply fully_shard once to each module, the inner ones first.")
    inner = {unit for _, unit in find_units(module)}
    for part in module.modules():
        for attribute in part._parameters:
            if unit_of(part, attribute) not in (None, *inner):
                raise ValueError(
                    f"module has {attribute}, which belongs to the unit of a module around it: apply fully_shard to "
                    "the inner modules first, to the outer ones last."
                )
    if mesh is not None and mesh.ndim not in (1, 2):
        raise ValueError(f"mesh must have 1 dimension, or 2 (replicate, shard), got {mesh.ndim}.")
    offloads(offload_policy)
    meta = next((name for name, p in module.named_parameters() if p.is_meta), None)
    if meta is not None:
        raise ValueError(f"module must hold real numbers, but {meta} is on the meta device: call init_weights first.")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, ReplacedParameter):
            raise ValueError(
                f"module has {name}, tied to a parameter that fully_shard has put into another unit: leave both of "
                "the tied modules to the model's own unit."
            )
    refuse_what_is_reduced_already("module", [p for p, _ in _owners(module)])
    dtypes = {p.dtype for p, _ in _owners(module)}
    if len(dtypes) > 1:
        raise ValueError(
            f"module must have parameters of one dtype in a unit, got {', '.join(sorted(map(str, dtypes)))}."
        )
