"""Weights, optimiser and the gradient step in its fastest form: what the ladder's algorithms share."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from recollect.algos.loss import Minibatch, Term, total
from recollect.algos.minibatches import minibatches, pieces
from recollect.data.episodes import EpisodeRollout
from recollect.data.rollout import Rollout
from recollect.fast import fast
from recollect.nets.agent import Agent, Replayed
from recollect.ops import policy_loss
from recollect.run.checkpoint import load_optimizer, load_weights, optimizer_tensors
from recollect.run.run import Run


class GradientLearner:
    """A gradient step on a minibatch, whole or in pieces of a fixed shape. An algorithm adds ``update``."""

    def __init__(
        self,
        agent: Agent,
        terms: Sequence[Term],
        device: torch.device,
        compiled: bool,
        *,
        fuse: bool = False,
        learning_rate: float,
        adam_epsilon: float,
        max_grad_norm: float | None,
    ):
        self.agent, self.device, self.terms, self.compiled = agent, device, list(terms), compiled
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self.parameters = list(agent.parameters())
        self.learning_rate = torch.tensor(learning_rate, device=device)
        self.optimizer = torch.optim.Adam(
            self.parameters, self.learning_rate, eps=adam_epsilon, fused=True, capturable=device.type == "cuda"
        )
        if compiled and device.type == "cuda":
            self._allocate_moments()
        self.gradient_step = fast(self._gradient_step, device, compiled, self._changed, fuse)
        self._fast_add = fast(self._add_gradient, device, compiled, self._changed, fuse)
        self._fast_step = fast(self._step, device, compiled, self._changed, fuse)

    def _allocate_moments(self) -> None:
        """Give Adam its state before a graph is captured: a step on zero gradients leaves the weights alone."""
        self._allocate_gradients()
        self.optimizer.step()
        for tensor in self._moments():
            tensor.zero_()

    def _allocate_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def _moments(self) -> list[Tensor]:
        return [value for slot in self.optimizer.state.values() for value in slot.values()]

    def _changed(self) -> list[Tensor]:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return [*self.parameters, *self.agent.buffers(), *self._moments(), *gradients]

    def measure(self, logp: Tensor, batch: Minibatch) -> dict[str, Tensor]:
        """What to log of a minibatch beside its losses. logp: [T, B] of its actions, now."""
        return {
            "policy/approx_kl": batch.mean(policy_loss.approx_kl(logp, batch.logp)),
            "parity/max_ratio_error": batch.max((policy_loss.ratio(logp, batch.logp) - 1).abs()),
        }

    def _gradient(self, batch: Minibatch) -> dict[str, Tensor]:
        """Add the loss's gradient to what is there; what to log."""
        replayed = replay(self.agent, batch)
        loss, values = total(self.terms, replayed, batch)
        loss.backward()
        with torch.no_grad():
            return values | self.measure(replayed.policy.logp(batch.action).detach(), batch)

    def _clip_and_step(self) -> dict[str, Tensor]:
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        return {"optim/grad_norm": norm.detach()}

    # A minibatch in one.

    def _gradient_step(self, batch: Minibatch) -> dict[str, Tensor]:
        """Loss, gradient, step; what to log, measured before the step."""
        self.optimizer.zero_grad(set_to_none=True)
        return self._gradient(batch) | self._clip_and_step()

    # A minibatch in pieces.

    def _add_gradient(self, piece: Minibatch) -> dict[str, Tensor]:
        return self._gradient(piece)

    def _step(self) -> dict[str, Tensor]:
        values = self._clip_and_step()
        self.optimizer.zero_grad(set_to_none=False)  # the same memory again: a graph adds to it
        return values

    def step_in_pieces(self, parts: Sequence[Minibatch]) -> dict[str, Tensor]:
        """One gradient step on all the pieces of a minibatch; what to log, measured before the step."""
        if any(parameter.grad is None for parameter in self.parameters):
            self._allocate_gradients()
        seen = [self._fast_add(part) for part in parts]
        values = {}
        for name in seen[0]:
            column = torch.stack([each[name] for each in seen])
            values[name] = column.max() if name.startswith("parity/") else column.sum()
        return values | self._fast_step()

    # A batch.

    def one_pass(
        self,
        rollout: Rollout,
        advantage_TN: Tensor,
        target_TN: Tensor,
        count: int,
        contiguous: bool,
        rows_at_once: int,
        stream: torch.Generator,
    ) -> Iterator[dict[str, Tensor]]:
        """``count`` gradient steps that see every row once; what to log of each.

        Rows are shuffled; ``contiguous``, and always with memory, whole windows of consecutive steps are.
        """
        together = contiguous or self.agent.remembers
        if isinstance(rollout, EpisodeRollout):
            cut = rollout.minibatches(count, together, rows_at_once, self.compiled, stream)
            yield from (self.step_in_pieces(pieces(rollout, advantage_TN, target_TN, each)) for each in cut)
        else:
            cut = minibatches(rollout, advantage_TN, target_TN, count, together, stream)
            yield from (self.gradient_step(batch) for batch in cut)

    # Checkpoints.

    def resume(self, run: Run) -> None:
        """Weights and optimiser as the checkpoint has them."""
        assert run.resumed is not None
        load_weights(self.agent, run.resumed.under("agent"), run.resumed.path)
        load_optimizer(self.optimizer, run.resumed.under("optimizer"), run.resumed.data["optimizer"])

    def save(self, run: Run, update: int, collector: dict[str, Tensor], **data: float) -> None:
        """Write a checkpoint."""
        tensors, groups = optimizer_tensors(self.optimizer)
        parts = {"optimizer": tensors, "collector": collector}
        run.save(update, self.agent.state_dict(), parts, {"optimizer": groups, **data})


def replay(agent: Agent, batch: Minibatch) -> Replayed:
    """What the agent says of a minibatch now: from its stored memory, or from the burn-in, which is learnt through."""
    before = batch.before
    if before is None:
        return agent.replay(batch.obs, batch.state, batch.reset)
    obs = {name: torch.cat([before.obs[name], part]) for name, part in batch.obs.items()}
    steps, envs = before.reset.shape
    state = agent.initial_state(envs, before.reset.device)
    return agent.replay(obs, state, torch.cat([before.reset, batch.reset]), burn_in=steps)


def on_host(seen: Sequence[dict[str, Tensor]], extra: dict[str, Tensor]) -> dict[str, float]:
    """Means over an update's gradient steps, and ``extra``, brought to the host at once."""
    values = {name: torch.stack([step[name] for step in seen]).mean() for name in seen[0]}
    # Before the first step the learner's weights are the actor's: its minibatch shows whether the two agree.
    values["parity/max_ratio_error"] = seen[0]["parity/max_ratio_error"]
    values |= extra
    numbers = torch.stack([value.float() for value in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))
