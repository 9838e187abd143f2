"""Whose end a device waits for: those whom its illness befell."""

from tests.health.world import World, machine


def test_a_program_that_was_only_noted_holds_up_no_recovery() -> None:
    """An XID that speaks of a program says nothing about the GPU: another fault may end while it runs."""
    world = World(machine(1))
    world.processes[0] = (7,)
    world.happen(0, "xid-13", pids=(7,))
    world.happen(0, "xid-94", pids=(8,))
    assert world.ill() == {"GPU-0"}

    world.wait(20, answer=True)

    assert world.ill() == set()


def test_a_program_that_an_illness_befell_does() -> None:
    """It may go on with what it got from bad memory."""
    world = World(machine(1))
    world.processes[0] = (7,)
    world.happen(0, "xid-94", pids=(7,))
    world.wait(20, answer=True)
    assert world.ill() == {"GPU-0"}

    world.processes[0] = ()
    world.wait(60, answer=True)

    assert world.ill() == set()
