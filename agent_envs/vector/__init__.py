"""Many environments at once: in one process, or in a pool of worker processes."""

from agent_envs.vector.make import alfworld_vector_env, make_vec, webshop_vector_env
from agent_envs.vector.vector_env import SerialVectorEnv, TextVectorEnv

__all__ = [
    "SerialVectorEnv",
    "TextVectorEnv",
    "alfworld_vector_env",
    "make_vec",
    "webshop_vector_env",
]
