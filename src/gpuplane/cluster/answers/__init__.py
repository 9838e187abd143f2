"""What is asked about a cluster that was read, one module a question. Pure; nothing is changed.

All expect the requests that the cluster's own pods make, beside those of the configuration.
"""
