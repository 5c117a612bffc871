"""Masked language models of ``transformers`` behind the seam: BERT-like ones and ESM-2."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mi_lib.masked import MaskedOutput, check_tokens, require

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # of a hub repository; never a pickle


@dataclass(frozen=True)
class MaskedLMConfig:
    """What a head must know of a wrapped model.

    Attributes
    ----------
    width : int
        D, of the hidden states.
    layer : int
        Which of the model's hidden states: 0 is the embedding, ``-1`` the last.
    """

    width: int
    layer: int = -1


class MaskedLM(nn.Module):
    """A ``transformers`` model with a masked-language-model head as a ``MaskedModel``.

    Sequences are token ids without the model's own special tokens: those that the tokenizer sets around a sequence (cls
    and sep, cls and eos) are added inside and stripped from what comes back. Sequences of a call have one length.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Such as ``BertForMaskedLM`` or ``EsmForMaskedLM``, in float32. Kept, not copied.
    tokenizer : transformers.PreTrainedTokenizerBase
    vocab : sequence of int or str, optional
        Ids, or tokens, that may be sampled, such as the 20 amino acids; by default every id of the tokenizer but its
        special tokens.
    layer : int
        The hidden state that a head reads: 0 is the embedding, ``-1`` (the default) the last.

    Raises
    ------
    ValueError
        If there is no mask token, the vocabulary is empty, repeats an id, holds a special token or one that does not
        exist, the layer does not exist, or the weights are not float32.
    """

    def __init__(self, model: nn.Module, tokenizer, vocab: Sequence[int | str] | None = None, layer: int = -1):
        super().__init__()
        if tokenizer.mask_token_id is None:
            raise ValueError(f"{type(tokenizer).__name__} has no mask token: a masked model needs one")
        dtype = next(model.parameters()).dtype
        require(dtype == torch.float32, "model.dtype", dtype, "torch.float32: MI needs it; call model.float()")
        n = model.config.num_hidden_layers + 1
        require(-n <= layer < n, "layer", layer, f"{-n} to {n - 1}: the embedding and {n - 1} layers")
        self.model = model
        self.config = MaskedLMConfig(model.config.hidden_size, layer)
        self.mask_id = tokenizer.mask_token_id
        self.n_ids = model.config.vocab_size
        before, after = special_tokens(tokenizer)
        self.register_buffer("before", torch.tensor(before, dtype=torch.long), persistent=False)
        self.register_buffer("after", torch.tensor(after, dtype=torch.long), persistent=False)
        self.register_buffer("vocab", choose_vocab(tokenizer, self.n_ids, vocab), persistent=False)
        longest = min(getattr(model.config, "max_position_embeddings", 10**9), tokenizer.model_max_length)
        self.max_length = longest - len(before) - len(after)
        self.train(model.training)

    def forward(self, tokens: Tensor) -> MaskedOutput:
        """Logits over the vocabulary, (B, L, V) in float32, and hidden states, (B, L, D).

        Raises
        ------
        ValueError
            If ``tokens`` is not int64 of shape (B, L), an id is out of range, L is 0 or beyond the model's range, or
            the model returns logits of another shape or no hidden states.
        """
        B, L = check_tokens(self, tokens).shape
        require(1 <= L <= self.max_length, "length", L, f"1 to {self.max_length} tokens")
        wrong = (tokens < 0) | (tokens >= self.n_ids)
        if wrong.any():
            raise ValueError(f"tokens hold the id {int(tokens[wrong][0])}, expected 0 to {self.n_ids - 1}")
        ids = torch.cat([self.before.expand(B, -1), tokens, self.after.expand(B, -1)], 1)
        out = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
        name = type(self.model).__name__
        if out.logits.shape[:2] != ids.shape or out.logits.shape[-1] < self.n_ids:
            expected = (*ids.shape, self.n_ids)
            raise ValueError(f"{name} returned logits of shape {tuple(out.logits.shape)}, expected {expected}")
        if out.hidden_states is None:
            raise ValueError(f"{name} returned no hidden states, although output_hidden_states=True asks for them")
        inside = slice(len(self.before), len(self.before) + L)
        return MaskedOutput(
            logits=out.logits[:, inside, self.vocab].float(),
            hidden=out.hidden_states[self.config.layer][:, inside],
        )


def special_tokens(tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer sets before and after a sequence."""
    ids = tokenizer(tokenizer.mask_token)["input_ids"]
    at, special = ids.index(tokenizer.mask_token_id), set(tokenizer.all_special_ids)
    return [i for i in ids[:at] if i in special], [i for i in ids[at + 1 :] if i in special]


def choose_vocab(tokenizer, n_ids: int, vocab: Sequence[int | str] | None = None) -> Tensor:
    """The ids that may be sampled, shape (V,): those of ``vocab``, or all that are no special tokens."""
    special, known = set(tokenizer.all_special_ids), tokenizer.get_vocab()
    if vocab is None:
        return torch.tensor([i for i in range(min(len(tokenizer), n_ids)) if i not in special])
    require(len(vocab) > 0, "vocab", vocab, "at least one id or token")
    ids = []
    for token in vocab:
        if isinstance(token, str):
            require(token in known, "vocab", token, f"tokens of the tokenizer, which has {len(known)}")
        i = known[token] if isinstance(token, str) else int(token)
        require(0 <= i < n_ids, "vocab", token, f"ids from 0 to {n_ids - 1}")
        require(i not in special, "vocab", token, "no special token: those cannot be sampled")
        require(i not in ids, "vocab", token, "each id once")
        ids.append(i)
    return torch.tensor(ids)


def load_masked_lm(name_or_path: str | Path, vocab: Sequence[int | str] | None = None, layer: int = -1) -> MaskedLM:
    """A masked language model of ``transformers`` in float32 and evaluation mode, on the CPU.

    Parameters
    ----------
    name_or_path : str or Path
        A folder made by ``save_pretrained``, or a name on the model hub, such as ``"facebook/esm2_t6_8M_UR50D"``, which
        is downloaded when used for the first time. Weights are read from safetensors alone.
    vocab, layer
        As in ``MaskedLM``.

    Raises
    ------
    ValueError
        If the folder holds no masked language model with all its weights, or ``MaskedLM`` refuses it.
    ConnectionError
        If the model is neither on this machine nor to be had from the hub.
    """
    try:
        from transformers import AutoModelForMaskedLM, AutoTokenizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"this adapter needs the package transformers ({error}): pip install 'mi-lib[models]'"
        ) from None
    folder = Path(name_or_path) if Path(name_or_path).is_dir() else _fetch(str(name_or_path))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, report = AutoModelForMaskedLM.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            torch_dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{name_or_path} holds no masked language model that transformers can load: {first}") from None
    missing = [*report["missing_keys"], *report["mismatched_keys"]]
    if missing:
        raise ValueError(f"{name_or_path} is no complete masked language model: it lacks the weights {missing[0]!r}")
    return MaskedLM(model.eval().requires_grad_(False), tokenizer, vocab, layer)


def _fetch(name: str) -> Path:
    """The folder of a hub model, downloaded unless it is on this machine; no retries, so that it fails in seconds."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except HFValidationError:
        raise ValueError(f"model={name!r}, expected a folder with a saved model, or OWNER/NAME on the hub") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, ConnectionError) as error:
        raise ConnectionError(
            f"model {name!r} is no folder, is not on this machine, and the model hub does not give it "
            f"({type(error).__name__}): run once with network, or give the folder of a saved model"
        ) from None
