"""The test bed: a real vLLM 0.9.1 on a CPU machine, one process per rank, with a tiny random model."""
