"""Which of the free devices kubelet should prefer."""
