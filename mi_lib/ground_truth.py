"""Ground-truth mutual information (§4.1): probe a masked model by writing each value at each masked position."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mi_lib.masked import MaskedModel, check_tokens, entropy, kl_divergence, marginals, require

ESTIMATORS = ("entropy", "mixture", "kl")


@dataclass(frozen=True)
class DirectionalMI:
    """Directional MI from R source positions to all positions, in nats, not clamped.

    Attributes
    ----------
    entropy : Tensor of shape (R, L)
        ``H(p_j) - sum_v p_i(v) H(p_j|v)``: the paper's steps. May be negative: a trained model's conditionals need not
        fit one joint distribution.
    mixture : Tensor of shape (R, L)
        ``H(sum_v p_i(v) p_j|v) - sum_v p_i(v) H(p_j|v)``: the exact MI of the joint ``p_i(v) p_j|v``.
    kl : Tensor of shape (R, L)
        ``sum_v p_i(v) KL(p_j|v || p_j)``: what sampling i and j in parallel instead of i then j costs.
    passes : int
        Forward passes spent, one a sequence: the base passes and one a probed value.

    Notes
    -----
    Entries at observed positions and at the source itself are zero. ``kl - mixture`` equals
    ``KL(sum_v p_i(v) p_j|v || p_j)``, the inconsistency of the model's conditionals.
    """

    entropy: Tensor
    mixture: Tensor
    kl: Tensor
    passes: int

    def of(self, estimator: str) -> Tensor:
        """The (R, L) matrix of one estimator."""
        check_estimator(estimator)
        return getattr(self, estimator)


@dataclass(frozen=True)
class Diagnostics:
    """How far a directional MI matrix is from that of one consistent joint distribution.

    Attributes
    ----------
    negative_share : float
        Share of masked pairs (i != j, both directions) with an estimate below -1e-6, which is no rounding.
    asymmetry : float
        ``||A - A^T|| / ||A + A^T||`` (Frobenius).
    inconsistency : float
        Mean over masked pairs of ``KL(sum_v p_i(v) p_j|v || p_j)``, in nats.
    """

    negative_share: float
    asymmetry: float
    inconsistency: float


def check_estimator(estimator: str) -> None:
    """Raise a ValueError unless ``estimator`` is one of ``ESTIMATORS``."""
    require(estimator in ESTIMATORS, "estimator", estimator, f"one of {ESTIMATORS}")


@torch.inference_mode()
def probe_rows(
    model: MaskedModel,
    tokens: Tensor,
    owner: Tensor,
    source: Tensor,
    tail: float = 0.0,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda passes: None,
) -> DirectionalMI:
    """Directional MI from chosen source positions of a batch of sequences.

    Parameters
    ----------
    model : MaskedModel
        Run in float32 (autocast is switched off): bfloat16 inflates small values.
    tokens : LongTensor of shape (B, L)
    owner, source : LongTensor of shape (R,)
        Row r probes position ``source[r]``, which must be masked, of sequence ``owner[r]``.
    tail : float
        Values with marginal probability below ``tail`` are not probed and count as leaving ``p_j`` unchanged. With e
        the skipped mass of a row the error is at most ``e ln V`` (entropy), ``e ln V + h(e)`` (mixture) or
        ``e max ln(1 / p_j)`` (kl), h the binary entropy.
    batch_size : int
        Sequences a forward pass: the bound on memory.
    progress : callable
        Called with the number of passes just done.

    Raises
    ------
    ValueError
        If an argument is out of range or a source is not masked.
    """
    check_tokens(model, tokens)
    require(0 <= tail < 1, "tail", tail, "a probability below 1")
    require(batch_size >= 1, "batch_size", batch_size, "at least 1")
    masked = tokens == model.mask_id
    if not masked[owner, source].all():
        raise ValueError("every probed source position must be masked")
    with torch.autocast(tokens.device.type, enabled=False):
        base = torch.cat([marginals(model, chunk)[0] for chunk in tokens.split(batch_size)])  # (B, L, V)
        progress(len(tokens))
        p = base[owner, source].exp()  # (R, V)
        row, value = ((p >= tail) & (p > 0)).nonzero(as_tuple=True)  # an impossible value has no conditional
        shape = (len(owner), *base.shape[1:])
        spread, mixture, kl = base.new_zeros(shape[:2]), base.new_zeros(shape), base.new_zeros(shape[:2])
        for r, v in zip(row.split(batch_size), value.split(batch_size), strict=True):
            probed = tokens[owner[r]].clone()
            probed[torch.arange(len(r)), source[r]] = model.vocab[v]
            log_q, weight = marginals(model, probed)[0], p[r, v]  # (N, L, V), (N,)
            spread.index_add_(0, r, weight[:, None] * entropy(log_q))
            mixture.index_add_(0, r, weight[:, None, None] * log_q.exp())
            kl.index_add_(0, r, weight[:, None] * kl_divergence(log_q, base[owner[r]]))
            progress(len(r))
    skipped = (p * (p < tail)).sum(-1)[:, None]  # (R, 1)
    h_base = entropy(base)[owner]  # (R, L)
    spread += skipped * h_base
    mixture += skipped[..., None] * base[owner].exp()
    valid = masked[owner].clone()
    valid[torch.arange(len(owner)), source] = False
    return DirectionalMI(
        entropy=(h_base - spread) * valid,
        mixture=(torch.special.entr(mixture).sum(-1) - spread) * valid,
        kl=kl.where(valid, 0.0),
        passes=len(tokens) + len(row),
    )


def probe(model: MaskedModel, tokens: Tensor, rows: Tensor | None = None, **options) -> DirectionalMI:
    """Directional MI of one sequence: from all masked positions, or from ``rows`` alone.

    Parameters
    ----------
    model : MaskedModel
    tokens : LongTensor of shape (L,)
    rows : LongTensor of shape (R,), optional
        Masked source positions; all by default. Each row is exact.
    **options
        As in ``probe_rows``.

    Returns
    -------
    DirectionalMI
        Of shape (L, L), zero outside the probed rows.
    """
    if tokens.dim() != 1:
        raise ValueError(f"tokens must have shape (L,), got {tuple(tokens.shape)}")
    source = (tokens == model.mask_id).nonzero().flatten() if rows is None else rows
    part = probe_rows(model, tokens[None], torch.zeros_like(source), source, **options)
    full = {name: part.of(name).new_zeros(len(tokens), len(tokens)) for name in ESTIMATORS}
    for name in ESTIMATORS:
        full[name][source] = part.of(name)
    return DirectionalMI(**full, passes=part.passes)


def symmetrize(directional: Tensor) -> Tensor:
    """Mean of a directional matrix (..., L, L) with its transpose, clamped at zero."""
    return ((directional + directional.transpose(-1, -2)) / 2).clamp(min=0)


def mutual_information(model: MaskedModel, tokens: Tensor, estimator: str = "entropy", **options) -> Tensor:
    """The ground-truth MI matrix M_GT of each sequence, in nats.

    Parameters
    ----------
    model : MaskedModel
    tokens : LongTensor of shape (L,) or (B, L)
    estimator : {"entropy", "mixture", "kl"}
    **options
        As in ``probe_rows``.

    Returns
    -------
    Tensor of shape (L, L) or (B, L, L)
        Symmetric, non-negative, zero on the diagonal and at observed positions.
    """
    check_estimator(estimator)
    require("rows" not in options, "rows", options.get("rows"), "none: symmetry needs every row (see `probe`)")
    if tokens.dim() == 1:
        return symmetrize(probe(model, tokens, **options).of(estimator))
    return torch.stack([mutual_information(model, row, estimator, **options) for row in tokens])


def diagnose(directional: DirectionalMI, masked: Tensor, estimator: str = "entropy") -> Diagnostics:
    """Diagnostics of one fully probed sequence.

    Parameters
    ----------
    directional : DirectionalMI
        Of shape (L, L), from ``probe``.
    masked : BoolTensor of shape (L,)
    estimator : {"entropy", "mixture", "kl"}
    """
    A = directional.of(estimator)
    pairs = masked[:, None] & masked & ~torch.eye(len(masked), dtype=torch.bool, device=masked.device)
    if not pairs.any():
        return Diagnostics(0.0, 0.0, 0.0)
    total = (A + A.T).norm()
    return Diagnostics(
        negative_share=(A[pairs] < -1e-6).float().mean().item(),
        asymmetry=((A - A.T).norm() / total).item() if total > 0 else 0.0,
        inconsistency=(directional.kl - directional.mixture)[pairs].mean().item(),
    )
