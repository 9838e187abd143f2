"""Traces of openb's format are read; what is wrong with one is said with its line."""

import pytest

from gpuplane.base.strict import MAX_ERRORS, InvalidInput
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Request
from gpuplane.cluster.simulation.pods import TracePod, class_of, ordered
from gpuplane.cluster.simulation.trace import read_nodes, read_pods

NODES = b"""sn,cpu_milli,memory_mib,gpu,model
openb-node-0000,64000,262144,2,P100
openb-node-0001,96000,131072,0,
"""
PODS = b"""name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,P100|T4,LS,Running,0,12537496,0
p1,6000,12288,1,460,,LS,Running,427061,,427061
p2,6000,12288,0,0,,BE,Running,1,1,
"""
SEEN = (
    Node("a", 1000, 1000, tuple(Gpu(f"a/{each}", "P100") for each in range(2))),
    Node("b", 1000, 1000, tuple(Gpu(f"b/{each}", "T4") for each in range(4))),
)


def test_nodes_and_pods_are_as_the_files_say() -> None:
    """A model list, a missing end, a pod without a GPU."""
    assert read_nodes(NODES, "nodes.csv") == (
        Node(
            "openb-node-0000", 64000, 262144 << 20, (Gpu("openb-node-0000/0", "P100"), Gpu("openb-node-0000/1", "P100"))
        ),
        Node("openb-node-0001", 96000, 131072 << 20),
    )
    whole = GpuRequest(count=1, milli=1000, models=frozenset(["P100", "T4"]))
    assert read_pods(PODS, "pods.csv", SEEN) == (
        TracePod("p0", Request(12000, 16384 << 20, (whole,)), 1000, 12537496.0),
        TracePod("p1", Request(6000, 12288 << 20, (GpuRequest(count=1, milli=460),)), 460),
        TracePod("p2", Request(6000, 12288 << 20), 0, 0.0),
    )


def test_columns_may_stand_in_any_order_and_some_may_be_missing() -> None:
    """With the mark that spreadsheets put before UTF-8, their line ends, and empty lines."""
    data = b"\xef\xbb\xbfgpu_milli, name,num_gpu,memory_mib,cpu_milli\r\n500,p0,1,2,1\r\n\r\n"

    assert read_pods(data, "pods.csv", SEEN) == (
        TracePod("p0", Request(1, 2 << 20, (GpuRequest(count=1, milli=500),)), 500),
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "pods.csv: line 1 has no column name, cpu_milli"),
        (b"name,cpu_milli,memory_mib,num_gpu\n", "pods.csv: line 1 has no column gpu_milli"),
        (b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n", "pods.csv: it has no line below"),
        (b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spek\n", "did you mean 'gpu_spec'?"),
        (b"name,name,cpu_milli,memory_mib,num_gpu,gpu_milli\n", "the column name twice"),
        (PODS.replace(b",460,", b",460"), "pods.csv:3: it has 10 cells, and the file 11 columns"),
        (PODS.replace(b",460,", b",half,"), "pods.csv:3: gpu_milli is 'half'"),
        (PODS.replace(b",460,", b",-460,"), "pods.csv:3: gpu_milli is '-460'"),
        (PODS.replace(b",460,", b",4600,"), "from 0 to 1000"),
        (PODS.replace(b",460,", b",,"), "pods.csv:3: gpu_milli is ''"),
        (PODS.replace(b",460,", "٤٦٠".join([",", ","]).encode()), "pods.csv:3: gpu_milli is"),
        (PODS.replace(b"1,460,", b"0,460,"), "pods.csv:3: num_gpu is 0, but gpu_milli is 460"),
        (PODS.replace(b"p1,", b"p0,"), "pods.csv:3: 'p0' is already in line 2"),
        (PODS.replace(b"p1,", b","), "pods.csv:3: name is empty"),
        (PODS.replace(b"P100|T4", b"P100|V4"), "pods.csv:2: gpu_spec names 'V4', a model that no node has"),
        (PODS.replace(b"P100|T4", b"P10"), "did you mean 'P100'?"),
        (PODS.replace(b"1,1000,P100|T4", b"4,1000,P100"), "no node has more than 2 GPUs of P100"),
        (PODS.replace(b"1,1000,P100|T4", b"5,1000,"), "no node has more than 4 GPUs"),
        (PODS.replace(b"427061,,", b"427061,1,"), "pods.csv:3: deletion_time 1 is before creation_time 427061"),
        (PODS.replace(b"p1", b"\xff"), "pods.csv: it is not UTF-8 text"),
        (PODS.replace(b"p1", b'"p1'), "is not CSV"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(data: bytes, said: str) -> None:
    """And what to write instead."""
    with pytest.raises(InvalidInput) as error:
        read_pods(data, "pods.csv", SEEN)

    assert said in str(error.value)


def test_a_node_with_gpus_has_a_model() -> None:
    """For pods may ask for it."""
    with pytest.raises(InvalidInput) as error:
        read_nodes(NODES.replace(b"P100", b"") + b"x,1,1,257,T4\n", "nodes.csv")

    assert [each[:13] for each in error.value.errors] == ["nodes.csv:2: ", "nodes.csv:4: "]


def test_errors_are_bounded() -> None:
    """A file of another kind does not fill the screen."""
    with pytest.raises(InvalidInput) as error:
        read_pods(b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + b"x\n" * 1000, "pods.csv", SEEN)

    assert len(error.value.errors) == MAX_ERRORS


def test_classes_are_by_gpus() -> None:
    """From the smallest to the largest."""
    assert [class_of(each) for each in read_pods(PODS, "pods.csv", SEEN)] == ["1", "shared", "cpu"]
    assert class_of(TracePod("two", Request(0, 0, (GpuRequest(milli=300), GpuRequest(milli=500))), 800)) == "shared"
    assert ordered(["10", "2", "shared", "2", "cpu"]) == ["cpu", "shared", "2", "10"]
