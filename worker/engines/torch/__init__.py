"""The torch engine's host: ``python -m worker.engines.torch HOSTFILE`` runs one transformers model in this process.

In: the host file. Out: reports of phases and bytes, the gate's endpoint, ``/v1/chat/completions`` and
``/v1/completions`` of a language model, ``/v1/embeddings`` of an encoder.

``host`` leads through the start; ``loading`` makes a model of mapped or read weights; ``application`` turns bodies into
requests (``request``, ``prompts``) and their events into answers (``answers``); ``runner`` is the one thread that
computes: it gathers what comes within the batch window, and steps through its batches (``batch``, ``embedding``) in
turn. Text and stop strings are ``text``'s, the choice of a token ``sampling``'s. ``capturing`` makes the
snapshot after the first load, ``canary`` holds the next ones to its answer.

Small on purpose: no paged cache, no continuous batching, no tools. What needs those asks vLLM.
"""
