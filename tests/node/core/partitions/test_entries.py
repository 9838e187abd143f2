"""Which GPUs an entry means: filters, indices, and what can only be a mistake."""

from pathlib import Path

from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.core.partitions.migparted import parse_configs
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuLayout, MigConfigEntry
from tests.node.core.partitions.gpus import A30, A100_40, A100_80, DISPLAY, H100, a_gpu

CONFIGS = Path(__file__).parent / "configs"
EIGHT = tuple(a_gpu(i, A100_40) for i in range(8))
ON = MigConfigEntry(mig_enabled=True, mig_devices={"1g.10gb": 7})


def requested(*entries: MigConfigEntry, gpus: tuple[Gpu, ...] = EIGHT) -> dict[int, GpuLayout]:
    """Index → layout, where nothing is wrong."""
    layouts, problems = layouts_of_entries(entries, gpus)
    assert not problems
    return {int(uuid.removeprefix("GPU-")): layout for uuid, layout in layouts.items()}


def problems(*entries: MigConfigEntry, gpus: tuple[Gpu, ...] = EIGHT) -> int:
    """How many there are."""
    return len(layouts_of_entries(entries, gpus)[1])


def of_file(file: str, name: str, gpus: tuple[Gpu, ...]) -> dict[int, tuple[bool, dict[str, int]]]:
    """What a configuration of a file requests."""
    found = requested(*parse_configs((CONFIGS / file).read_bytes(), file)[name], gpus=gpus)
    return {index: (layout.mig_enabled, dict(layout.mig_devices)) for index, layout in found.items()}


def test_all_means_each_gpu_and_its_foreign_instances() -> None:
    """A list of indices means these GPUs, and what somebody else made there stays."""
    assert requested(ON) == {
        i: GpuLayout(mig_enabled=True, mig_devices={"1g.10gb": 7}, replaces_foreign=True) for i in range(8)
    }
    assert requested(ON.but(indices=(1, 3))) == {
        i: GpuLayout(mig_enabled=True, mig_devices={"1g.10gb": 7}) for i in (1, 3)
    }


def test_configurations_of_nvidias_tools_mean_their_gpus() -> None:
    """An entry a GPU; an entry a card, of which one card is there; indices that count GPUs of another kind, too."""
    custom = of_file("a100.yaml", "custom-config", EIGHT)
    assert custom[3] == (False, {})
    assert custom[4] == (True, {"1g.5gb": 7})
    assert custom[7] == (True, {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})
    mixed = (a_gpu(0, H100), a_gpu(1, A30))
    assert of_file("default.yaml", "all-balanced", mixed) == {
        0: (True, {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        1: (True, {"1g.6gb": 2, "2g.12gb": 1}),
    }
    assert of_file("default.yaml", "all-1g.10gb", (a_gpu(0, A100_40), a_gpu(1, A100_80))) == {
        0: (True, {"1g.10gb": 4}),
        1: (True, {"1g.10gb": 7}),
    }
    station = tuple(a_gpu(i, DISPLAY if i == 3 else A100_80, mig=i != 3) for i in range(5))
    assert of_file("station.yaml", "one-of-each-station", station) == {
        0: (False, {}),
        1: (True, {"3g.40gb": 2}),
        2: (True, {"2g.20gb": 3, "1g.10gb": 1}),
        4: (True, {"1g.10gb": 7}),
    }


def test_a_filter_matches_a_card_or_one_board_with_it() -> None:
    """In either case of letters. A GPU whose ids are not known matches none."""
    gpus = (a_gpu(0, "0x233010de", board="0x16C110DE"), a_gpu(1, H100, board="0x16C210DE"), a_gpu(2, ""))
    every = ON.but(device_filters=(H100,))
    assert requested(every, gpus=gpus).keys() == {0, 1}
    assert requested(every.but(device_filters=("0x233010DE:0x16c210de",)), gpus=gpus).keys() == {1}
    assert requested(every.but(device_filters=(A30, "0x233010DE:0x16c110de")), gpus=gpus).keys() == {0}


def test_an_entry_that_matches_no_gpu_is_skipped() -> None:
    """But not where no entry matches one: then nothing would be done, and it would be called a success."""
    assert requested(ON.but(device_filters=(A100_40,)), ON.but(device_filters=(A30,))).keys() == set(range(8))
    assert problems(ON.but(device_filters=(A30,)), ON.but(device_filters=(H100,))) == 1
    assert problems(ON.but(device_filters=(A30,)), gpus=(a_gpu(0, ""),)) == 1
    assert problems(ON.but(indices=())) == 1
    assert problems() == 1
    assert problems(ON, gpus=()) == 0


def test_two_entries_for_one_gpu_are_a_problem() -> None:
    """One for each pair of entries, not for each GPU."""
    assert problems(ON, ON) == 1
    assert problems(ON.but(indices=(0, 1), source="f:1"), ON.but(indices=(1, 2), source="f:2")) == 1
    assert requested(ON.but(indices=(0, 0))).keys() == {0}


def test_an_index_that_no_gpu_has_is_a_problem() -> None:
    """Also beside others."""
    assert problems(ON.but(indices=(0, 8, 9))) == 1
    assert problems(ON.but(indices=(0,)), ON.but(indices=(8,)), ON.but(indices=(9,), device_filters=(A30,))) == 2


def test_a_gpu_without_mig_is_a_problem_only_where_mig_is_requested() -> None:
    """mig-parted refuses that, too."""
    gpus = (a_gpu(0, A100_80), a_gpu(1, DISPLAY, mig=False))
    assert problems(ON, gpus=gpus) == 1
    assert requested(MigConfigEntry(mig_enabled=False), gpus=gpus) == {
        0: GpuLayout(mig_enabled=False, replaces_foreign=True)
    }


def test_a_lost_gpu_costs_no_other_its_layout() -> None:
    """It has a layout once the driver tells its UUID again."""
    assert requested(ON, gpus=(a_gpu(0).but(uuid=""), a_gpu(1))).keys() == {1}
