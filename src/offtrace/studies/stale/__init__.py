"""A small transformer learns from rollouts of an older policy, with one weight or another: the task "stale" of studies.

`token_tasks` are what is learned, `transformer` is the policy and its sampler, `weighting` says how much an old token counts,
`stale_training` is the program, and `units` makes rows and curves of it. Nothing here needs polars or rich.
"""
