"""Configurations of other programs as ours. In: their text. Out: a commented YAML file of ours, and what could not be
said in it, by line. Nothing is read or run besides."""

from rewarm.imports.document import Imported, Remark
from rewarm.imports.llama_swap.convert import convert as from_llama_swap

__all__ = ["Imported", "Remark", "from_llama_swap"]
