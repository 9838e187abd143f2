"""Which unit is offered by which name, as tables: patterns, MIG strategies, odd GPUs."""

from typing import Any

import pytest

from gpuplane.base.text import matches_pattern
from gpuplane.kubernetes.resourcenames import qualified_resource_name
from gpuplane.node.core.inventory.resources import list_resources
from gpuplane.node.model.config import MigStrategy, NamingRule, Settings
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.views import ReasonKind
from tests.golden import Golden
from tests.texts import as_shown

SEVEN = ("1g.10gb",) * 7


def whole(index: int, model: str = "NVIDIA H100", **fields: Any) -> Gpu:
    """A GPU that is not partitioned."""
    return Gpu(index=index, uuid=f"GPU-{index}", model=model, device_nodes=(f"/dev/nvidia{index}",), **fields)


def cut(index: int, *profiles: str) -> Gpu:
    """A GPU in MIG mode with a device of each profile."""
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{index}-{slot}",
            profile=profile,
            gpu_instance=slot,
            mig_index=slot,
            device_nodes=(f"/dev/cap{slot}",),
        )
        for slot, profile in enumerate(profiles)
    )
    return whole(index, mig=Mig(enabled=True, devices=devices))


def names(strategy: MigStrategy, *gpus: Gpu, **settings: Any) -> tuple[dict[str, list[str]], list[str]]:
    """Resource → ids, and the units that are left."""
    resources, left = list_resources(Machine(gpus=gpus), Settings(mig_strategy=strategy, **settings))
    return {each.name: [device.id for device in each.devices] for each in resources}, [each.unit for each in left]


@pytest.mark.parametrize(
    ("pattern", "text", "matched"),
    [
        ("1g.24gb", "1g.24gb", True),
        ("1g.24gb", "2g.48gb", False),
        ("1g.24gb", "1g.24gb-me", False),
        ("1g.24gb", "1g.24gb+me.all", False),
        ("1g.24gb", "x1g.24gb", False),
        ("1g.24gb", "1gx24gb", False),
        ("1g.24gb-me", "1g.24gb-me", True),
        ("1g.24gb+me.all", "1g.24gb+me.all", True),
        ("*", "1g.24gb-me", True),
        ("*", "", True),
        ("1g.*", "1g.24gb", True),
        ("1g.*", "2g.48gb", False),
        ("1g.24gb+gfx", "1g.24gb+gfx", True),
        ("1g.24gb", "1g.24gb+gfx", False),
        ("1g.24gb+gfx", "1g.24gb", False),
        ("1g.24gb+gfx", "1g.24gb-me", False),
        ("2g.48gb+gfx", "2g.48gb+gfx", True),
        ("2g.48gb", "2g.48gb+gfx", False),
        ("*gb", "1g.24gb", True),
        ("*gb", "1g.24gb-me", False),
        ("*A100*80GB*", "NVIDIA A100-SXM4-80GB", True),
        ("*a100*", "NVIDIA A100-SXM4-80GB", False),
        ("ab*ba", "aba", False),
        ("a*ab*b", "aabb", True),
        ("*" * 30 + "b", "NVIDIA A100-SXM4-80GB", False),
        ("*a" * 100 + "*b", "a" * 5000, False),
    ],
)
def test_a_pattern_matches_the_whole_text(pattern: str, text: str, matched: bool) -> None:
    """`*` is any run of characters, all else stands for itself, at both ends too."""
    assert matches_pattern(pattern, text) is matched


@pytest.mark.parametrize(
    ("name", "full"),
    [("gpu", "nvidia.com/gpu"), ("nvidia.com/gpu", "nvidia.com/gpu"), ("a-1.b", "nvidia.com/a-1.b"), ("x" * 52, None)],
)
def test_a_name_gets_its_prefix(name: str, full: str | None) -> None:
    """With or without it, a name is the same; 63 characters are the most."""
    assert qualified_resource_name(name) == (full or f"nvidia.com/{name}")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A100",
        "$invalid$",
        "amd.com/gpu",
        "a..b",
        "gpu\n",
        "x" * 53,
    ],
)
def test_what_is_no_name_is_refused_with_a_better_one(name: str, golden: Golden) -> None:
    """Kubernetes' rule for names, in words."""
    with pytest.raises(ValueError) as caught:
        qualified_resource_name(name)

    assert repr(f"nvidia.com/{name}") in str(caught.value)
    golden(str(caught.value), name)


@pytest.mark.parametrize(
    ("strategy", "gpus", "resources", "left"),
    [
        # whole GPUs are the same under every strategy
        ("none", [whole(0), whole(1)], {"gpu": ["GPU-0", "GPU-1"]}, []),
        ("single", [whole(0), whole(1)], {"gpu": ["GPU-0", "GPU-1"]}, []),
        ("mixed", [whole(0), whole(1)], {"gpu": ["GPU-0", "GPU-1"]}, []),
        # MIG mode is not offered under none, and costs the others nothing
        ("none", [whole(0), cut(1, "1g.10gb")], {"gpu": ["GPU-0"]}, ["GPU-1"]),
        # MIG mode without devices contributes nothing
        ("none", [whole(0), cut(1)], {"gpu": ["GPU-0"]}, ["GPU-1"]),
        ("single", [whole(0), cut(1)], {"gpu": ["GPU-0"]}, ["GPU-1"]),
        ("mixed", [whole(0), cut(1)], {"gpu": ["GPU-0"]}, ["GPU-1"]),
        # single: one kind
        ("single", [cut(0, "1g.10gb"), cut(1, "1g.10gb")], {"gpu": ["MIG-0-0", "MIG-1-0"]}, []),
        # the uniform profile, also where most GPUs are whole
        ("single", [cut(0, *SEVEN), whole(1), whole(2)], {"gpu": [f"MIG-0-{n}" for n in range(7)]}, ["GPU-1", "GPU-2"]),
        ("single", [cut(0), whole(1), cut(2, "1g.10gb")], {"gpu": ["MIG-2-0"]}, ["GPU-0", "GPU-1"]),
        ("single", [cut(0, "1g.10gb"), cut(1, "1g.10gb"), whole(2)], {"gpu": ["MIG-0-0", "MIG-1-0"]}, ["GPU-2"]),
        ("single", [cut(0, "3g.40gb", "1g.10gb", "1g.10gb")], {"gpu": ["MIG-0-1", "MIG-0-2"]}, ["MIG-0-0"]),
        ("single", [cut(0, "2g.20gb"), cut(1, "1g.10gb")], {"gpu": ["MIG-1-0"]}, ["MIG-0-0"]),
        ("single", [cut(0, "1c.3g.20gb", "1c.3g.20gb")], {"gpu": ["MIG-0-0", "MIG-0-1"]}, []),
        # mixed: by profile
        (
            "mixed",
            [whole(0), cut(1, "1g.5gb", "1g.10gb+me", "1g.24gb+gfx", "2g.48gb+me.all", "1g.24gb-me")],
            {
                "gpu": ["GPU-0"],
                "mig-1g.5gb": ["MIG-1-0"],
                "mig-1g.10gb.me": ["MIG-1-1"],
                "mig-1g.24gb.gfx": ["MIG-1-2"],
                "mig-2g.48gb.me.all": ["MIG-1-3"],
                "mig-1g.24gb-me": ["MIG-1-4"],
            },
            [],
        ),
        ("mixed", [cut(0, "1c.3g.20gb", "3g.20gb")], {"mig-3g.20gb": ["MIG-0-1"]}, ["MIG-0-0"]),
        ("mixed", [cut(0, "Strange!"), whole(1)], {"gpu": ["GPU-1"]}, ["MIG-0-0"]),
        ("none", [], {}, []),
    ],
)
def test_the_strategy_names_what_no_pattern_does(
    strategy: MigStrategy, gpus: list[Gpu], resources: dict[str, list[str]], left: list[str]
) -> None:
    """NVIDIA's names; where their plugin would give up the node, the odd unit is left and the others are served."""
    assert names(strategy, *gpus) == ({f"nvidia.com/{name}": ids for name, ids in resources.items()}, left)


def test_gpus_in_mig_mode_may_be_offered_whole_as_nvidias_plugin_does() -> None:
    """Under none alone, with instances or without; under the others the switch does nothing."""
    gpus = (whole(0), cut(1, "1g.10gb"), cut(2))

    assert names("none", *gpus, whole_mig_gpus=True) == ({"nvidia.com/gpu": ["GPU-0", "GPU-1", "GPU-2"]}, [])
    for strategy in ("single", "mixed"):
        assert names(strategy, *gpus, whole_mig_gpus=True) == names(strategy, *gpus)


def test_patterns_come_first_and_the_first_that_matches_counts() -> None:
    """Models and profiles get names of their own; what no pattern matches has the strategy's."""
    gpus = (NamingRule("*A100*", "nvidia.com/a100"), NamingRule("*100*", "nvidia.com/big"))
    mig = (NamingRule("1c.*", "nvidia.com/tiny"), NamingRule("*", "nvidia.com/slice"))
    found = names(
        "mixed",
        *(whole(0, "NVIDIA A100"), whole(1, "NVIDIA H100"), whole(2, "Tesla T4"), cut(3, "1c.3g.20gb", "3g.20gb")),
        gpus=gpus,
        mig=mig,
    )

    assert found == (
        {
            "nvidia.com/a100": ["GPU-0"],
            "nvidia.com/big": ["GPU-1"],
            "nvidia.com/gpu": ["GPU-2"],
            "nvidia.com/tiny": ["MIG-3-0"],
            "nvidia.com/slice": ["MIG-3-1"],
        },
        [],
    )


def test_under_single_a_pattern_takes_its_units_out_of_the_count() -> None:
    """What has a name of its own neither is nvidia.com/gpu nor has a say in what that is."""
    mig = (NamingRule("1g.*", "nvidia.com/small"),)

    assert names("single", cut(0, "1g.10gb"), cut(1, "1g.10gb"), cut(2, "3g.40gb"), mig=mig) == (
        {"nvidia.com/small": ["MIG-0-0", "MIG-1-0"], "nvidia.com/gpu": ["MIG-2-0"]},
        [],
    )


def test_under_single_nothing_joins_what_patterns_call_nvidias_gpu() -> None:
    """Whoever names whole GPUs so wants no MIG devices among them, and the other way round."""
    wholes, parts = (NamingRule("*", "nvidia.com/gpu"),), (NamingRule("3g.*", "nvidia.com/gpu"),)
    gpus = (cut(0, "1g.10gb"), cut(1, "3g.40gb"), whole(2))

    assert names("single", *gpus, gpus=wholes) == ({"nvidia.com/gpu": ["GPU-2"]}, ["MIG-0-0", "MIG-1-0"])
    assert names("single", *gpus, mig=parts) == ({"nvidia.com/gpu": ["MIG-1-0"]}, ["MIG-0-0", "GPU-2"])
    assert names("single", *gpus, gpus=wholes, mig=parts)[1] == ["MIG-0-0"]


@pytest.mark.parametrize(
    ("strategy", "gpu", "kind"),
    [
        ("none", cut(0, "1g.10gb"), "configured"),
        ("mixed", cut(0), "configured"),
        ("single", cut(0, "2g.20gb"), "configured"),
        ("mixed", cut(0, "1c.3g.20gb"), "configured"),
        ("none", Gpu(index=0, faults=(Fault("lost", "fell off"),)), "problem"),
        ("none", whole(9).but(index=0), "problem"),
        ("mixed", cut(0, ""), "problem"),
    ],
    ids=[
        "none",
        "no MIG device",
        "another profile",
        "a compute instance",
        "no UUID",
        "the UUID of GPU 9",
        "no profile",
    ],
)
def test_what_is_left_has_a_reason(strategy: MigStrategy, gpu: Gpu, kind: ReasonKind, golden: Golden) -> None:
    """For each way to fit nowhere a sentence, and the GPU beside it is offered."""
    _, left = list_resources(
        Machine(gpus=(whole(9), gpu, cut(2, "1g.10gb"), cut(3, "1g.10gb"))), Settings(mig_strategy=strategy)
    )

    [own] = [each for each in left if each.index.partition(":")[0] == "0"]
    assert own.kind == kind
    golden(own.reason)


def test_a_gpu_without_a_uuid_is_left_by_its_index() -> None:
    """What cannot be told by its name is told by its place."""
    assert names("none", Gpu(index=3), whole(1)) == ({"nvidia.com/gpu": ["GPU-1"]}, ["GPU 3"])


def test_a_mig_device_is_reached_through_its_gpus_node_too() -> None:
    """The unit carries what a container needs: parent's and own nodes, NUMA, the index pair."""
    [resource], left = list_resources(
        Machine(gpus=(cut(1, "1g.10gb").but(numa=1, pci="p"),)), Settings(mig_strategy="mixed")
    )
    unit = resource.devices[0].unit

    assert left == ()
    assert (unit.gpu, unit.index, unit.profile, unit.numa, unit.pci) == ("GPU-1", "1:0", "1g.10gb", 1, "p")
    assert unit.device_nodes == ("/dev/nvidia1", "/dev/cap0")


def test_left_is_what_the_offer_shows() -> None:
    """The unit's UUID, its index and why."""
    [left] = list_resources(Machine(gpus=(cut(0),)), Settings())[1]

    assert (left.unit, left.device, left.index, left.kind) == ("GPU-0", "GPU-0", "0", "configured")
    assert "migStrategy" in as_shown(left.reason)
