"""Kubelet's DRA manager: plugins, claims and their checkpoint (pkg/kubelet/cm/dra and pluginmanager, 1.36)."""
