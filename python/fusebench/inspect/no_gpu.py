"""What Inductor would generate for a GPU that is not in this machine.

Inductor asks the driver what the GPU is like, and Triton asks it to load what it compiled. Here
both are answered from a table, in a process of its own. This leans on private parts of PyTorch and
Triton; all of that is in this file, and versions it was not tested with are refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fusebench.ops import checks, registry

TESTED = ((2, 14),)  # minor versions of torch that the tests of this file have passed with


@dataclass(frozen=True)
class Target:
    """What the driver would say of a GPU. shared: bytes of shared memory a block may have."""

    name: str
    capability: tuple[int, int]
    processors: int
    shared: int
    memory: int
    l2: int

    @property
    def arch(self) -> int:
        return self.capability[0] * 10 + self.capability[1]


# NVIDIA's data sheets, and the CUDA C++ Programming Guide for shared memory.
TARGETS = {
    "sm_80": Target("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166912, 80 << 30, 40 << 20),
    "sm_90": Target("NVIDIA H100 80GB HBM3", (9, 0), 132, 232448, 80 << 30, 50 << 20),
    "sm_100": Target("NVIDIA B200", (10, 0), 148, 232448, 180 << 30, 126 << 20),
}


def target(name: str) -> Target:
    """The target of that name; ValueError with the nearest one."""
    if name not in TARGETS:
        raise checks.unknown("target", name, TARGETS)
    return TARGETS[name]


def unsupported() -> str | None:
    """Why there can be no target here, or None."""
    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if version not in TESTED:
        tested = ", ".join(f"{a}.{b}" for a, b in TESTED)
        return (
            f"a target other than this machine needs private parts of PyTorch that are only "
            f"known for torch {tested}; this is torch {torch.__version__}"
        )
    if importlib.util.find_spec("triton") is None:
        return "a GPU target needs triton, which is not installed"
    if torch.version.cuda is None:
        return f"a GPU target needs a CUDA build of torch; this is torch {torch.__version__}"
    return None


def generate(
    plan: str, model: dict[str, Any], batch: int, seq: int, dtype: str, name: str
) -> dict[str, Any]:  # fmt: skip
    """Compile the GPT of a plan for a target; nothing runs.

    model: the fields of a GPTConfig. What `--with` loaded is loaded there too. Returns {"graphs":
    [...], "breaks": [...], "resources": {kernel: [...]}}, as `inspected_for` reads them.
    Raises ValueError for an unknown target, RuntimeError where this torch is not supported or the
    compilation fails.
    """
    target(name)
    if reason := unsupported():
        raise RuntimeError(f"--target {name}: {reason}")
    request = {
        "plan": plan, "model": model, "batch": batch, "seq": seq, "dtype": dtype, "target": name,
        "files": registry.loaded_files(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # in this process, where the kernels are seen
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        environment.pop("TRITON_INTERPRET", None)
        answer = Path(folder) / "answer.json"
        child = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(request), str(answer)],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        if child.returncode or not answer.exists():
            lines = child.stderr.strip().splitlines() or ["no reason given"]
            # PyTorch puts advice behind the error itself.
            last = [line for line in lines if "Error: " in line][-1:] or lines[-1:]
            raise RuntimeError(f"--target {name}: the compilation failed: {last[0]}")
        return json.loads(answer.read_text())


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """The child's work: pretend, compile, and say what came out."""
    from fusebench.bench.workload import DTYPES
    from fusebench.inspect import capture
    from fusebench.model import GPT, GPTConfig

    registry.load_entry_points()
    for file in request["files"]:
        registry.load_file(file)
    gpu = target(request["target"])
    compiled: dict[str, list[Any]] = {}

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        compile_fx(graph, inputs)
        return graph.forward  # on fake tensors, to see what comes behind a graph break

    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with pretending(gpu, compiled), capture.observe() as seen, torch.no_grad():
        torch.set_default_dtype(DTYPES[request["dtype"]])  # fake weights cannot be converted
        with fake, torch.device("cuda"):
            model = GPT(GPTConfig(**request["model"]), request["plan"]).eval().requires_grad_(False)
            tokens = torch.zeros(request["batch"], request["seq"], dtype=torch.int64)
        torch.set_default_dtype(torch.float32)
        with fake:
            torch.compile(model, backend=backend)(tokens)
    return {
        "graphs": [
            {"id": g.id, "where": g.where, "ops": g.ops, "code": g.code,
             "dynamo_graph": g.dynamo_graph, "post_grad_graph": g.post_grad_graph,
             "kernels": [asdict(k) for k in g.kernels]}
            for g in seen.graphs
        ],
        "breaks": [asdict(b) for b in seen.breaks],
        "resources": {name: [_resources(k, gpu) for k in ks] for name, ks in compiled.items()},
    }  # fmt: skip


def _resources(kernel: Any, gpu: Target) -> dict[str, Any]:
    """Registers, stack (spills) and shared memory of one compiled configuration."""
    from fusebench.inspect import resources

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = resources.parse_usage(
            subprocess.run(
                [resources.tool("cuobjdump"), "--dump-resource-usage", str(path)],
                capture_output=True, text=True, check=True,
            ).stdout
        )  # fmt: skip
    numbers = next(iter(usage.values()))
    metadata = kernel.metadata
    return {
        "registers": numbers["REG"],
        "stack": numbers["STACK"] + numbers.get("LOCAL", 0),
        "shared": metadata.shared,
        "warps": metadata.num_warps,
    }


class _Driver:
    """Triton's driver for a GPU that is not there: it says what the GPU is, and loads nothing."""

    binary_ext = "cubin"

    def __init__(self, gpu: Target) -> None:
        self.gpu = gpu
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": gpu.shared, "multiprocessor_count": gpu.processors,
                "warpSize": 32, "max_num_regs": 65536, "sm_clock_rate": 1, "mem_clock_rate": 1,
                "mem_bus_width": 1,
            },
            load_binary=lambda *arguments: (0, 0, 0, 0, 1024),
        )  # fmt: skip

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.gpu.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def launcher_cls(self, *arguments: Any, **options: Any) -> Callable[..., None]:
        return lambda *ignored: None

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    @staticmethod
    def is_active() -> bool:
        return True


def _properties(gpu: Target) -> Any:
    return SimpleNamespace(
        name=gpu.name, major=gpu.capability[0], minor=gpu.capability[1], warp_size=32,
        multi_processor_count=gpu.processors, total_memory=gpu.memory, L2_cache_size=gpu.l2,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu.shared,
        shared_memory_per_multiprocessor=gpu.shared + 1024,
        gcnArchName="", is_integrated=0, is_multi_gpu_board=0, uuid="none",
    )  # fmt: skip


def _getitem(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """tensor[index] by operators: the built-in one asks CUDA for its device first."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, (torch.Tensor, list, bool)) for i in items):
        raise NotImplementedError("--target: indexing with tensors, lists or booleans")
    if any(i is Ellipsis for i in items):
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        missing = tensor.ndim - sum(i is not None and i is not Ellipsis for i in items)
        items[at : at + 1] = [slice(None)] * missing
    dim = 0
    for item in items:
        if item is None:
            tensor = torch.ops.aten.unsqueeze.default(tensor, dim)
        elif isinstance(item, slice):
            step = 1 if item.step is None else item.step
            if (item.start, item.stop, step) != (None, None, 1):
                tensor = torch.ops.aten.slice.Tensor(tensor, dim, item.start, item.stop, step)
        else:
            tensor = torch.ops.aten.select.int(tensor, dim, item)
            continue
        dim += 1
    return tensor


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The SDPA backend that a GPU would most likely choose, which PyTorch asks the driver for."""
    aten = torch.ops.aten
    if enable_gqa:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if q.dtype == torch.float32 or attn_mask is not None:
        return aten._scaled_dot_product_efficient_attention.default(
            q, k, v, attn_mask, False, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_flash_attention.default(
        q, k, v, dropout_p, is_causal, scale=scale
    )[0]


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.contiguous.default(tensor)


@contextlib.contextmanager
def pretending(gpu: Target, compiled: dict[str, list[Any]]) -> Iterator[None]:
    """Make PyTorch and Triton believe in the GPU; `compiled` collects Triton's kernels by name.

    Only for a process of its own: what PyTorch caches about devices meanwhile is not undone.
    """
    import torch._inductor.config as inductor_config
    import torch._inductor.fx_passes.fuse_attention as fuse_attention
    import torch._inductor.fx_passes.misc_patterns as misc_patterns
    import torch._inductor.fx_passes.pad_mm as pad_mm
    import torch._inductor.runtime.triton_helpers as triton_helpers
    import torch._inductor.runtime.triton_heuristics as triton_heuristics
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    properties = _properties(gpu)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda *a: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_name": lambda device=None: gpu.name,
        "is_bf16_supported": lambda *a, **k: True,
        "synchronize": lambda device=None: None,
        "_lazy_init": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *a: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *a, **k: None,
        "get_rng_state_all": lambda *a: [],
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
    }
    device_calls = ("_cuda_getDevice", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice")
    interface = (
        "current_device", "device_count", "get_device_properties", "synchronize",
        "is_bf16_supported",
    )  # fmt: skip

    def precompile(autotuner: Any, *arguments: Any, **options: Any) -> None:
        autotuner._precompile_worker()
        name = autotuner.inductor_meta.get("kernel_name", autotuner.fn.__name__)
        compiled[name] = [result.kernel for result in autotuner.compile_results]

    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    kernels = torch.ops.aten.scaled_dot_product_attention.default.py_kernels

    with contextlib.ExitStack() as stack:

        def patch(where: Any, name: str, new: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, new))

        for name, answer in answers.items():
            patch(torch.cuda, name, answer)
        patch(torch.accelerator, "is_available", lambda: False)  # else Dynamo asks for its stream
        patch(torch.cuda.graphs, "is_current_stream_capturing", lambda: False)
        for name in device_calls:
            patch(torch._C, name, lambda *a: 0)
        patch(torch._C, "_cuda_setDevice", lambda index: None)
        for name in interface:
            patch(CudaInterface, name, staticmethod(answers[name]))
        patch(CudaInterface, "exchange_device", staticmethod(lambda index: 0))
        patch(CudaInterface, "maybe_exchange_device", staticmethod(lambda index: 0))
        for kind in (FakeTensor, FunctionalTensor):
            patch(kind, "__getitem__", _getitem)
            patch(kind, "contiguous", _contiguous)
        # Their patterns are traced on real CUDA tensors, which cannot be made here.
        patch(fuse_attention, "_sfdp_init", lambda *a, **k: None)
        patch(pad_mm, "_pad_mm_init", lambda *a, **k: None)
        patch(misc_patterns, "_misc_patterns_init", lambda *a, **k: None)
        patch(triton_helpers, "set_driver_to_gpu", lambda: None)
        patch(triton_heuristics.CachingAutotuner, "precompile", precompile)
        stack.enter_context(mock.patch.dict(kernels, {composite: _attention}))
        stack.enter_context(
            # No constant can be folded: that would run kernels.
            inductor_config.patch(
                use_static_triton_launcher=False, joint_graph_constant_folding=False
            )
        )
        triton.runtime.driver.set_active(_Driver(gpu))
        yield


if __name__ == "__main__":
    found = _answer(json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(found))
