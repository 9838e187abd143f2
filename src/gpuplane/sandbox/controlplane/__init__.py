"""A real control plane as an ordinary user's processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

All of it listens on loopback, has an authority of its own, and ends with us.
"""
