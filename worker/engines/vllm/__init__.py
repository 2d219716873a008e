"""vLLM's host: ``python -m worker.engines.vllm HOSTFILE`` runs vLLM's own OpenAI server application in our process.

In: the host file (specification, sockets, memory shares). Out: reports of phases and bytes, the gate's endpoint, vLLM's
log.

``host`` leads through the start; ``arguments`` turns a specification into vLLM's; ``environment`` decides what must be
set before anything is imported; ``start`` makes the engine, forked where that is safe; ``serving`` runs the application
behind the gate and watches the engine core. ``engine_core/`` is what runs inside vLLM's engine process: worker classes
that report and a loader that counts bytes. ``failure`` carries the cause of a failed start from there to here and
classifies it.
"""
