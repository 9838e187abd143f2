"""What a look means beside the one before it. Not seen is not gone: see `merge`."""

from gpuplane.model.machine import Gpu, Machine


def merge(before: Machine | None, look: Machine) -> Machine:
    """The machine to believe in after a look.

    Where the GPUs could not be counted, those of the look before stay (their faults are now the machine's). A GPU that
    the driver could not describe, known only by index or PCI address, keeps the description that it had.
    """
    if before is None or before.gpus is None:
        return look
    if look.gpus is None:
        return look.but(gpus=before.gpus, driver=look.driver or before.driver)
    return look.but(gpus=tuple(_known(gpu, before.gpus) for gpu in look.gpus))


def _known(gpu: Gpu, before: tuple[Gpu, ...]) -> Gpu:
    if gpu.uuid:
        return gpu
    for old in before:
        if old.uuid and (old.pci == gpu.pci if gpu.pci else old.index == gpu.index):
            return old.but(faults=gpu.faults, index=gpu.index)
    return gpu
