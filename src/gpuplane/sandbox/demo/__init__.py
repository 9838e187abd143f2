"""The main job, played end to end: a described machine, the agent as a process, an embedded kubelet.

Each module but `stage` and `play` is a scene. It does something real and checks what came of it. Scenes share a
`Stage`; what one leaves for the next are the pods that run.
"""
