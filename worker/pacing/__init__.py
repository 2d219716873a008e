"""A load stands back while it makes what is served here slower.

In: the times that every gate measures of its answers, and which replicas load. Out: for each load a share of full
speed, decided by ``worker.pacing.guard`` (pure) and carried out by ``worker.pacing.pace``: how fast it may read, how
much of the cores it may use, and that it yields to others.
"""
