"""What a request asks of a GPU."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from gpuplane.cluster.model.nodes import Gpu
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Share, needed_of_gpu, share_of

AMOUNTS = [each.name for each in fields(GpuRequest) if each.type is int and each.name not in ("count", "milli")]


@pytest.mark.parametrize("amount", AMOUNTS)
def test_what_asks_for_another_amount_asks_not_for_milli_alone(amount: str) -> None:
    """The engine has a shorter way for milli-GPU alone, which looks at no other amount."""
    assert GpuRequest(milli=500).asks_milli_alone
    assert not GpuRequest(milli=500).but(**{amount: 1}).asks_milli_alone


@given(
    st.builds(
        GpuRequest,
        milli=st.integers(0, MILLI_PER_GPU),
        memory_mib=st.integers(0, 100_000),
        memory_percent=st.integers(0, 100),
        units=st.integers(0, 8),
        profile=st.sampled_from(["", "1g.10gb"]),
    ),
    st.lists(st.tuples(st.sampled_from([0, 1, 15360, 81559]), st.integers(1, 8)), min_size=1, max_size=4),
)
def test_of_many_gpus_as_much_is_taken_as_of_each(wanted: GpuRequest, gpus: list[tuple[int, int]]) -> None:
    memory, units = np.array(gpus).T
    taken = needed_of_gpu(wanted, memory, units)
    milli, mib = np.broadcast_to(taken.milli, len(gpus)), np.broadcast_to(taken.memory_mib, len(gpus))

    for place, (of_memory, of_units) in enumerate(gpus):
        assert share_of(Gpu("g", memory_mib=of_memory, units=of_units), place, wanted) == Share(
            place, int(milli[place]), int(mib[place]), taken.profile, taken.units
        )
