"""ESM-C behind the seam: it equals a plain call of esm's model, and what cannot be loaded gives one clear message."""

import pickle
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from mi_lib.artifacts import save_checkpoint
from mi_lib.esmc import SIZES, ESMCConfig, ESMCModel, load_esmc
from mi_lib.head import HeadConfig, MIHead
from mi_lib.masked import marginals
from mi_lib.policies import Sequential
from mi_lib.proteins import AMINO_ACIDS, encode
from mi_lib.samplers import decode

TINY = {"width": 32, "n_heads": 2, "n_layers": 2}


def tiny(**options) -> ESMCModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ESMCModel(ESMCConfig(**TINY, **options))
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter *= 3  # untrained blocks hardly look at the other tokens
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def model():
    return tiny()


def random_proteins(n: int, length: int, seed: int = 0, masked: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 24, (n, length), generator=generator)
    return torch.where(torch.rand(n, length, generator=generator) < masked, 32, tokens)


@pytest.mark.parametrize("options", [{}, {"written_attention": False}, {"scale_residual": True}])
def test_it_is_esm_with_cls_and_eos_by_hand(options):
    """A plain ESMC with the same weights, called as esm's documentation does."""
    from esm.models.esmc import ESMC
    from esm.tokenization import EsmSequenceTokenizer

    model, tokenizer = tiny(**options), EsmSequenceTokenizer()
    plain = ESMC(32, 2, 2, tokenizer, use_flash_attn=False).eval()
    plain.load_state_dict(model.esmc.state_dict())
    if not options.get("scale_residual"):
        for block in plain.transformer.blocks:
            block.scaling_factor = 1.0
    tokens = random_proteins(3, 11)
    by_hand = torch.tensor([[0, *row, 2] for row in tokens.tolist()])
    out, expected = model(tokens), plain(sequence_tokens=by_hand)
    amino_acids = [tokenizer.convert_tokens_to_ids(letter) for letter in AMINO_ACIDS]
    torch.testing.assert_close(out.logits, expected.sequence_logits[:, 1:12][..., amino_acids], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.hidden, expected.embeddings[:, 1:12], rtol=1e-4, atol=1e-4)
    assert out.logits.std() > 0.1


def test_text_becomes_the_tokens_of_esm(model):
    from esm.tokenization import EsmSequenceTokenizer

    tokenizer = EsmSequenceTokenizer()
    assert tokenizer.encode(AMINO_ACIDS) == [0, *encode([AMINO_ACIDS])[0].tolist(), 2]
    assert model.vocab.tolist() == tokenizer.convert_tokens_to_ids(list(AMINO_ACIDS))
    assert model.mask_id == tokenizer.mask_token_id


def test_residual_scaling_is_what_the_configuration_says():
    """esm divides by sqrt(n_layers / 36): at 2 layers that multiplies by 4.24."""
    factors = [{b.scaling_factor for b in tiny(scale_residual=scaled).blocks} for scaled in (True, False)]
    assert factors[1] == {1.0}
    assert [1 / factor for factor in factors[0]] == [pytest.approx(4.242641)]


@pytest.mark.parametrize("layer", [0, 1])
def test_other_layers_are_outputs_of_blocks(layer):
    model, tokens = tiny(layer=layer), random_proteins(2, 7)
    seen = []
    model.blocks[layer].register_forward_hook(lambda block, inputs, output: seen.append(output))
    hidden = model(tokens).hidden
    assert torch.equal(hidden, seen[0][:, 1:-1])
    assert not torch.allclose(hidden, tiny()(tokens).hidden)


def test_the_default_layer_is_what_the_output_head_reads(model):
    out = model(random_proteins(2, 7))
    logits = model.esmc.sequence_head(out.hidden)[..., 4:24]
    torch.testing.assert_close(logits, out.logits, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 100), st.integers(0, 5))
def test_a_protein_alone_equals_it_in_a_batch(length, seed):
    model, tokens = tiny(), random_proteins(4, length, seed)
    together = model(tokens)
    for b in range(4):
        alone = model(tokens[b : b + 1])
        torch.testing.assert_close(alone.logits[0], together.logits[b], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone.hidden[0], together.hidden[b], rtol=1e-4, atol=1e-4)


def test_bfloat16_still_gives_float32_logits(model):
    tokens = random_proteins(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens)
    assert out.logits.dtype == torch.float32
    torch.testing.assert_close(out.logits, model(tokens).logits, rtol=0.1, atol=0.1)


def test_the_seam(model):
    """A decode of it ends with amino acids only, and a head of its width reads its hidden states."""
    tokens = random_proteins(3, 12, masked=1.0)
    decoded = decode(model, tokens, Sequential(), temperature=1.0)
    assert ((decoded.tokens >= 4) & (decoded.tokens < 24)).all()
    assert (decoded.nfe == 12).all()
    log_p, hidden = marginals(model, tokens)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, 12))
    mi = MIHead(HeadConfig(width=model.config.width, h=8))(hidden, tokens == 32)
    assert mi.shape == (3, 12, 12)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.full((1, 4), 0), r"tokens hold the id 0, expected 4 to 23 \(amino acids\) or 32 \(mask\)"),
        (torch.tensor([[4, 24]]), "the id 24, expected"),
        (torch.tensor([[4, 31]]), "the id 31"),
        (torch.tensor([[-1]]), "the id -1"),
        (torch.full((1, 0), 4), "length=0, expected 1 to 100 residues"),
        (torch.full((1, 101), 4), "length=101, expected 1 to 100 residues"),
        (torch.full((4,), 4), r"tokens must be int64 of shape \(B, L\)"),
        (torch.full((1, 4), 4.0), r"tokens must be int64 .* got torch.float32"),
    ],
)
def test_bad_tokens_are_named(model, tokens, message):
    with pytest.raises(ValueError, match=message):
        model(tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 30, "n_heads": 4}, "width=30, expected a multiple of 2 n_heads=8"),
        ({"n_layers": 0}, "n_layers=0, expected at least 1"),
        ({"layer": 4}, "layer=4, expected 0 to 3, or None"),
        ({"layer": -1}, "layer=-1"),
    ],
)
def test_bad_sizes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ESMCConfig(**options)


@pytest.mark.parametrize("name", ["esmc_300m", "esmc_600m"])
def test_the_sizes_of_the_hub(name):
    """Parameters counted by hand: embedding, blocks, norm, output head."""
    d, n = {"esmc_300m": (960, 30), "esmc_600m": (1152, 36)}[name]
    h = -(-8 * d // 3 // 256) * 256
    block = 4 * d * d + 3 * d * h + 6 * d  # attention, feed-forward, norms
    expected = 64 * d + n * block + d + (d * d + d + 2 * d + 64 * d + 64)
    with torch.device("meta"):
        model = ESMCModel(SIZES[name])
    assert sum(p.numel() for p in model.esmc.parameters()) == expected


# Loading


@pytest.fixture
def shipped(tmp_path, model):
    save_checkpoint("mine", model, "esmc", asdict(model.config), tmp_path)
    return tmp_path


def test_a_checkpoint_comes_back_rounded(shipped, model):
    tokens = random_proteins(2, 20)
    for loaded in (load_esmc("mine", folder=shipped), load_esmc(shipped / "mine.safetensors")):
        assert not loaded.training
        assert loaded.config == model.config
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[name].half().float())
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0.02, atol=0.02)
        inv_freq = loaded.blocks[0].attn.rotary.inv_freq  # 10,000 to the power of -2k / 16, never rounded
        torch.testing.assert_close(inv_freq, 10_000 ** -(torch.arange(8) / 8), rtol=1e-6, atol=0)


def test_the_layer_may_be_chosen_on_loading(shipped, model):
    tokens = random_proteins(2, 20)
    assert load_esmc("mine", layer=1, folder=shipped).config.layer == 1
    a, b = (load_esmc("mine", layer=layer, folder=shipped)(tokens).hidden for layer in (1, None))
    assert not torch.allclose(a, b)
    with pytest.raises(ValueError, match="layer=2, expected 0 to 1"):
        load_esmc("mine", layer=2, folder=shipped)


@pytest.mark.parametrize("name", ["esmc_9b", "mine.pt", "mine.json", ""])
def test_unknown_models_are_named(shipped, name):
    with pytest.raises(ValueError, match=f"model='{name}', expected one of esmc_300m, esmc_600m, mine, or the path"):
        load_esmc(name, folder=shipped)


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"no such file: .*{name}"):
        load_esmc(tmp_path / name)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_nothing_is_unpickled(tmp_path, how):
    path, sprung = tmp_path / "trap.pth", tmp_path / "sprung"
    if how == "torch":
        torch.save({"embed.weight": Trap(sprung)}, path)
    else:
        path.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(ValueError, match=r"trap\.pth is damaged or holds more than tensors"):
        load_esmc(path)
    assert not sprung.exists()


def test_files_that_are_no_esmc_are_named(tmp_path):
    path = tmp_path / "other.pth"
    path.write_bytes(b"PK\x03\x04 not a zip file")
    with pytest.raises(ValueError, match=r"other\.pth is damaged"):
        load_esmc(path)
    torch.save([torch.zeros(2)], path)
    with pytest.raises(ValueError, match=r"other\.pth does not hold tensors by name"):
        load_esmc(path)
    torch.save({"embed.weight": torch.zeros(64, 320)}, path)
    with pytest.raises(ValueError, match=r"embed\.weight is 320 wide, expected 960 or 1152"):
        load_esmc(path)
    torch.save({"embed.weight": torch.tensor(1.0)}, path)
    with pytest.raises(ValueError, match=r"embed\.weight is None wide"):
        load_esmc(path)
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"embed\.weight is None wide"):
        load_esmc(tmp_path / "other.safetensors")
    torch.save({"embed.weight": torch.zeros(64, 960)}, path)
    with pytest.raises(ValueError, match=r"other\.pth does not fit the model: 'sequence_head.0.bias' is None"):
        load_esmc(path)


# The hub's file: a cache as the hub's library lays it out, with a random model of the full size


def random_weights(name: str) -> dict[str, torch.Tensor]:
    """bfloat16 tensors of the layout of a hub model, each a piece of one noise, norms near 1."""
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in ESMCModel(SIZES[name]).esmc.state_dict().items()}
    noise = torch.randn(2**23, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    norms = [k for k, shape in shapes.items() if len(shape) == 1 and k.endswith("weight")]
    weights = {k: noise[: shape.numel()].reshape(shape).clone() for k, shape in shapes.items()}
    return weights | {k: weights[k] + 1 for k in norms}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub cache and no network; returns the folder where the 300M's file belongs."""
    from esm.utils.constants.esm3 import data_root
    from huggingface_hub import constants

    data_root.__wrapped__.cache_clear()
    for name in ("kaiming_uniform_", "normal_"):  # 333 million numbers that the file overwrites
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--EvolutionaryScale--esmc-300m-2024-12"

    def make() -> object:
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        weights = repository / "snapshots" / ("0" * 40) / "data" / "weights"
        weights.mkdir(parents=True)
        return weights / "esmc_300m_2024_12_v0.pth"

    yield make
    data_root.__wrapped__.cache_clear()


def test_the_full_300m_is_loaded_from_the_hub_cache_and_from_a_path(hub):
    weights, path = random_weights("esmc_300m"), hub()
    torch.save(weights, path)
    tokens, logits = random_proteins(1, 12), []
    for name in ("esmc_300m", path):
        model = load_esmc(name)
        assert sum(p.numel() for p in model.parameters()) == 332_997_184
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert all(torch.equal(value, weights[k].float()) for k, value in model.esmc.state_dict().items())
        assert model.config.width == 960
        out = model(tokens)
        assert out.hidden.shape == (1, 12, 960)
        logits.append(out.logits)
        del model
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    assert logits[0].isfinite().all()
    assert logits[0].std() > 0


def test_wrong_keys_in_the_hub_file(hub):
    torch.save({"embed.weights": torch.zeros(64, 960)}, hub())
    with pytest.raises(ValueError, match=r"the hub's weights of esmc_300m do not fit the model: .*Missing key"):
        load_esmc("esmc_300m")


def test_without_network_there_is_one_message(hub):
    with pytest.raises(ConnectionError, match=r"the weights of esmc_300m are not on this machine .* or use esmc_mini"):
        load_esmc("esmc_300m")
