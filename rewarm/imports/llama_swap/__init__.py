"""llama-swap's ``config.yaml``: read with its lines, its macros put in, said in our words."""
