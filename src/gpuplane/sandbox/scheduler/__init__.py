"""What the sandbox needs of kube-scheduler: pods with resource claims get devices and a node.

`scheduling.decide` is the whole decision, and pure; `scheduler.run_scheduler` writes it down at an API server.
"""
