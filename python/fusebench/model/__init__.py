"""The GPT that implementations are compared in."""

from fusebench.model.config import PRESETS, GPTConfig
from fusebench.model.gpt import GPT, prepare

__all__ = ["GPT", "PRESETS", "GPTConfig", "prepare"]
