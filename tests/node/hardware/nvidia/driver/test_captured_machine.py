"""A real machine can be written down as a machine file, without the names of its cards."""

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.model.machine import Machine, MachineFile
from tests.hardware.capture import anonymous, written


def test_a_captured_machine_is_read_as_it_was_seen(rich: MachineFile) -> None:
    """All but the names, which are others and still different from each other."""
    seen = Machine(**{field: getattr(rich, field) for field in Machine.__struct_fields__})
    text = written(anonymous(seen))
    again = read_machine(text.encode(), "captured.yaml")

    assert "MIG-1\n" not in text
    assert "0123abcd" not in text  # the cluster of a fabric
    assert written(anonymous(again.but(failures=()))) == text
    assert [gpu.but(uuid="", mig=None, fabric=None) for gpu in again.gpus or ()] == [
        gpu.but(uuid="", mig=None, fabric=None) for gpu in rich.gpus or ()
    ]
