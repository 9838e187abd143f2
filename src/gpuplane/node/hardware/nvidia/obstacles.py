"""Why no process may use the driver now, or none may ask about a GPU.

One process that is stuck in the kernel is left behind while another one is started; with two none is, and a GPU that
one is stuck in is not asked.
"""

from gpuplane.node.hardware.nvidia.driver.errors import gpu_hang_fault
from gpuplane.node.hardware.nvidia.processes import DriverProcesses, join_pids
from gpuplane.node.hardware.nvidia.state import RELEASED_FAULT, DriverState
from gpuplane.node.model.machine import Fault
from gpuplane.node.model.status import DriverStatus

MAX_STUCK_PROCESSES = 1
"""Processes that survive being killed which are left behind while another one is started."""


def start_obstacle(state: DriverState, processes: DriverProcesses) -> DriverStatus | None:
    """The status of the driver while no process may be started; None while one may."""
    left = processes.left()
    if not state.is_wanted and left:
        reason = (
            f"the agent cannot release the driver: process {join_pids(left)} is stuck in the kernel and may "
            "keep the driver open"
        )
        return DriverStatus("failing", reason, "driver-hang")
    if not state.is_wanted:
        return DriverStatus("waiting", "released", released=True)
    if state.reset_text:
        return DriverStatus("waiting", state.reset_text)
    stuck = [process for process in left if process.stuck]
    if len(stuck) > MAX_STUCK_PROCESSES:
        reason = (
            f"the agent's driver processes {join_pids(stuck)} are stuck in the kernel; the agent starts a "
            "new one when one of them ends"
        )
        return DriverStatus("failing", reason, "driver-hang")
    return None


def why_gpu_is_not_queried(state: DriverState, processes: DriverProcesses, uuid: str) -> Fault | None:
    """Why nothing new is asked of a GPU now; None where it is."""
    if not state.is_wanted:
        return RELEASED_FAULT
    if state.reset_text:
        return RELEASED_FAULT.but(message=state.reset_text)
    gpu = state.gpu(uuid)
    for process in processes.left():
        announced = process.announced()
        if process.stuck and gpu is not None and announced.gpu == gpu.index:
            reason = f"process {process.pid} is stuck in the kernel in {announced.function}"
            return gpu_hang_fault(announced.function).but(message=reason)
    obstacle = start_obstacle(state, processes)
    return None if obstacle is None else Fault(code="driver-hang", message=obstacle.text)
