"""What the sandbox needs of kube-scheduler: pods with resource claims get devices and a node.

`scheduling.decide` is the whole decision, and pure; `scheduler.Scheduler` watches an API server and writes it down.
"""
