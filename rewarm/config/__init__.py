"""Configuration: one YAML file, parsed once into frozen typed objects. Nothing below reads dictionaries or the
environment.

``load(path)`` gives a :class:`Config` or raises :class:`rewarm.errors.ConfigInvalid` whose message lists every error
with its line and field. ``catalogue(config)`` gives what the leader publishes.
"""

from rewarm.config.adapter import AdapterModel
from rewarm.config.catalogue import catalogue, spec_hash
from rewarm.config.changes import AT_START, Changes, changes
from rewarm.config.load import line_of, load, parse
from rewarm.config.placement import PlacementConfig, PlacementRules, priority_name
from rewarm.config.pods import KnativeConfig, PodConfig, TolerationConfig, VolumeConfig
from rewarm.config.processes import (
    DeviceConfig,
    GatewayConfig,
    HoldingConfig,
    RedisConfig,
    TracingConfig,
    WorkerConfig,
    is_loopback,
)
from rewarm.config.remote import RemoteModel
from rewarm.config.schema import (
    BANDS,
    AnyModel,
    CommandModel,
    Config,
    FilesConfig,
    HandOff,
    JobsConfig,
    KeyConfig,
    ModelConfig,
    Priority,
    TorchModel,
    VllmModel,
    WebhooksConfig,
)
from rewarm.config.watching import ConfigFile, ConfigState

__all__ = [
    "AT_START",
    "BANDS",
    "AdapterModel",
    "AnyModel",
    "Changes",
    "CommandModel",
    "Config",
    "ConfigFile",
    "ConfigState",
    "DeviceConfig",
    "FilesConfig",
    "GatewayConfig",
    "HandOff",
    "HoldingConfig",
    "JobsConfig",
    "KeyConfig",
    "KnativeConfig",
    "ModelConfig",
    "PlacementConfig",
    "PlacementRules",
    "PodConfig",
    "Priority",
    "RedisConfig",
    "RemoteModel",
    "TolerationConfig",
    "TorchModel",
    "TracingConfig",
    "VllmModel",
    "VolumeConfig",
    "WebhooksConfig",
    "WorkerConfig",
    "catalogue",
    "changes",
    "is_loopback",
    "line_of",
    "load",
    "parse",
    "priority_name",
    "spec_hash",
]
