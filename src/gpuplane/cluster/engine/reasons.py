"""Why a pod gets a node or a GPU, or does not: each code with its texts, once. Nothing here needs NumPy.

A node has one reason, the first that holds in this order: what never changes comes before what is taken now. So
`gpus-in-use` says that waiting helps, and `too-small` that it does not.
"""

from typing import NamedTuple

from gpuplane.cluster.engine.dimensions import NODE_DIMENSIONS, OTHERS_IN_USE


class Reason(NamedTuple):
    """`of_node`: what it says of nodes, "" if nothing; `of_gpu`: of a GPU, for the part of the request that it suits
    best."""

    code: str
    of_node: str = ""
    of_gpu: str = ""


REASONS = (
    Reason("chosen", "is the best", "is the best"),
    Reason("worse", "would do, too"),  # it fits there, and the policy likes it less
    Reason("fits", of_gpu="has room"),  # another GPU is taken, or its node is not
    Reason("closed", "cordoned or not ready"),
    Reason("labels", "without the labels that it wants"),
    Reason("taint", "with a taint that it does not tolerate"),
    Reason("no-gpus", "with too few GPUs"),
    Reason("model", "without GPUs of the model", "is not of the model"),
    Reason("id", "without the GPUs that it names", "is not one that it names"),
    Reason("resource", "without GPUs of the resource", "is not offered as the resource"),
    Reason("sick", "with too few GPUs that can be given out", "cannot be given out"),
    Reason("partitioned", "with MIG devices only", "has MIG devices only"),
    Reason("profile", "without MIG devices of the profile", "has no MIG device of the profile"),
    Reason("not-linked", "without so many linked GPUs"),
    Reason("no-others", "with too little of another resource that it asks for"),
    Reason("too-small", "too small even when empty", "is too small even when free"),
    *(Reason(each.in_use, each.in_use_text) for each in NODE_DIMENSIONS),
    Reason(OTHERS_IN_USE, "whose pods have all of another resource that it asks for"),
    Reason("gpus-in-use", "whose GPUs are in use"),  # also where one is free and a pod holds a sick one, which counts
    Reason("in-use", of_gpu="is in use"),
)
TEXTS_OF_NODES = {each.code: each.of_node for each in REASONS if each.of_node}
TEXTS_OF_GPUS = {each.code: each.of_gpu for each in REASONS if each.of_gpu}
