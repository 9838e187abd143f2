"""MIG devices and their GPU: what befalls the one, and what of the other's course is theirs too."""

from gpuplane.node.model.config import Settings
from tests.node.core.health.world import World, machine


def test_a_reset_of_the_gpu_is_one_of_its_mig_devices() -> None:
    """What only a reset ends is over within a MIG device once its GPU had one, though the device is made again so soon
    that no look misses it."""
    world = World(machine(1, parts=[0]))
    world.happen(0, "xid-48", gpu_instance=1)
    world.wait(60, answer=True)
    assert world.ill() == {"MIG-0-0"}

    world.show("0", "recovery-reset")
    world.wait(1, answer=True)
    world.show("0")
    world.wait(60, answer=True)

    assert world.ill() == set()


def test_what_befell_a_mig_device_before_a_reset_and_is_heard_after_it_is_over() -> None:
    """Also where nothing was known of that MIG device before, and no look follows."""
    world = World(machine(1, parts=[0]))
    world.show("0", "gpu-lost")
    world.wait(20, answer=True)
    world.show("0")
    world.happen(0, "xid-48", ago=10, gpu_instance=1)
    world.wait(60, answer=True)

    assert world.ill() == set()


def test_a_mig_device_that_cannot_be_described_hides_nothing_of_its_siblings() -> None:
    """Each is asked by itself: what a look shows of one no longer is over."""
    world = World(machine(1, parts=[0]))
    world.show("0:1", "node-missing")
    world.show("0:0", "query-failed")
    world.wait(10, answer=True)
    assert world.ill() == {"MIG-0-0", "MIG-0-1"}

    world.show("0:1")
    world.wait(60, answer=True)

    assert world.ill() == {"MIG-0-0"}


def test_whoever_is_given_a_gpu_whole_is_given_none_with_an_instance_that_is_ill() -> None:
    """Under `wholeMigGpus` the instance is a part of what is given out, and who holds the GPU holds it."""
    world = World(machine(2, parts=[0]), Settings(whole_mig_gpus=True))
    world.hold(train="GPU-0")
    world.happen(0, "xid-94", gpu_instance=1)
    world.wait(60, answer=True)
    assert world.ill() == {"GPU-0"}

    world.hold()
    world.wait(60, answer=True)

    assert world.ill() == set()
