"""Plain, slow versions of what mi_lib does in batches: each is one sequence, one pair or one rule at a time."""

import math
from collections import defaultdict

import numpy as np
import torch
from pysat.solvers import Cadical153
from torch import Tensor

from mi_lib.head import MIHead


def pair_mi(sequences, probability, evidence: dict[int, int], i: int, j: int) -> float:
    """True MI of positions i and j given ``evidence`` (position -> value), in nats, by enumeration."""
    joint, left, right = defaultdict(float), defaultdict(float), defaultdict(float)
    for x, p in zip(sequences.tolist(), probability.tolist(), strict=True):
        if all(x[k] == v for k, v in evidence.items()):
            joint[x[i], x[j]] += p
            left[x[i]] += p
            right[x[j]] += p
    total = sum(joint.values())
    return sum(p / total * math.log(p * total / (left[a] * right[b])) for (a, b), p in joint.items() if p > 0)


def distribution(model, tokens: Tensor) -> np.ndarray:
    """p(X_j = v | tokens) of one sequence (L,), in float64, shape (L, V)."""
    with torch.inference_mode():
        logits = model(tokens[None]).logits[0].double().numpy()
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def nats(p) -> float:
    """Entropy of one distribution."""
    return -sum(x * math.log(x) for x in p if x > 0)


def divergence(p, q) -> float:
    """KL(p || q) of one pair of distributions."""
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def directional_mi(model, tokens: Tensor, tail: float = 0.0) -> dict[str, np.ndarray]:
    """The three estimators by a double loop over source and target, each (L, L); plus ``inconsistency``.

    A value with probability below ``tail`` counts as leaving the other positions as they were.
    """
    L, hidden = len(tokens), [k for k, t in enumerate(tokens.tolist()) if t == model.mask_id]
    base = distribution(model, tokens)
    result = {name: np.zeros((L, L)) for name in ("entropy", "mixture", "kl", "inconsistency")}
    for i in hidden:
        given = []  # p(. | X_i = v) for each v that is possible
        for v, token in enumerate(model.vocab.tolist()):
            if base[i, v] > 0:
                written = tokens.clone()
                written[i] = token
                given.append((base[i, v], base if base[i, v] < tail else distribution(model, written)))
        for j in hidden:
            if i != j:
                spread = sum(w * nats(q[j]) for w, q in given)
                mixture = sum(w * q[j] for w, q in given)
                result["entropy"][i, j] = nats(base[j]) - spread
                result["mixture"][i, j] = nats(mixture) - spread
                result["kl"][i, j] = sum(w * divergence(q[j], base[j]) for w, q in given)
                result["inconsistency"][i, j] = divergence(mixture, base[j])
    return result


def ascending(entropy: dict[int, float]) -> list[int]:
    """Positions by entropy, lowest first; the leftmost of equals first."""
    return sorted(entropy, key=lambda i: (entropy[i], i))


def top_k(entropy: dict[int, float], k: int) -> set[int]:
    """``entropy`` holds the masked positions alone, here and below."""
    return set(ascending(entropy)[:k])


def entropy_bounded(entropy: dict[int, float], gamma: float) -> set[int]:
    order = ascending(entropy)
    for n in range(len(order), 0, -1):
        prefix = [entropy[i] for i in order[:n]]
        if n == 1 or sum(prefix) - max(prefix) <= gamma:
            return set(order[:n])
    raise AssertionError("no masked position")


def threshold(confidence: dict[int, float], tau: float) -> set[int]:
    best = min(confidence, key=lambda i: (-confidence[i], i))
    return {best} | {i for i, p in confidence.items() if p > tau}


def mi_guided(entropy: dict[int, float], mi, gamma: float, lam: float) -> set[int]:
    chosen, remaining = [], gamma
    for i in ascending(entropy):
        cost = entropy[i] + lam * sum(float(mi[i][j]) for j in chosen)
        if not chosen or cost <= remaining:
            chosen.append(i)
            remaining -= cost
    return set(chosen)


def decode_one(model, tokens: Tensor, rule, temperature: float = 0.0, noise=None) -> tuple[list[int], int, list[int]]:
    """Decode one sequence (L,); ``rule`` maps position -> entropy to the chosen set. Returns tokens, passes, steps."""
    tokens, steps, passes = tokens.clone(), [-1] * len(tokens), 0
    while (tokens == model.mask_id).any():
        p = distribution(model, tokens)
        passes += 1
        hidden = [k for k, t in enumerate(tokens.tolist()) if t == model.mask_id]
        for i in rule({k: nats(p[k]) for k in hidden}):
            with np.errstate(divide="ignore"):
                score = np.log(p[i]) + (0 if noise is None else temperature * noise[i])
            tokens[i] = int(model.vocab[int(np.argmax(score))])
            steps[i] = passes - 1
    return tokens.tolist(), passes, steps


def head_score(head: MIHead, x: Tensor, y: Tensor) -> Tensor:
    """MI that the head's documented formula gives for two hidden states (D,)."""

    def layer_norm(z, layer):
        centred = z - z.mean()
        return centred / (centred.square().mean() + layer.eps).sqrt() * layer.weight + layer.bias

    a, b = (
        layer_norm(head.project.weight @ layer_norm(z, head.norm_hidden) + head.project.bias, head.norm) for z in (x, y)
    )
    features = torch.cat([a + b, (a - b).abs(), a * b])
    z = layer_norm(head.pair.weight @ features + head.pair.bias, head.norm_pair)
    z = z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    return torch.log1p(torch.exp(head.out.weight[0] @ z + head.out.bias[0]))


def sat_solutions(puzzle, limit: int = 2) -> list[list[int]]:
    """Up to ``limit`` solutions of a 9x9 puzzle, by a SAT solver: one variable a cell and digit."""

    def var(row, col, digit):
        return 81 * row + 9 * col + digit

    nine, clauses = range(9), []
    for r in nine:
        for c in nine:
            clauses.append([var(r, c, d) for d in range(1, 10)])
            clauses += [[-var(r, c, d), -var(r, c, e)] for d in range(1, 10) for e in range(d + 1, 10)]
    units = [[(r, c) for c in nine] for r in nine] + [[(r, c) for r in nine] for c in nine]
    units += [[(3 * (b // 3) + k // 3, 3 * (b % 3) + k % 3) for k in nine] for b in nine]
    for unit in units:
        clauses += [[var(r, c, d) for r, c in unit] for d in range(1, 10)]
    clauses += [[var(k // 9, k % 9, int(d))] for k, d in enumerate(puzzle) if d]
    found = []
    with Cadical153(bootstrap_with=clauses) as solver:
        while len(found) < limit and solver.solve():
            true = [v for v in solver.get_model() if v > 0]
            found.append([(v - 1) % 9 + 1 for v in sorted(true)])
            solver.add_clause([-v for v in true])
    return found
