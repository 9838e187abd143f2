"""The waste-price policy: prices of waste, slots of each class of requests, and the potential of both."""

from gpuplane.cluster.engine.policies.wasteprice.policy import WastePrice as WastePrice
