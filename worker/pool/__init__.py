"""Pre-warmed processes: an engine that is imported once, prepared for each model, and forked when one is asked for.

In: the models of the catalogue that this machine can serve, a replica's start. Out: a process that is becoming its
host, or the reason why the start has to be a plain one; reports for heartbeats.

``zygote`` is the program that runs in every process of a pool, ``wire`` what it and the agent say to each other,
``kind`` what an engine has to bring along. On the agent's side ``plan`` decides (pure) and ``pool`` does it. This door
imports nothing: a zygote comes in through it too.
"""
