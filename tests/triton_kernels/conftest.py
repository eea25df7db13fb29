"""The kernels' tests run in Triton's interpreter, in a process of their own (test_interpreted.py).

TRITON_INTERPRET is read when triton is imported, so one process cannot both interpret and compile.
"""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
COMPILING = ["test_interpreted.py", "test_resources.py", "test_triton_gpu.py"]
INTERPRETING = [
    "test_interpreter.py", "test_gemm.py", "test_triton_ops.py", "test_gradients.py",
    "test_training.py", "test_tune.py",
]  # fmt: skip
collect_ignore = COMPILING if INTERPRETED else INTERPRETING
