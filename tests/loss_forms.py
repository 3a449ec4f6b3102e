"The loss of a signal, plain and clipped, as worked numbers use it; TRL computes it in training"

import torch

from humanlm.core.basics import check_name


def token_shares(
    mask: torch.Tensor,  # [B, T] bool, of a portion of a step
    aggregation: str = "sequence",  # sequence, token, constant
    rows: int | None = None,  # replies of the whole step; None: this is all
    tokens: int | None = None,  # tokens of the whole step; None: this is all
    length: int | None = None,  # constant: the length that stands for every reply's; None: T
) -> torch.Tensor:  # [B, T]; the sum over a step of share · value is the mean
    "Give the share of each token in the loss of a step"
    check_name(aggregation, ("sequence", "token", "constant"), "aggregation")
    inside, rows = mask.float(), len(mask) if rows is None else rows
    if aggregation == "token":
        return inside / max(1, int(mask.sum()) if tokens is None else tokens)
    if aggregation == "constant":
        return inside / (rows * (length or mask.shape[1]))
    return inside / (rows * inside.sum(1, keepdim=True).clamp(min=1))


def policy_loss(
    logps: torch.Tensor,  # [B, T] log-probabilities under the weights in training
    advantages: torch.Tensor,  # [B, T], held constant
    shares: torch.Tensor,  # [B, T], from `token_shares`
    old_logps: torch.Tensor | None = None,  # [B, T] of the weights that wrote; None: plain form
    epsilon_low: float = 0.2,  # a ratio below 1 - epsilon_low counts no further
    epsilon_high: float = 0.2,  # nor one above 1 + epsilon_high
) -> torch.Tensor:
    "Compute the loss whose gradient raises tokens with a positive advantage"
    advantages, logps = advantages.detach(), logps.float()
    if old_logps is None:
        return -(shares * advantages * logps).sum()
    ratio = (logps - old_logps.detach().float()).exp()
    gain = torch.minimum(
        ratio * advantages, ratio.clamp(1 - epsilon_low, 1 + epsilon_high) * advantages
    )
    return -(shares * gain).sum()
