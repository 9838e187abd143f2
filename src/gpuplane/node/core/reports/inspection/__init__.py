"""What `gpuplane inspect` shows: the picture of an agent, put together for people and programs who ask."""
