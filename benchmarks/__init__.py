"""Benchmarks: each part is ``python -m benchmarks.NAME [--json]``; its docstring says what it measures and how.

``hot_path`` what a request through the gateway costs, beside nginx and litellm; ``held`` what a held request costs in
memory; ``cold_start`` how long a model at zero takes to its first token, by what it starts from; ``cycles`` whether
waking and sleeping leaves anything behind; ``queue`` what durable jobs cost, beside
taskiq-redis. ``report`` renders their JSON into docs/benchmarks.md.
"""
