"""What a look means beside the one before it. Not seen is not gone: see `merge`."""

from gpuplane.model.machine import Gpu, Machine


def merge(before: Machine | None, look: Machine) -> Machine:
    """The machine to believe in after a look.

    Where the GPUs could not be counted, those of the look before stay (their faults are now the machine's). A GPU that
    the driver could not describe, or not whole, keeps of its last description what it could not tell.
    """
    if before is None or before.gpus is None:
        return look
    if look.gpus is None:
        return look.but(gpus=before.gpus, driver=look.driver or before.driver)
    return look.but(gpus=tuple(_known(gpu, before.gpus) for gpu in look.gpus))


def _known(gpu: Gpu, before: tuple[Gpu, ...]) -> Gpu:
    """A GPU with what the driver did not tell of it this time, but told before."""
    if gpu.uuid and not gpu.faults:
        return gpu
    old = next((old for old in before if old.uuid and _same(old, gpu)), None)
    if old is None:
        return gpu
    blank = Gpu(index=gpu.index)
    told = {f: value for f in Gpu.__struct_fields__ if (value := getattr(gpu, f)) != getattr(blank, f)}
    return old.but(**{**told, "index": gpu.index, "faults": gpu.faults})


def _same(old: Gpu, gpu: Gpu) -> bool:
    """Whether this is the GPU that was seen before: by its UUID, else by its place, else by its index."""
    if gpu.uuid:
        return old.uuid == gpu.uuid
    return old.pci == gpu.pci if gpu.pci else old.index == gpu.index
