"""`seqshift demo`: one long-tailed rollout on a real vLLM, without and with rebalancing, compared field by field.

`settings` says what is run, `rank` runs it in each rank, `result` holds what came out and what follows from it,
`terminal` and `report` show it, and `run` puts these together.
"""
