"""An embedded kubelet and what a demo needs of a cluster. It meets the agent only by sockets and a command line."""
