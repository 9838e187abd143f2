"""Share layouts are values in the program, and texts where they are stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.model.sharelayout import (
    TIME_SLICES,
    UNKNOWN,
    EncodedLayout,
    ShareLayout,
    decode,
    memory_layout,
    mps_client_layout,
)

STORED = {
    "time slices": TIME_SLICES,
    "1024 MiB": memory_layout(1024, mps=False),
    "1024 MiB by MPS": memory_layout(1024, mps=True),
    "8 by MPS": mps_client_layout(8),
    "unknown": UNKNOWN,
}


@pytest.mark.parametrize("text", STORED)
def test_a_stored_layout_is_read_and_written_as_it_was(text: str) -> None:
    assert decode(EncodedLayout(text)) == STORED[text]
    assert STORED[text].encoded == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "MiB",
        " MiB",
        " by MPS",
        "1024 GiB",
        "-1 MiB",
        "1.5 MiB",
        "² MiB",
        "time slices by MPS",
        "9" * 5000 + " MiB",
    ],
)
def test_a_layout_that_is_not_understood_is_unknown(text: str) -> None:
    """As one that a newer version wrote."""
    assert decode(EncodedLayout(text)) == UNKNOWN


@given(
    st.one_of(
        st.builds(memory_layout, st.integers(1, 10**9), mps=st.booleans()),
        st.builds(mps_client_layout, st.integers(1, 10**6)),
        st.sampled_from([TIME_SLICES, UNKNOWN]),
    )
)
def test_every_layout_is_the_same_after_it_was_stored(layout: ShareLayout) -> None:
    assert decode(layout.encoded) == layout


def test_only_shares_by_mps_make_clients_of_a_daemon() -> None:
    assert [text for text, layout in STORED.items() if layout.uses_mps] == ["1024 MiB by MPS", "8 by MPS"]
