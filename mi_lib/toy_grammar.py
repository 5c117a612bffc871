"""A toy grammar whose mutual information is known exactly: letters that pair with letters elsewhere, and free ones."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mi_lib.huggingface import MaskedLM
from mi_lib.masked import MaskedModel, MaskedOutput, require, vocab_index
from mi_lib.mdm import forward_process
from mi_lib.metrics import solve_rate
from mi_lib.samplers import Policy, decode

UNIFORM = (0.25, 0.25, 0.25, 0.25)


@dataclass(frozen=True)
class Grammar:
    """Sequences over ``ACGU``: some letters pair (A with U, C with G) with an earlier one, all others are free.

    Attributes
    ----------
    length : int
        L.
    links : tuple of (int, int, float)
        ``(i, j, noise)``: the letter at j is the partner of the letter at i, except with probability ``noise``, when it
        is any of the other three. A position has at most one link from an earlier position.
    free : dict of int to tuple of float
        Probabilities of A, C, G, U at positions that follow no other; uniform by default.

    Notes
    -----
    By default three nested pairs, nearly always kept ("a stem"), a noisy chain 3 - 5 - 7, and three free letters: two
    of them skewed. With all letters unknown a stem pair has an MI of 1.32 nats.
    """

    length: int = 12
    links: tuple[tuple[int, int, float], ...] = (
        (0, 11, 0.01),
        (1, 10, 0.01),
        (2, 9, 0.01),
        (3, 5, 0.1),
        (5, 7, 0.2),
    )
    free: tuple[tuple[int, tuple[float, ...]], ...] = ((6, (0.7, 0.1, 0.1, 0.1)), (8, (0.05, 0.15, 0.3, 0.5)))

    letters = "ACGU"  # the partner of letter v is letter 3 - v

    def __post_init__(self):
        for i, j, noise in self.links:
            require(0 <= i < j < self.length, "links", (i, j), f"0 <= i < j < length={self.length}")
            require(0 <= noise <= 1, "noise", noise, "a probability")
        targets = [j for _, j, _ in self.links]
        require(len(set(targets)) == len(targets), "links", targets, "at most one link to a position")

    @property
    def stem(self) -> list[tuple[int, int]]:
        """The pairs that are nearly always kept: links with a noise below 0.05."""
        return [(i, j) for i, j, noise in self.links if noise < 0.05]

    def components(self) -> list[list[int]]:
        """Positions in groups that depend on each other; groups are independent."""
        group = list(range(self.length))
        for i, j, _ in sorted(self.links, key=lambda link: link[1]):
            group[j] = group[i]
        return [[p for p in range(self.length) if group[p] == g] for g in sorted(set(group))]

    def table(self, component: list[int]) -> tuple[Tensor, Tensor]:
        """All letters that a component may hold, (N, n), and their probabilities, (N,) in float64."""
        letters = torch.tensor(list(product(range(4), repeat=len(component))))
        probability = torch.ones(len(letters), dtype=torch.float64)
        parents = {j: (i, noise) for i, j, noise in self.links}
        for column, position in enumerate(component):
            if position in parents:
                i, noise = parents[position]
                pairs = (letters[:, column] == 3 - letters[:, component.index(i)]).double()
                probability *= pairs * (1 - noise) + (1 - pairs) * noise / 3
            else:
                free = torch.tensor(dict(self.free).get(position, UNIFORM), dtype=torch.float64)
                probability *= free[letters[:, column]]
        return letters, probability

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """``n`` sequences of letter numbers 0 to 3, shape (n, L)."""
        sequences = torch.empty(n, self.length, dtype=torch.long)
        for component in self.components():
            letters, probability = self.table(component)
            sequences[:, component] = letters[rng.choice(len(letters), size=n, p=probability.numpy())]
        return sequences

    def paired(self, sequences: Tensor) -> Tensor:
        """Whether all pairs of the stem are kept, BoolTensor (n,), for letter numbers (n, L)."""
        return torch.stack([sequences[:, i] == 3 - sequences[:, j] for i, j in self.stem]).all(0)

    def divergence(self, sequences: Tensor) -> float:
        """KL divergence, in nats, of the frequencies of ``sequences`` (n, L) from the grammar, summed over components.

        Notes
        -----
        A finite sample of the grammar itself does not have zero: about (number of outcomes - 1) / 2n a component.
        """
        total = 0.0
        for component in self.components():
            letters, probability = self.table(component)
            place = 4 ** torch.arange(len(component)).flip(0)
            count = torch.bincount((sequences[:, component] * place).sum(-1), minlength=len(letters))
            q = count.double() / len(sequences)
            total += torch.special.xlogy(q, q / probability).sum().item()
        return total


class GrammarModel:
    """The grammar's own conditional distributions as a ``MaskedModel``: every masked model needs these lines.

    Parameters
    ----------
    grammar : Grammar
    vocab : LongTensor of shape (4,)
        The token id of each letter.
    mask_id : int
    """

    def __init__(self, grammar: Grammar, vocab: Tensor, mask_id: int):
        self.grammar, self.vocab, self.mask_id = grammar, vocab, mask_id

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        p = torch.empty(*tokens.shape, len(self.vocab))  # (B, L, V)
        for component in self.grammar.components():
            letters, weight = self.posterior(tokens, component)  # (N, n), (B, N)
            p[:, component] = torch.einsum("bn,nlv->blv", weight, F.one_hot(letters, 4).double()).float()
        return MaskedOutput(logits=p.log(), hidden=p)

    def posterior(self, tokens: Tensor, component: list[int]) -> tuple[Tensor, Tensor]:
        """Letters of a component, (N, n), and their probabilities given the unmasked tokens, (B, N)."""
        letters, probability = self.grammar.table(component)
        seen = tokens[:, None, component]  # (B, 1, n)
        agree = ((seen == self.mask_id) | (seen == self.vocab[letters])).all(-1)
        weight = agree * probability
        return letters, weight / weight.sum(-1, keepdim=True)

    def true_mi(self, tokens: Tensor) -> Tensor:
        """Exact conditional MI of every pair of masked positions, (B, L, L) in nats, by enumeration."""
        mi = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.float64)
        for component in self.grammar.components():
            letters, weight = self.posterior(tokens, component)
            one_hot = F.one_hot(letters, 4).double()
            for a, i in enumerate(component):
                for b, j in enumerate(component):
                    joint = torch.einsum("bn,nv,nw->bvw", weight, one_hot[:, a], one_hot[:, b])
                    product = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True)
                    mi[:, i, j] = torch.special.xlogy(joint, joint / product.clamp(min=1e-300)).sum((1, 2))
        masked = tokens == self.mask_id
        both = masked[:, :, None] & masked[:, None] & ~torch.eye(tokens.shape[1], dtype=torch.bool)
        return (mi * both).float()


def tiny_bert(width: int = 64, n_layers: int = 2, seed: int = 0) -> MaskedLM:
    """An untrained BERT over the grammar's letters, wrapped."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *Grammar.letters]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(words))
        tokenizer = BertTokenizerFast(str(file), do_lower_case=False)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bert = BertForMaskedLM(config)
    return MaskedLM(bert.eval(), tokenizer, vocab=list(Grammar.letters))


def train_on(
    model: MaskedModel,
    grammar: Grammar,
    steps: int,
    batch_size: int = 64,
    lr: float = 3e-3,
    seed: int = 0,
    progress: Callable[[int], None] = lambda steps: None,
) -> list[float]:
    """Train a masked model on samples of the grammar: masked cross-entropy, all mask rates equally often.

    Parameters
    ----------
    model : MaskedModel
        An nn.Module; its weights change.
    grammar : Grammar
    steps, batch_size : int
    lr : float
        Peak learning rate; it falls along a cosine to zero.
    seed : int
    progress : callable
        Called with 1 after each step.

    Returns
    -------
    list of float
        The loss of each step, in nats a masked position.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    column, losses = vocab_index(model.vocab), []
    for step in range(steps):
        rng = np.random.default_rng([seed, step])
        tokens = model.vocab[grammar.sample(batch_size, rng)]
        noisy = masked_at_random(model, tokens, rng)
        logits, masked = model(noisy).logits, noisy == model.mask_id
        loss = F.cross_entropy(logits[masked], column[tokens[masked]])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        progress(1)
    return losses


def masked_at_random(model: MaskedModel, tokens: Tensor, rng: np.random.Generator, fewest: int = 1) -> Tensor:
    """Mask ``fewest`` to L random positions of each sequence (B, L), every number equally often."""
    B, L = tokens.shape
    rate = torch.from_numpy(rng.integers(fewest, L + 1, size=B) / L)
    return forward_process(tokens, rate, model.mask_id, torch.Generator().manual_seed(int(rng.integers(2**62))))


def grammar_states(model: MaskedModel, n: int, seed: int, grammar: Grammar = Grammar()) -> Tensor:
    """Partly masked samples to label, (n, L), each with at least two masked positions."""
    rng = np.random.default_rng([20_270_000, seed])
    return masked_at_random(model, model.vocab[grammar.sample(n, rng)], rng, fewest=2)


def compare(
    model: MaskedModel,
    grammar: Grammar,
    methods: list[tuple[str, str, Policy]],
    n: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda methods: None,
) -> pd.DataFrame:
    """Sequences that methods write from nothing, at temperature 1 with common random numbers, against the grammar.

    Parameters
    ----------
    model : MaskedModel
    grammar : Grammar
    methods : list of (str, str, Policy)
        Name, parameters, policy.
    n : int
        Sequences a method.
    seed : int
    progress : callable
        Called with 1 after each method.

    Returns
    -------
    DataFrame
        A row a method: ``method``, ``parameters``, ``passes``, ``paired`` (share that keeps the stem) with its 95 %
        interval ``low`` and ``high``, and ``kl`` (``Grammar.divergence``, in nats).
    """
    start = torch.full((n, grammar.length), model.mask_id)
    column, rows = vocab_index(model.vocab), []
    seeds = np.random.default_rng([seed, n]).integers(2**62, size=n).tolist()
    for name, parameters, policy in methods:
        done = decode(model, start, policy, temperature=1.0, seeds=seeds, batch_size=256)
        letters = column[done.tokens]
        share, low, high = solve_rate(grammar.paired(letters).numpy())
        row = {"method": name, "parameters": parameters, "passes": done.nfe.double().mean().item()}
        rows.append(row | {"paired": share, "low": low, "high": high, "kl": grammar.divergence(letters)})
        progress(1)
    return pd.DataFrame(rows)
