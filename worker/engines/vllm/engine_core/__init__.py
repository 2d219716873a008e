"""What runs inside vLLM's engine process: worker classes and an observer of the load that say how far they are.

vLLM resolves ``--worker-cls`` by name in that process, forked or spawned; importing the class registers the
loader of `rewarm_vllm`.
"""
