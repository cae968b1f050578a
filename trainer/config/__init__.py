"""What a run is told to do: every field with its default, what each value must satisfy, and what
excludes what. `load_config` reads a file; the sections are frozen dataclasses.
"""

from trainer.config.auxiliary import AuxiliaryConfig, FormatOnlyConfig, SeroConfig
from trainer.config.env import EnvConfig, GeneratedConfig, GeneratedShopConfig, WebShopConfig
from trainer.config.objective import AnchorConfig, CriticConfig, GraphConfig, ObjectiveConfig
from trainer.config.run_config import (
    Config,
    config_hash,
    from_dict,
    load_config,
    parse_overrides,
    resolve,
)
from trainer.config.sections import (
    EvalConfig,
    LogConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PromptConfig,
    RolloutConfig,
    RunConfig,
    SamplerConfig,
)
from trainer.config.warmstart import WarmstartConfig
from trainer.errors import ConfigError

__all__ = [
    "AnchorConfig",
    "AuxiliaryConfig",
    "Config",
    "ConfigError",
    "CriticConfig",
    "EnvConfig",
    "EvalConfig",
    "FormatOnlyConfig",
    "GeneratedConfig",
    "GeneratedShopConfig",
    "GraphConfig",
    "LogConfig",
    "LoraConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "ParallelConfig",
    "PromptConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplerConfig",
    "SeroConfig",
    "WarmstartConfig",
    "WebShopConfig",
    "config_hash",
    "from_dict",
    "load_config",
    "parse_overrides",
    "resolve",
]
