"""The judge: what gpuplane does, seen through sockets, files, commands and exit statuses alone.

Nothing here imports a module of gpuplane, but for the generated messages of kubelet's protocols, and nothing compares a
sentence for people. So a change of the whole source tree is judged by these tests as they are. What is promised beyond
one test's own assertions stands in `golden/`: `E2E_GOLDEN=write` writes it again, which is right only where a promise
changes.
"""
