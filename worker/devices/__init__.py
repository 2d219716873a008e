"""The memory that engines live in: RAM and GPUs, each with a budget.

In: what the configuration says, what NVML and ``/proc`` measure. Out: which devices a replica gets, or the arithmetic
of why it gets none (``worker.devices.ledgers``, pure), and the environment variable by which an engine sees only its
own (``worker.devices.device``). A GPU is asked through NVML only (``worker.devices.nvml``): nothing here makes a CUDA
context, which would cost every GPU some 500 MB and could not be forked.

**Not run on a GPU yet**: all of it that is for one. NVML's library is faked in the tests, below its Python binding.
"""
