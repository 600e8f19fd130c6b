"""One file an algorithm, read from top to bottom: Config, loss, update(), train()."""

from types import ModuleType

from recollect.algos import actor_critic, policy_gradient, ppo

ALGOS: dict[str, ModuleType] = {"policy_gradient": policy_gradient, "actor_critic": actor_critic, "ppo": ppo}
