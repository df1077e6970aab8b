"""A real vLLM 0.9.1 on a CPU machine, one process per rank, with small random models: for the demo and the tests.

Nothing of it is in use when seqshift runs in a user's engine.
"""
