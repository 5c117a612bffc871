"""ESM-C behind the seam: ``esm``'s protein language models as masked models over the 20 amino acids."""

import pickle
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType

import torch
from torch import Tensor, nn

from mi_lib.artifacts import checkpoint_names, load_checkpoint, load_weights, read_tensors
from mi_lib.masked import MaskedOutput, check_tokens, require
from mi_lib.proteins import FIRST_ID, IDS, MASK_ID, MAX_LENGTH

CLS_ID, EOS_ID = 0, 2
END_ID = FIRST_ID + len(IDS)  # amino acids are FIRST_ID to END_ID - 1
HUB_MODELS = ("esmc_300m", "esmc_600m")


@dataclass(frozen=True)
class ESMCConfig:
    """Sizes of an ESM-C; the defaults are those of ``esmc_mini``.

    Attributes
    ----------
    width, n_heads, n_layers : int
    scale_residual : bool
        Divide what a block adds by ``sqrt(n_layers / 36)``, as ``esm`` does. At 4 layers that multiplies it by 3, hence
        not here.
    written_attention : bool
        Attention written out instead of PyTorch's fused kernel; the results are the same.
    layer : int, optional
        The block whose output is ``hidden``; by default the embedding after the final norm.
    max_length : int
        Residues. Positions enter as differences only, so a shorter sequence holds nothing unseen, a longer one does.
    """

    width: int = 128
    n_heads: int = 4
    n_layers: int = 4
    scale_residual: bool = False
    written_attention: bool = True
    layer: int | None = None
    max_length: int = MAX_LENGTH

    def __post_init__(self):
        for name in ("width", "n_heads", "n_layers", "max_length"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(
            self.width % (2 * self.n_heads) == 0, "width", self.width, f"a multiple of 2 n_heads={2 * self.n_heads}"
        )
        layers = range(self.n_layers)
        require(self.layer is None or self.layer in layers, "layer", self.layer, f"0 to {self.n_layers - 1}, or None")


SIZES = {
    "esmc_300m": ESMCConfig(960, 15, 30, scale_residual=True, written_attention=False, max_length=2_046),
    "esmc_600m": ESMCConfig(1_152, 18, 36, scale_residual=True, written_attention=False, max_length=2_046),
}  # trained on 2,048 tokens, cls and eos included


class ESMCModel(nn.Module):
    """An ESM-C as a ``MaskedModel``: amino acids in, logits over the 20 of them out; cls and eos are its own affair.

    ``hidden`` is by default the embedding after the final norm: all that the model's own output head reads, so that it
    holds whatever the marginals need, at a scale that does not depend on the depth. Other layers are the blocks'
    outputs, before any norm.

    Parameters
    ----------
    config : ESMCConfig
    esmc : esm.models.esmc.ESMC, optional
        Made from ``config``, with PyTorch's default initialisation, if not given.
    """

    mask_id = MASK_ID

    def __init__(self, config: ESMCConfig = ESMCConfig(), esmc: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.esmc = build(config) if esmc is None else esmc
        self.register_buffer("vocab", IDS.clone(), persistent=False)

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks."""
        return self.esmc.transformer.blocks

    def forward(self, tokens: Tensor) -> MaskedOutput:
        """Logits over the amino acids, (B, L, 20), and hidden states, (B, L, D), of sequences of equal length.

        Raises
        ------
        ValueError
            If ``tokens`` is not int64 of shape (B, L), L is 0 or beyond the model's range, or an id is neither an amino
            acid nor the mask.
        """
        B, L = check_tokens(self, tokens).shape
        require(1 <= L <= self.config.max_length, "length", L, f"1 to {self.config.max_length} residues")
        known = ((tokens >= FIRST_ID) & (tokens < END_ID)) | (tokens == MASK_ID)
        if not known.all():
            expected = f"{FIRST_ID} to {END_ID - 1} (amino acids) or {MASK_ID} (mask)"
            raise ValueError(f"tokens hold the id {int(tokens[~known][0])}, expected {expected}")
        cls, eos = tokens.new_full((B, 1), CLS_ID), tokens.new_full((B, 1), EOS_ID)
        out = self.esmc(sequence_tokens=torch.cat([cls, tokens, eos], 1))
        hidden = out.embeddings if self.config.layer is None else out.hidden_states[self.config.layer]
        logits = out.sequence_logits[:, 1:-1, FIRST_ID:END_ID]
        return MaskedOutput(logits.float(), hidden[:, 1:-1])


def build(config: ESMCConfig) -> nn.Module:
    """An ``esm.models.esmc.ESMC`` of these sizes with PyTorch's default initialisation."""
    ESMC, tokenizer = _esm()
    esmc = ESMC(config.width, config.n_heads, config.n_layers, tokenizer(), use_flash_attn=False)
    for block in esmc.transformer.blocks:
        if not config.scale_residual:
            block.scaling_factor = 1.0
        if config.written_attention:
            block.attn.forward = MethodType(written_attention, block.attn)
    return esmc


def written_attention(attention: nn.Module, x: Tensor, sequence_id: Tensor | None = None) -> Tensor:
    """What ``esm``'s MultiHeadAttention computes where no token is padding, (B, L, D) to (B, L, D).

    On a CPU in bfloat16 a training step takes about half the time of one with the fused kernel, at 77 tokens.
    """
    q, k, v = attention.layernorm_qkv(x).chunk(3, dim=-1)
    q, k = attention._apply_rotary(attention.q_ln(q).to(q.dtype), attention.k_ln(k).to(k.dtype))
    q, k, v = (t.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2) for t in (q, k, v))  # (B, H, L, D/H)
    weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)).softmax(-1)  # (B, H, L, L)
    return attention.out_proj((weights.to(v.dtype) @ v).transpose(1, 2).flatten(2))


def load_esmc(name: str | Path, layer: int | None = None, folder: Path | None = None) -> ESMCModel:
    """An ESM-C by name or path, in float32 on the CPU and in evaluation mode.

    Parameters
    ----------
    name : str or Path
        ``"esmc_300m"`` or ``"esmc_600m"``, which ``esm`` downloads from the model hub when used for the first time
        (their weights are under the Cambrian Open License); a shipped checkpoint such as ``"esmc_mini"``; or the path
        of a ``.pth`` or ``.safetensors`` file with the weights of one of the former, or of a checkpoint with sidecar.
    layer : int, optional
        The block whose output is ``hidden``; by default as in the checkpoint, else the final normed embedding.
    folder : Path, optional
        Of the checkpoints.

    Raises
    ------
    ValueError
        If there is no such model or file, the weights do not fit, or the layer does not exist.
    ConnectionError
        If the weights are not on this machine and the hub cannot be reached.
    """
    path, shipped = Path(name), checkpoint_names("esmc", folder)
    if name in HUB_MODELS:
        model = _from_hub(name)
    elif name in shipped:
        model = load_checkpoint(name, "esmc", lambda config: ESMCModel(ESMCConfig(**config)), folder)
    elif path.suffix in (".pth", ".safetensors"):
        model = _from_file(path)
    else:
        known = ", ".join([*HUB_MODELS, *shipped])
        raise ValueError(f"model={str(name)!r}, expected one of {known}, or the path of a .pth or .safetensors file")
    if layer is not None:
        model.config = replace(model.config, layer=layer)
    return model.eval().requires_grad_(False)


def _esm():
    try:
        from esm.models.esmc import ESMC
        from esm.tokenization import EsmSequenceTokenizer
    except ModuleNotFoundError as error:
        raise ImportError(f"ESM-C needs the package esm ({error}): pip install 'mi-lib[proteins]'") from None
    return ESMC, EsmSequenceTokenizer


def _from_hub(name: str) -> ESMCModel:
    _esm()
    from esm import pretrained
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    builder = {"esmc_300m": pretrained.ESMC_300M_202412, "esmc_600m": pretrained.ESMC_600M_202412}[name]
    try:  # on the CPU: `from_pretrained` on a GPU casts to bfloat16, which rounds the rotary frequencies for good
        esmc = builder(device="cpu", use_flash_attn=False)
    except (LocalEntryNotFoundError, HfHubHTTPError, ConnectionError) as error:
        raise ConnectionError(
            f"the weights of {name} are not on this machine and the model hub cannot be reached "
            f"({type(error).__name__}): run it once with network, or give the path of its .pth file, or use esmc_mini"
        ) from None
    except (RuntimeError, FileNotFoundError, pickle.UnpicklingError, zipfile.BadZipFile, EOFError) as error:
        reason = str(error).strip().splitlines()[:2]
        raise ValueError(f"the hub's weights of {name} do not fit the model: {' '.join(reason)}") from None
    return ESMCModel(SIZES[name], esmc.float())


def _from_file(path: Path) -> ESMCModel:
    if path.suffix == ".safetensors" and path.with_suffix(".json").is_file():
        return load_checkpoint(path.stem, "esmc", lambda config: ESMCModel(ESMCConfig(**config)), path.parent)
    tensors = _read_pth(path) if path.suffix == ".pth" else read_tensors(path)
    embedding = tensors.get("embed.weight")
    width = embedding.shape[1] if embedding is not None and embedding.dim() == 2 else None
    config = next((config for config in SIZES.values() if config.width == width), None)
    if config is None:
        raise ValueError(
            f"{path} does not hold an ESM-C of a known size: embed.weight is {width} wide, expected "
            f"{' or '.join(str(config.width) for config in SIZES.values())}"
        )
    with torch.device("meta"):  # the weights come from the file
        esmc = build(config)
    esmc.to_empty(device="cpu")
    for block in esmc.transformer.blocks:
        block.attn.rotary.reset_parameters()  # its frequencies are computed, not stored
    load_weights(esmc, tensors, str(path))
    return ESMCModel(config, esmc)


def _read_pth(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``torch.save`` file; anything else in it is refused, not unpickled."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is damaged or holds more than tensors ({str(error).splitlines()[0]})") from None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"{path} does not hold tensors by name")
    return tensors
