"""MPS daemons of this node.

They live in processes of their own, under a supervisor of their own, so that the end of the agent is not theirs: CUDA
programs that compute through a daemon survive an upgrade of the agent and every change of its configuration that does
not concern them. The agent writes what is wanted into the MPS root directory, the supervisor how each daemon stands.
"""
