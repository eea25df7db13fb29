"""What an op and an implementation are, and the one door through which implementations come in."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusebench.ops import checks

LIBRARY = torch.library.Library("fusebench", "FRAGMENT")
DEVICE_KEYS = {"cpu": "CPU", "cuda": "CUDA"}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ENTRY_POINTS = "fusebench.implementations"

Outputs = Any  # a tensor, or a tuple of tensors, as the op's schema says


@dataclass(frozen=True)
class Op:
    """One fusible computation with one schema.

    schema: arguments and returns in PyTorch's schema language, `(Tensor x, …) -> Tensor`.
    reference: the plain PyTorch composition, arguments in the schema's order.
    fake: shapes, dtypes and strides of the outputs, from the same arguments.
    backward: (grad_outputs, arguments, needs) -> one gradient or None per argument, as plain
        PyTorch; serves every implementation that has no backward of its own.
    check: raises ValueError for arguments that no implementation may be given.
    packable: the weights that an implementation may keep in a layout of its own for inference.
    constants: floating-point tensors that have no gradient, and keep their dtype.
    autocast: whether torch.autocast lowers the dtype of its inputs.
    """

    name: str
    schema: str
    reference: Callable[..., Outputs]
    fake: Callable[..., Outputs]
    backward: Callable[..., tuple[Tensor | None, ...]]
    check: Callable[..., None]
    packable: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    autocast: bool = True
    arguments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parsed = torch._C.parse_schema(self.name + self.schema)
        object.__setattr__(self, "arguments", tuple(a.name for a in parsed.arguments))


@dataclass(frozen=True)
class Implementation:
    """A function with an op's schema.

    op, name: `swiglu_ffn`, `cpp`. call: takes every argument of the schema by position.
    devices: device types of the tensors it takes. dtypes: dtypes of `x` (or `q`) it takes.
    backward: "own", or "reference" where the gradient recomputes through the reference.
    source: the module or file it comes from. kernels: what is in it, for people.
    unavailable: the reason why it cannot run on this machine now, or None.
    supports: the reason why it refuses these arguments, or None.
    timed: False where it only runs to be checked (an interpreter, a simulator).
    pack: (weight name, weight) -> the weight in this implementation's own layout, or None.
    packed_call: like `call`, with the packed weights behind the other arguments.
    function: the Python function behind `call`, or None where there is none. Called by itself it
        shows what it returns; the dispatcher answers a wrong kind with an error that names nobody.
    """

    op: str
    name: str
    call: Callable[..., Outputs]
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] = DTYPES
    backward: str = "reference"
    source: str = ""
    unavailable: Callable[[], str | None] = lambda: None
    supports: Callable[..., str | None] | None = None
    timed: bool = True
    pack: Callable[[str, Tensor], Tensor] | None = None
    packed_call: Callable[..., Outputs] | None = None
    function: Callable[..., Outputs] | None = None
    autograd: type[torch.autograd.Function] | None = None

    @property
    def opaque(self) -> bool:
        """Whether `call` is a torch op, and no function that torch.compile traces through."""
        return isinstance(self.call, torch._ops.OpOverload)


OPS: dict[str, Op] = {}
IMPLEMENTATIONS: dict[tuple[str, str], Implementation] = {}


def add_op(op: Op) -> Op:
    """Register an op, and its reference as the first implementation."""
    OPS[op.name] = op
    IMPLEMENTATIONS[op.name, "reference"] = Implementation(
        op.name, "reference", op.reference, ("cpu", "cuda"), (*DTYPES, torch.float64),
        backward="autograd", source=op.reference.__module__,
    )  # fmt: skip
    return op


def get_op(name: str) -> Op:
    """The op of that name, or a ValueError with the nearest name."""
    if name not in OPS:
        raise checks.unknown("op", name, OPS)
    return OPS[name]


def get(op: str, name: str) -> Implementation:
    """The implementation `name` of `op`, or a ValueError with the nearest name."""
    found = IMPLEMENTATIONS.get((op, name))
    if found is None:
        raise checks.unknown("implementation", name, names(get_op(op).name), op)
    return found


def names(op: str) -> list[str]:
    """The implementations of an op, in the order of their registration."""
    return [i.name for i in IMPLEMENTATIONS.values() if i.op == op]


def define(
    op: Op, name: str, *, suffix: str = "", schema: str | None = None,
    fake: Callable[..., Outputs] | None = None,
) -> Callable[..., Outputs]:  # fmt: skip
    """Define the torch op `fusebench::<op>_<name><suffix>` with its fake, and return it.

    The kernels are added with `LIBRARY.impl`, or by C++ with STABLE_TORCH_LIBRARY_IMPL.
    """
    full = f"{op.name}_{name}{suffix}"
    LIBRARY.define(full + (schema or op.schema), tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"fusebench::{full}", fake or op.fake, lib=LIBRARY)
    return getattr(torch.ops.fusebench, full).default


def register(
    implementation: Implementation,
    *,
    saving: Callable[..., tuple[Outputs, tuple[Tensor, ...]]] | None = None,
    backward: Callable[..., tuple[Tensor | None, ...]] | None = None,
) -> Implementation:
    """Add an implementation whose `call` is a torch op already.

    saving: (*arguments) -> (outputs, saved tensors): the forward of a training step.
    backward: (grad_outputs, arguments, saved, needs) -> one gradient or None per argument.
    Without them the gradient recomputes through the reference composition.
    """
    key = (implementation.op, implementation.name)
    op = get_op(implementation.op)
    if key in IMPLEMENTATIONS:
        raise ValueError(f"{op.name}: implementation {implementation.name!r} is registered already")
    function = _autograd_function(op, implementation.call, saving, backward)
    IMPLEMENTATIONS[key] = added = Implementation(
        **{
            **implementation.__dict__,
            "autograd": function,
            "backward": "own" if backward else "reference",
        }
    )
    return added


def _autograd_function(op, call, saving, backward) -> type[torch.autograd.Function]:
    """An autograd.Function around a torch op; entered only when a gradient is needed.

    `forward(ctx, …)` in one piece: a separate setup_context costs four times as much per call.
    """

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):  # type: ignore[override]
            if saving is None:
                outputs, saved = call(*args), ()
            else:
                outputs, saved = saving(*args)
            ctx.constants = tuple(None if isinstance(a, Tensor) else (a,) for a in args)
            ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)), *saved)
            return outputs

        @staticmethod
        def backward(ctx, *grads):
            tensors = list(ctx.saved_tensors)
            args = tuple(tensors.pop(0) if c is None else c[0] for c in ctx.constants)
            if backward is None:
                return op.backward(grads, args, ctx.needs_input_grad)
            return backward(grads, args, tuple(tensors), ctx.needs_input_grad)

    return Differentiable


def call(op: Op, impl: str, args: Sequence[Any], packed: Sequence[Tensor | None] = ()) -> Outputs:
    """Check the arguments and run an op through the implementation `impl`."""
    if torch._C._is_any_autocast_enabled() and op.autocast and isinstance(args[0], Tensor):
        device = args[0].device.type
        if torch.is_autocast_enabled(device):
            return _autocast(op, impl, args, packed, device)
    op.check(*args)
    if impl == "reference":
        return op.reference(*args)
    chosen = get(op.name, impl)
    x = args[0] if op.name != "embedding" else args[1]
    if x.device.type not in chosen.devices:
        raise checks.refuse(
            f"{op.name} ({impl})", "the device", f"is {x.device.type}", " or ".join(chosen.devices)
        )
    if x.dtype not in chosen.dtypes:
        accepted = ", ".join(str(d).removeprefix("torch.") for d in chosen.dtypes)
        raise checks.refuse(f"{op.name} ({impl})", "the dtype", f"is {x.dtype}", accepted)
    if chosen.supports is not None and (reason := chosen.supports(*args)):
        raise ValueError(f"{op.name} ({impl}): {reason}")
    if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
        return chosen.autograd.apply(*_distinct(args))  # type: ignore[union-attr]
    if packed and packed[0] is not None:
        if chosen.packed_call is None:
            raise checks.refuse(f"{op.name} ({impl})", "packed", "was given", "None: it packs none")
        return chosen.packed_call(*args, *packed)
    return chosen.call(*args)


def _autocast(
    op: Op, impl: str, args: Sequence[Any], packed: Sequence[Tensor | None], device: str
) -> Outputs:
    """Run an op under torch.autocast: on inputs cast to its dtype, as nn.functional's ops are.

    A residual of another dtype is added behind the op, where the result promotes as it does in the
    reference composition (which autocast reaches by itself). Weights that were packed in another
    dtype are of no use then.
    """
    dtype = torch.get_autocast_dtype(device)
    lowered = list(args)
    for i, (name, a) in enumerate(zip(op.arguments, args)):
        # What autocast takes: floating-point tensors, but for float64.
        if isinstance(a, Tensor) and a.dtype in DTYPES and name not in op.constants:
            lowered[i] = a.to(dtype)
    same = all(a.dtype == b.dtype for a, b in zip(args, lowered) if isinstance(a, Tensor))
    op.check(*lowered)
    if impl == "reference":
        return op.reference(*args)
    residual = None
    if "residual" in op.arguments:
        at = op.arguments.index("residual")
        if args[at] is not None and args[at].dtype != lowered[at].dtype:
            residual, lowered[at] = args[at], None
    with torch.autocast(device, enabled=False):
        y = call(op, impl, lowered, packed if same else ())
    return y if residual is None else y + residual


def _distinct(args: Sequence[Any]) -> list[Any]:
    """The arguments with a view for every repeated tensor.

    Dynamo cannot trace an autograd.Function that is given one tensor twice, as x and residual.
    """
    distinct: list[Any] = []
    for a in args:
        repeated = isinstance(a, Tensor) and any(a is d for d in distinct)
        distinct.append(a.view_as(a) if repeated else a)
    return distinct


def implementation(
    op: str,
    name: str,
    *,
    device: str | Sequence[str] = "cuda",
    dtypes: Sequence[torch.dtype] = DTYPES,
    supports: Callable[..., str | None] | None = None,
    unavailable: Callable[[], str | None] = lambda: None,
    saving: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    triton: bool = False,
    opaque: bool = True,
) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Register the decorated function as the implementation `name` of `op`.

    The function takes the op's arguments in the order of its schema (by position, every
    one of them, defaults filled in) and returns new tensors with the shapes, dtypes and strides
    of the op's fake; it must not change its inputs or return one of them, and it may keep weights
    that it was given, but no addresses: between timed rounds weights move. torch.compile traces
    it as the opaque op `fusebench::<op>_<name>`, or with `triton=True` as a triton_op whose kernels
    (launched through torch.library.wrap_triton) Inductor sees. With `opaque=False` there is no
    torch op: torch.compile traces through the function, as through the reference.

    device: "cpu", "cuda", or both: where its tensors live.
    dtypes: the dtypes it takes. supports(*arguments): why it refuses a call, or None.
    unavailable(): why it cannot run on this machine, or None.
    saving, backward: as for `register`; they must be traceable by torch.compile.

    Raises ValueError for an unknown op or device, a name in use, or a function whose parameters
    are not the op's.
    """
    target = get_op(op)
    devices = (device,) if isinstance(device, str) else tuple(device)
    for d in devices:
        if d not in DEVICE_KEYS:
            raise checks.unknown("device", d, DEVICE_KEYS, f"{op} ({name})")
    if not name.isidentifier():
        raise checks.refuse(op, "the implementation's name", f"is {name!r}", "an identifier")
    if (op, name) in IMPLEMENTATIONS:
        raise ValueError(f"{op}: implementation {name!r} is registered already")

    def decorate(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        _check_parameters(target, name, function)
        call: Callable[..., Outputs] = function
        if triton and torch.cuda.is_available():
            visible: Any = torch.library.triton_op(
                f"fusebench::{op}_{name}", function, mutates_args={}, schema=target.schema
            )
            visible.register_fake(target.fake)
            call = getattr(torch.ops.fusebench, f"{op}_{name}").default
        elif opaque:
            call = define(target, name)
            for d in devices:
                LIBRARY.impl(f"{op}_{name}", function, DEVICE_KEYS[d])
        register(
            Implementation(
                op, name, call, devices, tuple(dtypes), supports=supports,
                unavailable=unavailable, source=_source_of(function), function=function,
            ),
            saving=saving, backward=backward,
        )  # fmt: skip
        return function

    return decorate


def _check_parameters(op: Op, name: str, function: Callable[..., Outputs]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    have = tuple(p.name for p in parameters)
    if have != op.arguments:
        raise checks.refuse(
            f"{op.name} ({name})",
            "the function",
            f"takes ({', '.join(have)})",
            f"({', '.join(op.arguments)})",
        )


def _source_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsourcefile(function) or function.__module__
    except TypeError:
        return function.__module__


def load_file(path: str | Path) -> None:
    """Import a Python file that registers implementations (`--with FILE.py`)."""
    path = Path(path).resolve()
    if path.is_dir():
        raise checks.refuse("--with", "FILE", f"is {str(path)!r}, a folder", "a Python file")
    if not path.is_file():
        raise FileNotFoundError(f"--with: no file {path}")
    name = f"{_WITH}{path.stem}"
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise checks.refuse("--with", "FILE", f"is {path.name}", "a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def loaded_files() -> list[str]:
    """The files that `load_file` imported, for a process that is to import the same."""
    return [str(m.__file__) for n, m in sys.modules.items() if n.startswith(_WITH)]


def load_entry_points() -> None:
    """Load what installed packages offer under `fusebench.implementations`, once."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.value not in _LOADED:
            _LOADED.add(point.value)
            point.load()


_LOADED: set[str] = set()
_WITH = "fusebench_with_"  # the modules of such files are called so
