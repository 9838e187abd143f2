"""NVIDIA's GPUs, as their driver shows them: a process of its own asks it (`driver`), and is kept up here."""
