"""The process that has the NVIDIA driver's library in it: `python -m gpuplane.node.hardware.nvidia.driver`.

NVML runs here and nowhere else, because it may hang in the kernel or crash, and because the driver is released for
certain only when a process has ended. The agent starts this process, receives observations from it and may kill it at
any moment; there is no orderly end and none is needed, the kernel closes what was open.

Rules that stay put:
- Of ours it imports `model`, `kubernetes` and `base` alone, and neither asyncio nor gRPC: it is small, and starts fast
  after a crash.
- Every call into the library is announced on a shared page before it is made (`callpage`), so that whoever finds this
  process hung or dead knows the call and the GPU that did it.
- A query that fails becomes a fault of the GPU that it was about; it never ends the observation of the others.
- One process, one `nvmlInit`. A driver that cannot be used, or that has changed, is a reason to say so and to end: the
  library is mapped, so only a new process sees a new one.
"""
